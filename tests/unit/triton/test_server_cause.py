"""From a log to one line: what tritonserver 2.51 wrote when each of these things was wrong, and what others report.

``CASES`` were all seen on a real server. ``REPORTED`` are excerpts after logs in public issues of tensorrtllm_backend
and TensorRT-LLM, or the words of the programs' sources: no TensorRT-LLM has said them to us.
"""

from __future__ import annotations

import pytest

from specdeploy.triton.server import cause

END = "error: creating server: Internal - failed to load all models\n"
NOISE = 'E1129 19:17:56.1 13189 server.cc:241] "CudaDriverHelper has not been initialized."\n+----+\n| ok |\n+----+\n'


def said(source: str, text: str) -> str:
    """Return an error as Triton logs it; line ends inside of it are written out as backslash and n."""
    escaped = text.replace("\n", "\\n")
    return f'E1129 19:17:56.900255 13189 {source}] "{escaped}"\n'


LIFECYCLE, MANAGER = "model_lifecycle.cc:642", "model_repository_manager.cc:703"
BACKEND = "Invalid argument: unable to find backend library for backend 'tensorrtllm', try specifying runtime"
NO_GPU = "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"
NO_VERSION = "failed to load model 'm': at least one version must be available under the version policy of model 'm'"
NAME = "unexpected directory name 'm' for model 'n', directory name must equal model name"
WIRING = "in ensemble e, ensemble tensor t is mapping to non-existing input Q in model m"
FIELD = 'Message type "inference.ModelConfig" has no field named "max_batch".'
PROTOBUF = f"[libprotobuf ERROR text_format.cc:337] Error parsing text-format inference.ModelConfig: 7:10: {FIELD}\n"
UNREAD = "Poll failed for model directory 'm': failed to read text proto from /r/m/config.pbtxt"
RAISED = "RuntimeError: no engine in /x\nsecond line\n\nAt:\n  /r/m/1/model.py(5): initialize\n"
LOST = "failed to start HTTP service: Unavailable - Socket '127.0.0.1:8000' already in use "

CASES = {
    "missing backend": (
        said(LIFECYCLE, f"failed to load 'm' version 1: {BACKEND}"),
        "model m needs the backend 'tensorrtllm', which this server does not have",
    ),
    "broken config.pbtxt": (PROTOBUF + said(MANAGER, UNREAD), f"/r/m/config.pbtxt, line 7, column 10: {FIELD}"),
    "wrong name": (said(MANAGER, f"Poll failed for model directory 'm': {NAME}"), NAME),
    "model that raises": (
        said(LIFECYCLE, f"failed to load 'm' version 1: Internal: {RAISED}"),
        "model m failed to load: RuntimeError: no engine in /x",
    ),
    "no GPU": (
        said(LIFECYCLE, f"failed to load 'm' version 1: Invalid argument: {NO_GPU}"),
        f"model m failed to load: {NO_GPU}",
    ),
    "no version": (said(MANAGER, NO_VERSION), NO_VERSION),
    "wiring": (said(MANAGER, f"Invalid argument: {WIRING}"), WIRING),
    "taken port": (said("main.cc:257", LOST), "the HTTP port 127.0.0.1:8000 is in use"),
    "unknown option": (
        "/b/tritonserver: unrecognized option '--no-such'\nUsage: tritonserver [options]\n",
        "this tritonserver does not know the option '--no-such'",
    ),
    "wrong value": ("Usage: tritonserver [options]\nInvalid option value. Got abc\n", "Invalid option value. Got abc"),
    "something else": ("", "Internal - failed to load all models"),
}


@pytest.mark.parametrize(("log", "expected"), CASES.values(), ids=CASES.keys())
def test_the_cause_is_one_line(log: str, expected: str) -> None:
    """Whatever surrounds it, the telling message is found, without its traceback."""
    assert cause.start_failure(NOISE + log + END, 1) == expected


