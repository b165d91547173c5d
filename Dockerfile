# The toolkit inside NVIDIA's Triton image: builds and serves where TensorRT-LLM is.
#   docker build -t specdeploy .
#   docker run --rm --gpus all -v "$PWD":/work -w /work specdeploy build
# Another release of TensorRT-LLM: --build-arg BASE=nvcr.io/nvidia/tritonserver:<month>-trtllm-python-py3
ARG BASE=nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3
FROM ${BASE}

WORKDIR /opt/specdeploy
COPY pyproject.toml README.md LICENSE ./
COPY specdeploy ./specdeploy
# An environment of its own: the image pins what TensorRT-LLM needs, and the toolkit must not move any of it. The image's
# packages stay visible, so that `doctor` sees which release is installed.
RUN python3 -m venv --system-site-packages /opt/specdeploy/venv \
 && /opt/specdeploy/venv/bin/python -m pip install --no-cache-dir . \
 && ln -s /opt/specdeploy/venv/bin/specdeploy /usr/local/bin/specdeploy

ENTRYPOINT ["specdeploy"]
CMD ["--help"]
