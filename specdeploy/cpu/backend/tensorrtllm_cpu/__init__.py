"""A Triton backend named ``tensorrtllm`` that runs on a CPU: the stand-in for NVIDIA's C++ backend of that name.

It runs in Triton's Python stub, where nothing of ours is installed: its modules import NumPy, ONNX Runtime GenAI and
each other, and nothing else. Only ``triton_model`` knows Triton, only ``genai`` knows ONNX Runtime GenAI; the rest are
values and NumPy.
"""
