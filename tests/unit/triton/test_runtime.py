"""The embedded runtime: found only when whole, installed once, explained when it cannot be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from specdeploy.errors import EnvironmentFault, ToolMissing
from specdeploy.triton import runtime as runtime_module
from specdeploy.triton.runtime import PINS, Runtime, cache_dir, find_runtime, install_runtime, runtime_findings
from specdeploy.triton.runtime.interpreters import Interpreter, find_interpreter


class FakeRunner:
    """Makes what ``venv`` and ``pip`` would make, and remembers what it was asked."""

    def __init__(self, *, fail_at: str = "", output: tuple[str, ...] = ()) -> None:
        self.commands: list[list[str]] = []
        self._fail_at = fail_at
        self._output = output

    def run(self, argv, *, env, cwd, log, timeout_s, on_line=None):
        """Do what the step would do."""
        self.commands.append(list(argv))
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.writelines(f"{line}\n" for line in self._output)
        for line in self._output:
            on_line(line)
        if self._fail_at and self._fail_at in argv:
            return 1
        if "venv" in argv:
            _write(Path(argv[-1]) / "bin" / "python3")
        if "pip" in argv:
            wheel = Path(argv[0]).parents[1] / "lib/python3.11/site-packages/pytriton/tritonserver"
            _write(wheel / "bin" / "tritonserver", "#!/bin/sh\necho Usage: tritonserver\n")
            _write(wheel / "backends" / "python" / "libtriton_python.so")
            _write(wheel / "python_backend_stubs" / "3.11" / "triton_python_backend_stub")
        return 0


class Answer:
    """What a probe of tritonserver prints."""

    def __init__(self, output: str) -> None:
        self.output = output


def _write(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture(autouse=True)
def _server_that_runs(monkeypatch):
    monkeypatch.setattr(runtime_module, "run_capture", lambda argv, timeout_s: Answer("Usage: tritonserver [options]"))


@pytest.fixture
def python(tmp_path) -> Interpreter:
    """A Python 3.11 that will do."""
    library = tmp_path / "base" / "libpython3.11.so.1.0"
    _write(library)
    return Interpreter(path=Path("/opt/python3.11"), version="3.11", library=library)


def install(cache: Path, python: Interpreter, runner: FakeRunner, lines: list[str] | None = None) -> Runtime:
    """Install with fakes."""
    return install_runtime((lines if lines is not None else []).append, cache=cache, runner=runner, interpreter=python)


def test_an_install_is_found_again_and_not_repeated(tmp_path, python) -> None:
    """The first install runs venv, pip and a check; the second runs nothing."""
    cache, runner = tmp_path / "cache", FakeRunner()
    assert find_runtime(cache) is None

    installed = install(cache, python, runner)

    assert find_runtime(cache) == installed
    assert installed.library.resolve() == python.library
    count = len(runner.commands)
    assert install(cache, python, runner) == installed
    assert len(runner.commands) == count


def test_pip_installs_exactly_the_pins(tmp_path, python) -> None:
    """Everything is pinned and binary; what the wheels declare beyond it is left out, so pip has nothing to warn of."""
    runner = FakeRunner()
    install(tmp_path, python, runner)

    (pip,) = [command for command in runner.commands if "pip" in command]
    assert pip[-len(PINS) :] == list(PINS)
    assert {"--no-deps", "--only-binary=:all:", "-I"} <= set(pip)
    assert all("==" in pin for pin in PINS)
    assert "numpy==1." in " ".join(PINS)


def test_progress_shows_what_tells_and_hides_the_rest(tmp_path, python) -> None:
    """Package names are shown; pip's warnings about the machine go to the log only."""
    lines: list[str] = []
    runner = FakeRunner(output=("Collecting numpy==1.26.4", "WARNING: Location is ignored", "ERROR: pip's resolver"))

    install(tmp_path, python, runner, lines)

    assert "Collecting numpy==1.26.4" in lines
    assert not [line for line in lines if "WARNING" in line or "resolver" in line]


def test_a_failed_step_leaves_nothing_and_says_what_pip_said(tmp_path, python) -> None:
    """After a failed download the error ends with pip's own words, and no half of a runtime is left."""
    runner = FakeRunner(fail_at="pip", output=("ERROR: No matching distribution found for numpy==1.26.4",))

    with pytest.raises(EnvironmentFault, match="No matching distribution") as caught:
        install(tmp_path, python, runner)

    assert caught.value.exit_code == 4
    assert ".log" in caught.value.hint
    assert find_runtime(tmp_path) is None
    assert [path.suffix for path in tmp_path.glob("triton-*") if path.is_dir()] == []


