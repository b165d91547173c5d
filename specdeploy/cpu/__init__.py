"""The embedded engine of the ``cpu`` profile: making a checkpoint, compiling it, serving it.

``gguf_import`` turns a packaged GGUF file into an ordinary Hugging Face folder, ``compile`` turns such a folder into a
model of ONNX Runtime GenAI, and ``backend`` serves that model inside Triton. Each is run as a program of its own;
no other room of the toolkit imports this one.
"""