def test_a_port_that_was_taken_is_told_from_other_causes() -> None:
    """Only a lost port is worth another attempt."""
    taken = [name for name, (log, _) in CASES.items() if cause.port_was_taken(log)]

    assert taken == ["taken port"]


def test_a_stub_without_its_library_is_hopeless() -> None:
    """The server would wait for ever; the loader's message says why."""
    log = (
        "/b/python/triton_python_backend_stub: error while loading shared libraries: libpython3.11.so.1.0: cannot open "
        "shared object file: No such file or directory\n"
    )

    assert "libpython3.11.so.1.0" in (cause.hopeless(log) or "")
    assert cause.hopeless("a model prints: tool: error while loading shared libraries: libx.so: no\n") is None


@pytest.mark.parametrize(
    ("code", "expected"),
    [(-9, "SIGKILL"), (-11, "SIGSEGV"), (3, "exit code 3"), (None, "without leaving an exit code")],
)
def test_a_death_without_words_is_told_by_its_exit_code(code: int | None, expected: str) -> None:
    """Signals have names."""
    assert expected in cause.death(code)
    assert expected in cause.start_failure(NOISE, code)


def failed(text: str) -> str:
    """Return a failed load as NVIDIA's backend reports it, with a line of its backtrace."""
    where = "unexpected error when creating modelInstanceState: "
    trace = "\n1       0x7f83fe81e045 /opt/tritonserver/backends/tensorrtllm/libtriton_tensorrtllm.so(+0x36045)"
    return said(LIFECYCLE, f"failed to load 'tensorrt_llm' version 1: Internal: {where}{text}{trace}")


