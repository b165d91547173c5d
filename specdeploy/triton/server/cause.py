"""From the log of a server to the one line that says why it did not start, or why it is gone.

Knows the messages of tritonserver 2.51. Reads text only. Patterns are tried in order, the most telling first.
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
_LAST: Final = re.compile(r"error: (?:creating server: )?(.*)")
_CHATTER: Final = re.compile(r"[IW]\d{4} |[|+]")
_LONGEST: Final = 400


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
    errors = "\n".join(line for line in log.splitlines() if not _CHATTER.match(line))
    for explain in (hopeless, _port, _parse, _backend, _model, _poll, _graph):
        if cause := explain(errors):
            return _one_line(cause)
    if exit_code is not None and exit_code < 0:
        return _ended(exit_code)
    last = _LAST.findall(errors)
    return _one_line(last[-1]) if last else _ended(exit_code)


def port_was_taken(log: str) -> bool:
    """Say whether the server ended because another process had one of its ports."""
    return _PORT.search(log) is not None


def death(exit_code: int | None) -> str:
    """Return how a server that had been ready ended, in one line."""
    return _ended(exit_code)


def loaded_models(log: str) -> tuple[str, ...]:
    """Return the models that the log says are loaded, in order."""
    return tuple(re.findall(r"successfully loaded '([^']+)'", log))


def _port(log: str) -> str | None:
    found = _PORT.search(log)
    return found and f"the {found[1]} port {found[2]} is in use"


def _parse(log: str) -> str | None:
    found, file = _PARSE.search(log), _PARSE_FILE.search(log)
    if found is None:
        return None
    where = file[1] if file else "a config.pbtxt"
    return f"{where}, line {found[1]}, column {found[2]}: {found[3]}"


def _backend(log: str) -> str | None:
    found = _BACKEND.search(log)
    return found and f"model {found[1]} needs the backend {found[2]!r}, which this server does not have"


def _model(log: str) -> str | None:
    found = _MODEL.search(log)
    return found and f"model {found[1]} failed to load: {found[2]}"


def _poll(log: str) -> str | None:
    found = _POLL.search(log)
    return found and found[1]


def _graph(log: str) -> str | None:
    found = _GRAPH.search(log)
    return found and found[1]


def _ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "it ended without leaving an exit code"
    if exit_code >= 0:
        return f"it ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    oom = " (the kernel does that when memory runs out)" if -exit_code == signal.SIGKILL else ""
    return f"it was ended by {name}{oom}"


def _one_line(text: str) -> str:
    """Cut a message to its first line: Triton escapes line ends, and a Python traceback follows ``At:``."""
    first = re.split(r"\\n|\n", text.strip())[0].strip().rstrip('"').strip()
    return first if len(first) <= _LONGEST else first[: _LONGEST - 3] + "..."
