"""From the log of a server to the one line that says why it did not start, or why it is gone.

Knows the messages of tritonserver 2.51, of TensorRT-LLM behind it, and of what starts them. Reads text only. Patterns
are tried in order, the most telling first.

Those of tritonserver itself were all seen on a real one. Those in ``_TELLING`` are marked: *reported* is from logs that
users put into the issues of tensorrtllm_backend and TensorRT-LLM, *source* from the text of the program that prints it;
no TensorRT-LLM has run under this code yet.
"""

from __future__ import annotations

import re
import signal
from typing import Final

# How a stub that cannot start is reported: by the loader, while the server waits for ever.
_HOPELESS: Final = re.compile(r"triton_python_backend_stub: error while loading shared libraries: (\S+):")
_PARSE: Final = re.compile(r"Error parsing text-format inference\.ModelConfig: (\d+):(\d+): (.*)")
_PARSE_FILE: Final = re.compile(r"failed to read text proto from ([^\"]+)\"")
_PORT: Final = re.compile(r"failed to start (HTTP|GRPC|Metrics) service: .*Socket '([^']+)' already in use")
_BACKEND: Final = re.compile(
    r"failed to load '([^']+)' version \d+: .*unable to find backend library for backend '([^']+)'"
)
_MODEL: Final = re.compile(r"failed to load '([^']+)' version \d+: (?:[A-Z][a-z]+(?: [a-z]+)*: )?(.*)")
_POLL: Final = re.compile(r"Poll failed for model directory '[^']+': (.*)")
_GRAPH: Final = re.compile(r"model_repository_manager\.cc:\d+\] \"(?:Invalid argument: )?(.*)")
_LOADING: Final = re.compile(r"\"?loading: ([^:\s\"]+):\d+")
_LOAD_FAILED: Final = re.compile(r"failed to load '([^']+)'")
_LAST: Final = re.compile(r"error: (?:creating server: )?(.*)")
_CHATTER: Final = re.compile(r"[IW]\d{4} |[|+]")
# A server without a GPU says so, and serves.
_HARMLESS: Final = re.compile(r"unable to create stream for \S+: CUDA|CudaDriverHelper has not been initialized")
# What gRPC says of a certificate or key; Triton then speaks of its port.
_TLS: Final = re.compile(
    r"(Invalid (?:private key|cert chain file|certificate)[^\n\"]*)|Unable to create secure server"
)
_LONGEST: Final = 400
_REBUILD: Final = "build it again with the release and the image that serve it"
_OUT_OF_MEMORY: Final = (
    r"(CUDA runtime error in [^:\n]*(?:::[^:\n]*)?: out of memory|CUDA out of memory|CUDA error: out of memory"
    r"|Requested amount of GPU memory \(\d+ bytes\) could not be allocated|Failed to allocate [^\n\"]{0,80})"
)
# Message -> what it means, in the words of a user of ours; {0}, {1}, ... are its groups.
_TELLING: Final = (
    # reported (tensorrtllm_backend 424, 194): TensorRT, for a plan of another version.
    (
        r"plan file is not compatible with this version of TensorRT, expecting library version (\S+) got (\S+?),",
        f"its engine was built with TensorRT {{1}}, and this server has {{0}}: {_REBUILD}",
    ),
    # reported (tensorrtllm_backend 531): the same between versions further apart.
    (
        r"Version tag does not match\. Note: Current Version: (\d+), Serialized Engine Version: (\d+)",
        f"its engine has TensorRT's format {{1}}, and this server reads {{0}}: {_REBUILD}",
    ),
    # reported (llama_index 12318): TensorRT, for a plan of another GPU.
    (
        r"engine plan file is generated on an incompatible device, expecting compute (\S+) got compute (\S+?),",
        "its engine was built for compute capability {1}, and this GPU has {0}: build it on this kind of GPU",
    ),
    # source (executorImpl.cpp); reported (TensorRT-LLM 2021, 1047) in this form and the older one.
    (
        r"(MPI worldSize is expected to be equal to tp\*pp|Assertion failed: mpiSize == tp \* pp)",
        "its engine has another number of ranks than were started ({0}): the engine and tp_size, pp_size differ",
    ),
    # reported (TensorRT-LLM 260, tensorrtllm_backend 281): TensorRT-LLM; source: PyTorch and TensorRT.
    (
        _OUT_OF_MEMORY,
        "GPU memory ran out ({0}): give its KV cache a smaller fraction, or build for fewer sequences or tokens",
    ),
    # reported (tensorrtllm_backend 235, TensorRT-LLM 1838): what TensorRT-LLM makes of any of the above.
    (r"Assertion failed: (Failed to deserialize cuda engine)", f"its engine cannot be read ({{0}}): {_REBUILD}"),
    # reported (tensorrtllm_backend 168): a KV cache that holds less than one sequence.
    (
        r"(maxTokensInPagedKvCache must be large enough to process at least 1 sequence)",
        "no GPU memory is left for its KV cache ({0}): give it a larger fraction, or build for shorter sequences",
    ),
    # source: the CUDA runtime's own words, whoever hands them on.
    (
        r"(invalid device ordinal|no CUDA-capable device is detected|CUDA driver version is insufficient[^\n\"]{0,60})",
        "a GPU that it is placed on is not there ({0}): look at `nvidia-smi`, CUDA_VISIBLE_DEVICES and container.gpus",
    ),
    # reported (tensorrtllm_backend 500, 61): the backend read config.json where gpt_model_path points to.
    (
        r"json\.exception\.parse_error\.101\][^\n]*(unexpected end of input)",
        "there is no config.json of an engine where its configuration looks for one ({0}): look at gpt_model_path",
    ),
    # reported (TensorRT-LLM 10450, tensorrtllm_backend 337): a config.json of another release.
    (
        r"(json\.exception\.(?:type_error|out_of_range)\.\d+\] [^\n\"]{0,120}?)(?:\\n|\"|\n|$)",
        f"the config.json of its engine is not one of this release ({{0}}): {_REBUILD}",
    ),
)
# What starts the server, in its own words; they come after those of the server, which are nearer to the cause.
_STARTERS: Final = (
    # source (help texts of Open MPI 4); the second was seen on a real Open MPI 5.0.
    (
        r"There are not enough slots available|All nodes which are allocated for this job are already filled",
        "mpirun finds fewer processors (slots) than there are ranks: set serve.mpirun to `mpirun --oversubscribe`",
    ),
    # seen on a real Open MPI 5.0, which breaks the line before the signal; source: Open MPI 4, which does not.
    (
        r"noticed that process rank (\d+) [^\n]*exited on\s+signal 9 \(Killed\)",
        "rank {0} was ended by SIGKILL (the kernel does that when memory runs out)",
    ),
    (r"noticed that process rank (\d+) [^\n]*exited on\s+(signal \d+ \([^)]*\))", "rank {0} was ended by {1}"),
    # reported (TensorRT-LLM 2813).
    (
        r"MPI_ABORT was invoked on rank (\d+) in communicator \S+(?:\s+with errorcode|\s*\n\s*with errorcode) (\d+)",
        "rank {0} gave up (MPI_ABORT, errorcode {1}); its own message is further up in the log",
    ),
    (r"mpirun was unable to find the specified executable file[^\n]*", "mpirun does not find serve.tritonserver"),
    # As the container engines begin their own lines.
    (r"(?m)^docker: (?:Error response from daemon: )?(.*?)\.?$", "docker cannot start the container: {0}"),
    (r"(?m)^Error response from daemon: (.*?)\.?$", "docker cannot start the container: {0}"),
    (r"(?m)^Error: (.*)$", "the container engine says: {0}"),
    (r"(?m)^(?:\x1b\[\d+m)?FATAL: *(?:\x1b\[0m)? *(.*)$", "apptainer cannot start the container: {0}"),
)
# Seen on a real tritonserver, which then prints pages of help.
_OPTION: Final = re.compile(
    r"unrecognized option ('[^']+')|(Invalid option value\. Got [^\n]*|unknown restricted api [^\n]*)"
)
_UNFILLED: Final = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_UNFILLED_NUMBER: Final = re.compile(r"Expected [a-z]+, got: \$$")


