"""Checkpoint conversion in process: a Hugging Face folder becomes a TensorRT-LLM checkpoint, by NVIDIA's ModelOpt.

Run as ``python -m specdeploy.modelopt``, by an interpreter that has torch, ModelOpt and transformers; of the toolkit it
needs this folder and ``specdeploy.errors``. No other room of the toolkit imports this one.
"""