ERROR = "[TensorRT-LLM][ERROR] "
MODEL = "model tensorrt_llm cannot be loaded: "
DESERIALIZE = "Assertion failed: Failed to deserialize cuda engine. (/app/tensorrt_llm/cpp/runtime/tllmRuntime.cpp:239)"
PLAN = "6: The engine plan file is not compatible with this version of TensorRT, expecting library version"
DEVICE = "6: The engine plan file is generated on an incompatible device, expecting compute 9.0 got compute 8.9, please"
TAG = (
    "Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current"
)
MALLOC = "CUDA runtime error in ::cudaMallocAsync(ptr, n, mCudaStream->get()): out of memory (/app/tllmBuffers.h:112)"
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
)
LEADER = "Assertion failed: With communicationMode kLEADER, MPI worldSize is expected to be equal to tp*pp*cp when"
JSON = (
    "[json.exception.parse_error.101] parse error at line 1, column 1: syntax error while parsing value - unexpected "
)
KEY = "[json.exception.out_of_range.403] key 'builder_config' not found"
ORDINAL = "CUDA runtime error in cudaSetDevice(device): invalid device ordinal (/app/tensorrt_llm/cpp/mpiUtils.cpp:1)"
ABORT = "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n"
NOTICED = "mpirun noticed that process rank 1 with PID 77 on node gpu1 exited on"
BASIC = "Error parsing text-format inference.ModelConfig: 3:17: Expected integer, got: $"
REPORTED = {
    "TensorRT of another version": (
        f"{ERROR}{PLAN} 10.9.0.34 got 10.13.3.9, please rebuild.\n" + failed(ERROR + DESERIALIZE),
        f"{MODEL}its engine was built with TensorRT 10.13.3.9, and this server has 10.9.0.34: ",
    ),
    "another format": (
        f"{ERROR}{TAG} Version: 228, Serialized Engine Version: 237)\n" + failed(ERROR + DESERIALIZE),
        f"{MODEL}its engine has TensorRT's format 237, and this server reads 228: ",
    ),
    "another GPU": (
        f"{ERROR}{DEVICE} rebuild.\n" + failed(ERROR + DESERIALIZE),
        f"{MODEL}its engine was built for compute capability 8.9, and this GPU has 9.0: ",
    ),
    "an engine that cannot be read": (
        failed(ERROR + DESERIALIZE),
        f"{MODEL}its engine cannot be read (Failed to deserialize cuda engine): ",
    ),
    "ranks": (
        failed(f"{ERROR}{LEADER} participantIds are not specified"),
        f"{MODEL}its engine has another number of ranks than were started (MPI worldSize is expected to be",
    ),
    "ranks, in older releases": (
        failed(f"{ERROR}Assertion failed: mpiSize == tp * pp (/app/worldConfig.cpp:80)"),
        f"{MODEL}its engine has another number of ranks than were started",
    ),
    "no GPU memory": (
        failed(ERROR + MALLOC),
        f"{MODEL}GPU memory ran out (CUDA runtime error in ::cudaMallocAsync(ptr, n, mCudaStream->get()): out of",
    ),
    "no GPU memory for PyTorch": (
        said(LIFECYCLE, f"failed to load 'speculative_decoder' version 1: Internal: {TORCH}"),
        "model speculative_decoder cannot be loaded: GPU memory ran out (CUDA out of memory)",
    ),
    "no GPU memory for TensorRT": (
        f"{ERROR}Requested amount of GPU memory (1073741824 bytes) could not be allocated.\n" + failed(DESERIALIZE),
        f"{MODEL}GPU memory ran out (Requested amount of GPU memory (1073741824 bytes) could not be allocated)",
    ),
    "no KV cache": (
        failed("maxTokensInPagedKvCache must be large enough to process at least 1 sequence to completion"),
        f"{MODEL}no GPU memory is left for its KV cache",
    ),
    "no engine": (
        failed(f"{JSON}end of input; expected '[', '{{'"),
        f"{MODEL}there is no config.json of an engine where",
    ),
    "an engine of another release": (failed(KEY), f"{MODEL}the config.json of its engine is not one of this release"),
    "a missing GPU": (
        failed(ERROR + ORDINAL),
        f"{MODEL}a GPU that it is placed on is not there (invalid device ordinal)",
    ),
    "no GPU": (
        failed(f"{ERROR}CUDA runtime error in cudaGetDeviceCount: no CUDA-capable device is detected"),
        f"{MODEL}a GPU that it is placed on is not there (no CUDA-capable device is detected)",
    ),
    "a placeholder for a number": (
        f"[libprotobuf ERROR text_format.cc:337] {BASIC}\n" + said(MANAGER, UNREAD),
        "/r/m/config.pbtxt, line 3: a parameter ${...} was not filled in; `specdeploy lint` names it",
    ),
    "a placeholder for a path": (
        failed(f"{ERROR}Assertion failed: Error opening engine file: ${{engine_dir}}/rank0.engine"),
        "the parameter ${engine_dir} of a config.pbtxt was not filled in",
    ),
    "a rank that gave up": (ABORT, "rank 2 gave up (MPI_ABORT, errorcode 1)"),
    "a rank that was killed": (
        f"{NOTICED} signal 9 (Killed).\n",
        "rank 1 was ended by SIGKILL (the kernel does that when memory runs out)",
    ),
    "a rank that was killed, as Open MPI 5 says it": (
        "prterun noticed that process rank 1 with PID 3942 on node vm exited on\nsignal 9 (Killed).\n",
        "rank 1 was ended by SIGKILL (the kernel does that when memory runs out)",
    ),
    "slots, as Open MPI 5 says it": (
        "All nodes which are allocated for this job are already filled.\n",
        "mpirun finds fewer processors (slots) than there are ranks: set serve.mpirun to `mpirun --oversubscribe`",
    ),
    "a rank that crashed": (f"{NOTICED} signal 11 (Segmentation fault).\n", "rank 1 was ended by signal 11"),
    "slots": ("There are not enough slots available in the system to satisfy the 4\n", "mpirun finds fewer processors"),
    "no image": (
        "docker: Error response from daemon: manifest for x:1 not found: manifest unknown.\nSee 'docker run --help'.\n",
        "docker cannot start the container: manifest for x:1 not found: manifest unknown",
    ),
    "podman": ("Error: short-name resolution failed\n", "the container engine says: short-name resolution failed"),
    "apptainer": ("FATAL:   could not open image x.sif\n", "apptainer cannot start the container: could not open"),
}