def test_a_broken_off_install_is_made_again(tmp_path, python) -> None:
    """A directory without ``ready.json`` counts as nothing, and what lies in it is thrown away."""
    whole = install(tmp_path, python, FakeRunner())
    (whole.root / "ready.json").unlink()
    _write(whole.root / "venv" / "half-written")
    assert find_runtime(tmp_path) is None

    again = install(tmp_path, python, FakeRunner())

    assert again == whole
    assert again.is_ready()
    assert not (again.root / "venv" / "half-written").exists()


def test_a_runtime_whose_python_was_removed_is_not_found(tmp_path, python) -> None:
    """The libpython that the stubs load lies outside; without it the server would hang."""
    install(tmp_path, python, FakeRunner())

    python.library.unlink()

    assert find_runtime(tmp_path) is None


def test_a_server_that_does_not_run_here_is_never_called_ready(tmp_path, python, monkeypatch) -> None:
    """Too old a C library shows at install, not at the first start."""
    monkeypatch.setattr(runtime_module, "run_capture", lambda argv, timeout_s: Answer("version `GLIBC_2.34' not found"))

    with pytest.raises(EnvironmentFault, match=r"GLIBC_2\.34"):
        install(tmp_path, python, FakeRunner())

    assert find_runtime(tmp_path) is None


def test_ready_json_says_what_was_installed(tmp_path, python) -> None:
    """The marker names Triton, the Python and the pins."""
    runtime = install(tmp_path, python, FakeRunner())

    facts = json.loads((runtime.root / "ready.json").read_text())
    assert facts == {"triton": "2.51.0", "python": "/opt/python3.11", "pins": list(PINS)}


def test_the_cache_folder_can_be_chosen(monkeypatch, tmp_path) -> None:
    """$SPECDEPLOY_CACHE_DIR wins, then the virtual environment that we run in, then $XDG_CACHE_HOME, then ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SPECDEPLOY_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "prefix", "/home/somebody/venv")
    assert cache_dir() == Path("/home/somebody/venv/cache")

    monkeypatch.setattr(sys, "prefix", "/usr")
    assert cache_dir() == tmp_path / "home" / ".cache" / "specdeploy"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "specdeploy"

    monkeypatch.setenv("SPECDEPLOY_CACHE_DIR", str(tmp_path / "ours"))
    assert cache_dir() == tmp_path / "ours"


@pytest.fixture
def only_path(monkeypatch, tmp_path):
    """A machine whose Pythons are the empty files that a test puts on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))

    def put(*names: str) -> None:
        for name in names:
            _write(folder / name)
            (folder / name).chmod(0o755)

    return put


def test_the_preferred_python_is_taken_where_it_runs(only_path) -> None:
    """3.11 comes before 3.12, but one that does not run is passed over."""
    only_path("python3.11", "python3.12")

    def probe(path: Path) -> Interpreter | str:
        version = "3.12" if path.name == "python3.12" else ""
        return Interpreter(path=path, version=version, library=Path("/lib")) if version else "does not run"

    assert find_interpreter(probe).path.name == "python3.12"


def test_no_usable_python_names_those_that_were_tried(only_path) -> None:
    """The error lists every candidate and what is wrong with it."""
    only_path("python3.11", "python3.12")

    with pytest.raises(ToolMissing) as caught:
        find_interpreter(lambda path: "has no shared libpython" if "3.12" in path.name else "does not run")

    assert "bin/python3.11 does not run" in caught.value.message
    assert "bin/python3.12 has no shared libpython" in caught.value.message
    assert caught.value.exit_code == 4


def test_doctor_hears_of_a_missing_runtime(tmp_path) -> None:
    """Without a runtime there is an error with the command that installs one."""
    missing = [f for f in runtime_findings(tmp_path) if f.code == "runtime.missing"]

    assert [(f.severity, f.hint) for f in missing] == [("error", "run `specdeploy runtime install`")]


def test_doctor_is_silent_about_an_installed_runtime(tmp_path, python) -> None:
    """With the runtime installed, nothing is missing."""
    install(tmp_path, python, FakeRunner())

    assert not [f for f in runtime_findings(tmp_path) if f.code in {"runtime.missing", "runtime.python"}]
