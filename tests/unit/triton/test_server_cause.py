"""From a log to one line: the messages are what tritonserver 2.51 wrote when each of these things was wrong."""

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


def test_loaded_models_are_read_in_order() -> None:
    """Progress of a start comes from the log."""
    log = "I1129 1 m.cc:1] \"successfully loaded 'b'\"\nI1129 1 m.cc:1] \"successfully loaded 'a'\"\n"

    assert cause.loaded_models(log) == ("b", "a")