@pytest.mark.parametrize(("log", "expected"), REPORTED.values(), ids=REPORTED.keys())
def test_what_nvidia_says_becomes_one_line_with_a_cure(log: str, expected: str) -> None:
    """The line names the model, what is wrong in words of ours, the message itself, and what to do."""
    told = cause.start_failure(f"[TensorRT-LLM][INFO] Rank 0 is using GPU 0\n{NOISE}{log}{END}", 1)

    assert told.startswith(expected)
    assert "\n" not in told


@pytest.mark.parametrize("name", ["no GPU memory", "ranks", "a missing GPU"])
def test_what_an_engine_said_is_told_of_a_server_that_hangs(name: str) -> None:
    """One rank has failed and the others wait for it: the server still runs when its time is over."""
    log, expected = REPORTED[name]

    assert (cause.telling(log) or "").startswith(expected)
    assert cause.telling("[TensorRT-LLM][INFO] Engine version 1.2.1 found in the config file\n") is None


# Seen on a real server of the embedded runtime, which has no GPU, at every start.
HARMLESS = said("model.cc:1", "unable to create stream for ensemble: CUDA driver version is insufficient")


def test_what_every_server_without_a_gpu_says_is_no_cause() -> None:
    """The cause is what the server said besides, in a failed start as in one that hangs."""
    raised = said(LIFECYCLE, f"failed to load 'm' version 1: Internal: {RAISED}")

    assert cause.start_failure(HARMLESS + raised + END, 1) == "model m failed to load: RuntimeError: no engine in /x"
    assert cause.start_failure(HARMLESS, -9) == cause.death(-9)
    assert cause.telling(HARMLESS) is None
    assert cause.complaints(HARMLESS + NOISE + raised) == [raised.strip()]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("E1129 1 ssl.cc:1] Invalid private key.", "(Invalid private key.)"),
        ("E1129 1 ssl.cc:1] Invalid cert chain file.", "(Invalid cert chain file.)"),
        ("error: Unable to create secure server", "(Unable to create secure server)"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_told_from_a_taken_port(line: str, told: str) -> None:
    """Its library names what is wrong, and Triton then complains about its port, which another port would not cure."""
    log = f"{line}\n" + said("main.cc:257", LOST.replace("HTTP", "GRPC"))

    assert cause.start_failure(log + END, 1) == (
        f"its certificate or key is none that gRPC can use {told}; see serve.tls_cert"
    )
    assert not cause.port_was_taken(log)


def test_a_client_that_tells_of_a_signal_is_understood() -> None:
    """Container engines and mpirun add 128 to the signal's number."""
    oom = "(the kernel does that when memory runs out)"

    assert cause.death(137) == f"it ended with exit code 137, which stands for SIGKILL {oom}"
    assert cause.death(1) == "it ended with exit code 1"


def test_loading_models_are_those_that_have_not_ended() -> None:
    """What a hang is at: begun, and neither loaded nor failed."""
    log = (
        'I1129 1 m.cc:1] "loading: a:1"\nI1129 1 m.cc:1] "loading: b:1"\nI1129 1 m.cc:1] "loading: c:1"\n'
        "I1129 1 m.cc:1] \"successfully loaded 'a'\"\nE1129 1 m.cc:1] \"failed to load 'c' version 1: x\"\n"
    )

    assert cause.loading_models(log) == ("b",)


def test_loaded_models_are_read_in_order() -> None:
    """Progress of a start comes from the log."""
    log = "I1129 1 m.cc:1] \"successfully loaded 'b'\"\nI1129 1 m.cc:1] \"successfully loaded 'a'\"\n"

    assert cause.loaded_models(log) == ("b", "a")
