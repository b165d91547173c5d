"""The Triton backend ``tensorrtllm`` for CPUs: this folder is copied as it is to ``<backends>/tensorrtllm/``."""