def hopeless(log: str) -> str | None:
    """Return why a server that still runs will never be ready; None when it may be."""
    found = _HOPELESS.search(log)
    return found and f"its model processes cannot load {found[1]}: the runtime's Python was removed or replaced"


def start_failure(log: str, exit_code: int | None) -> str:
    """Return why a server ended before it was ready, in one line.

    Args:
        log: The server's log.
        exit_code: Its exit code; minus the signal's number; None when it is not known.
    """
    errors = "\n".join(complaints(log))
    for explain in _EXPLAIN:
        if cause := explain(errors):
            return one_line(cause)
    if exit_code is not None and exit_code < 0:
        return _ended(exit_code)
    last = _LAST.findall(errors)
    return one_line(last[-1]) if last else _ended(exit_code)


def complaints(log: str) -> list[str]:
    """Return the lines of a log that are more than progress; what every start without a GPU says is none of them."""
    return [line for line in log.splitlines() if not _CHATTER.match(line) and not _HARMLESS.search(line)]


def port_was_taken(log: str) -> bool:
    """Say whether the server ended because another process had one of its ports."""
    return _PORT.search(log) is not None and _TLS.search(log) is None


def death(exit_code: int | None) -> str:
    """Return how a server that had been ready ended, in one line."""
    return _ended(exit_code)


