# The toolkit inside NVIDIA's Triton image: builds and serves where TensorRT-LLM is.
#   docker build -t specdeploy .
#   docker run --rm --gpus all --shm-size=2g --ulimit memlock=-1 --user "$(id -u):$(id -g)" -v "$PWD":/deployment \
#     specdeploy up --config specdeploy.yaml
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
 && ln -s /opt/specdeploy/venv/bin/specdeploy /usr/local/bin/specdeploy \
 && useradd --create-home --uid 10001 specdeploy \
 && chmod 1777 /home/specdeploy

# Nothing here needs root. Give --user your own ids where it is to write to a folder of yours; the home is open to them.
USER 10001
ENV HOME=/home/specdeploy
WORKDIR /deployment
# For a container that serves (`serve`, on --network=host or with serve.host 0.0.0.0): healthy is one that answers a short
# request, since a model whose process died still calls itself ready. Engines take minutes to load. SPECDEPLOY_CONFIG names
# the configuration where it is not specdeploy.yaml. Docker knows the exit codes 0 and 1 only.
HEALTHCHECK --interval=30s --timeout=40s --start-period=20m --retries=3 CMD ["sh", "-c", "specdeploy serve status --probe || exit 1"]

ENTRYPOINT ["specdeploy"]
CMD ["--help"]
