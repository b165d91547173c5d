"""Triton: tensors and configurations, the model repository, its linter, the embedded runtime, server and client."""