def loaded_models(log: str) -> tuple[str, ...]:
    """Return the models that the log says are loaded, in order."""
    return tuple(re.findall(r"successfully loaded '([^']+)'", log))


def loading_models(log: str) -> tuple[str, ...]:
    """Return the models whose loading has begun and, by the log, not ended."""
    ended = {*loaded_models(log), *_LOAD_FAILED.findall(log)}
    return tuple(dict.fromkeys(model for model in _LOADING.findall(log) if model not in ended))


def telling(log: str) -> str | None:
    """Return what TensorRT-LLM and what it stands on said of an engine that it cannot use; None when nothing."""
    log = "\n".join(line for line in log.splitlines() if not _HARMLESS.search(line))
    for pattern, meaning in _TELLING:
        if found := re.search(pattern, log):
            model = _LOAD_FAILED.search(log[: found.start()].rpartition("\n")[2]) or _LOAD_FAILED.search(log)
            who = f"model {model[1]}" if model else "an engine"
            return f"{who} cannot be loaded: {meaning.format(*found.groups())}"
    return None


def _option(log: str) -> str | None:
    found = _OPTION.search(log)
    return found and (f"this tritonserver does not know the option {found[1]}" if found[1] else found[2])


def _tls(log: str) -> str | None:
    found = _TLS.search(log)
    return found and f"its certificate or key is none that gRPC can use ({found[1] or found[0]}); see serve.tls_cert"


def _port(log: str) -> str | None:
    found = _PORT.search(log)
    return found and f"the {found[1]} port {found[2]} is in use"


def _parse(log: str) -> str | None:
    found, file = _PARSE.search(log), _PARSE_FILE.search(log)
    if found is None:
        return None
    where = file[1] if file else "a config.pbtxt"
    if _UNFILLED_NUMBER.search(found[3].strip().rstrip('"')):
        # Triton names the place and not the parameter; lint reads the file and knows.
        return f"{where}, line {found[1]}: a parameter ${{...}} was not filled in; `specdeploy lint` names it"
    return f"{where}, line {found[1]}, column {found[2]}: {found[3]}"


def _backend(log: str) -> str | None:
    found = _BACKEND.search(log)
    return found and f"model {found[1]} needs the backend {found[2]!r}, which this server does not have"


def _model(log: str) -> str | None:
    found = _MODEL.search(log)
    return found and f"model {found[1]} failed to load: {found[2]}"


def _unfilled(log: str) -> str | None:
    """Return the parameter of a template that was left as it is; as text it is accepted, and fails later as a path."""
    found = _UNFILLED.search(log)
    return found and f"the parameter ${{{found[1]}}} of a config.pbtxt was not filled in; `specdeploy lint` says where"


def _starter(log: str) -> str | None:
    for pattern, meaning in _STARTERS:
        if found := re.search(pattern, log):
            return meaning.format(*found.groups())
    return None


def _poll(log: str) -> str | None:
    found = _POLL.search(log)
    return found and found[1]


def _graph(log: str) -> str | None:
    found = _GRAPH.search(log)
    return found and found[1]


# The most telling first.
_EXPLAIN: Final = (
    hopeless,
    _option,
    _tls,
    _port,
    _parse,
    _backend,
    telling,
    _unfilled,
    _model,
    _poll,
    _graph,
    _starter,
)


def _ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "it ended without leaving an exit code"
    if 128 < exit_code <= 128 + signal.SIGRTMAX:
        # Who starts a server for us (a container engine, mpirun) tells in this way how it ended.
        return f"it ended with exit code {exit_code}, which stands for {_signal_name(exit_code - 128)}"
    if exit_code >= 0:
        return f"it ended with exit code {exit_code}"
    return f"it was ended by {_signal_name(-exit_code)}"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return name + (" (the kernel does that when memory runs out)" if number == signal.SIGKILL else "")


def one_line(text: str) -> str:
    """Cut a message to its first line: Triton escapes line ends, and a Python traceback follows ``At:``."""
    first = re.split(r"\\n|\n", text.strip())[0].strip().rstrip('"').strip()
    return first if len(first) <= _LONGEST else first[: _LONGEST - 3] + "..."
