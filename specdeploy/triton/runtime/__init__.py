"""The embedded Triton runtime: a real tritonserver and its model processes' Python, kept apart from the toolkit's own.

Knows how to find it, install it and say what it lacks. Does not start it. The server comes from the ``nvidia-pytriton``
wheel, of which only the binaries are used. Its model processes need NumPy 1.x, which we keep out of our own.

Layout, under the cache folder::

    triton-2.51.0-py3.11-<digest of the pins>/
        venv/          a virtual environment, which cannot be moved: it is made in place
        lib/           a link to the libpython that the stubs load, and nothing else
        ready.json     written last: without it the rest is a broken-off install, and is made again
    triton-2.51.0-py3.11-<digest>.log, .lock
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.errors import EnvironmentFault, ToolMissing
from specdeploy.findings import Finding
from specdeploy.system.files import locked, tail, write_json_atomic
from specdeploy.system.process import Runner, SubprocessRunner, run_capture
from specdeploy.triton.runtime.interpreters import SERVER_PYTHONS, Interpreter, find_interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdeploy.findings import Severity

TRITON_VERSION: Final = "2.51.0"
# Everything that is installed, and nothing that these merely declare: the server's own Python package, tokenizers' hub
# client and ONNX Runtime's tools are never imported there.
PINS: Final = (
    "nvidia-pytriton==0.7.0",
    "numpy==1.26.4",
    "onnxruntime==1.32.0",
    "onnxruntime-genai==0.18.0",
    "tokenizers==0.23.3",
)
_IMPORTS: Final = "import numpy, onnxruntime, onnxruntime_genai, tokenizers"
_LAYOUT: Final = 1
_READY: Final = "ready.json"
_VENV_TIMEOUT_S: Final = 180.0
_PIP_TIMEOUT_S: Final = 1800.0
_PROBE_TIMEOUT_S: Final = 60.0
_TAIL_LINES: Final = 15
_OLDEST_GLIBC: Final = (2, 35)
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - not a temporary file of ours: where Triton's stubs exchange tensors
_LEAST_SHARED_MEMORY: Final = 64 * 1024 * 1024
_INSTALL: Final = "run `specdeploy runtime install`"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """An installed runtime.

    Args:
        root: Its directory.
        python_version: Version of its model processes' Python, such as ``3.11``.
        version: Version of Triton.
    """

    root: Path
    python_version: str
    version: str = TRITON_VERSION

    @property
    def python(self) -> Path:
        """The interpreter of the model processes; its folder must come first on their PATH."""
        return self.root / "venv" / "bin" / "python3"

    @property
    def library_path(self) -> Path:
        """Folder with libpython, for LD_LIBRARY_PATH."""
        return self.root / "lib"

    @property
    def tritonserver(self) -> Path:
        """The server's program."""
        return self._wheel / "bin" / "tritonserver"

    @property
    def python_backend(self) -> Path:
        """Folder of the python backend's library and utilities, without the stub."""
        return self._wheel / "backends" / "python"

    @property
    def stub(self) -> Path:
        """The program that runs a model's Python; it fits one version of Python only."""
        return self._wheel / "python_backend_stubs" / self.python_version / "triton_python_backend_stub"

    @property
    def _wheel(self) -> Path:
        packages = self.root / "venv" / "lib" / f"python{self.python_version}" / "site-packages"
        return packages / "pytriton" / "tritonserver"

    @property
    def library(self) -> Path:
        """The link to libpython."""
        return self.library_path / f"libpython{self.python_version}.so.1.0"

    def is_ready(self) -> bool:
        """Say whether the install was finished and what it links to is still there."""
        needed = (self.root / _READY, self.python, self.library, self.tritonserver, self.stub, self.python_backend)
        return all(path.exists() for path in needed)


def cache_dir() -> Path:
    """Return the folder that runtimes are kept in.

    $SPECDEPLOY_CACHE_DIR where it is set; else ``cache`` in the virtual environment that we run in, so that both are
    made and deleted together; else ``specdeploy`` in the user's cache.
    """
    chosen = os.environ.get("SPECDEPLOY_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdeploy"


def find_runtime(cache: Path | None = None) -> Runtime | None:
    """Return the installed runtime, the best one if there are several, or None; runs nothing."""
    runtimes = (_runtime(cache or cache_dir(), version) for version in SERVER_PYTHONS)
    return next((runtime for runtime in runtimes if runtime.is_ready()), None)


def install_runtime(
    on_line: Callable[[str], None],
    *,
    cache: Path | None = None,
    runner: Runner | None = None,
    interpreter: Interpreter | None = None,
) -> Runtime:
    """Install the runtime (about 100 MB to download, 380 MB on disk) unless it is there; return it.

    Two installers at once: one waits, and finds the other's. A broken-off install is made again from the start.

    Args:
        on_line: Called with each line of progress.
        cache: Where to; None takes :func:`cache_dir`.
        runner: Runs the steps.
        interpreter: The Python to use; None looks for one.

    Raises:
        ToolMissing: This machine has no Python that the server's model processes can run on.
        EnvironmentFault: A step failed; the message ends with what it said, the hint names the log.
    """
    folder = cache or cache_dir()
    found = find_runtime(folder)
    if found is not None:
        return found
    python = interpreter or find_interpreter()
    runtime = _runtime(folder, python.version)
    with locked(_beside(runtime, ".lock"), on_wait=lambda: on_line("another install is at work; waiting for it")):
        if not runtime.is_ready():
            _install(runtime, python, _Steps(runner or SubprocessRunner(), _beside(runtime, ".log"), on_line))
    return runtime


def runtime_findings(cache: Path | None = None) -> tuple[Finding, ...]:
    """Return what this machine lacks for the embedded runtime, for ``specdeploy doctor``."""
    found = [*_platform_findings(), *_memory_findings()]
    runtime = find_runtime(cache)
    if runtime is None:
        found.append(_finding("error", "runtime.missing", "the embedded Triton runtime is not installed", _INSTALL))
        try:
            find_interpreter()
        except ToolMissing as error:
            found.append(_finding("error", "runtime.python", error.message, error.hint))
    elif runtime.python_version != SERVER_PYTHONS[0]:
        message = (
            f"model processes run on Python {runtime.python_version}, where Triton {runtime.version} is less stable"
        )
        found.append(_finding("info", "runtime.python", message, f"Python {SERVER_PYTHONS[0]} is the better choice"))
    return tuple(found)


class _Steps:
    """Runs the steps of an install: everything to the log, the telling lines to the caller."""

    _TELLING: Final = ("Collecting ", "Downloading ", "Processing ", "Installing ", "Successfully ")

    def __init__(self, runner: Runner, log: Path, on_line: Callable[[str], None]) -> None:
        self._runner = runner
        self.log = log
        self.say = on_line

    def run(self, what: str, argv: Sequence[str], *, timeout_s: float) -> None:
        self.say(what)
        # Isolated from the caller's PYTHONPATH and the like; pip still reads its own configuration and proxies.
        code = self._runner.run(argv, env={}, cwd=None, log=self.log, timeout_s=timeout_s, on_line=self._tell)
        if code != 0:
            raise self.failure(f"{what}: {Path(argv[0]).name} ended with exit code {code}")

    def failure(self, message: str) -> EnvironmentFault:
        """Return the error for a step that failed, with the end of the log."""
        said = "\n".join(f"  {line}" for line in tail(self.log, _TAIL_LINES))
        return EnvironmentFault(f"{message}\n{said}", hint=f"the whole log is {self.log}")

    def _tell(self, line: str) -> None:
        text = line.strip()
        if text.startswith(self._TELLING):
            self.say(text)


def _runtime(cache: Path, python_version: str) -> Runtime:
    digest = hashlib.sha256("\n".join((*PINS, f"layout {_LAYOUT}")).encode()).hexdigest()[:12]
    return Runtime(root=cache / f"triton-{TRITON_VERSION}-py{python_version}-{digest}", python_version=python_version)


def _beside(runtime: Runtime, suffix: str) -> Path:
    return runtime.root.with_name(runtime.root.name + suffix)


def _install(runtime: Runtime, python: Interpreter, steps: _Steps) -> None:
    """Make the runtime's directory from nothing; on failure nothing of it is left but the log."""
    try:
        shutil.rmtree(runtime.root, ignore_errors=True)
        steps.log.unlink(missing_ok=True)
        runtime.library_path.mkdir(parents=True)
        _populate(runtime, python, steps)
        _verify(runtime, steps)
        facts = {"triton": TRITON_VERSION, "python": str(python.path), "pins": list(PINS)}
        write_json_atomic(runtime.root / _READY, facts)
    except OSError as error:
        raise EnvironmentFault(f"the Triton runtime could not be written to {runtime.root}: {error}") from error
    finally:
        if not runtime.is_ready():
            shutil.rmtree(runtime.root, ignore_errors=True)


def _populate(runtime: Runtime, python: Interpreter, steps: _Steps) -> None:
    venv = runtime.root / "venv"
    steps.run(
        f"making an environment with {python.path} (Python {python.version})",
        [str(python.path), "-I", "-m", "venv", str(venv)],
        timeout_s=_VENV_TIMEOUT_S,
    )
    # --no-deps throughout: the list is complete for what is imported, and what the wheels declare beyond it is heavy
    # and partly contradicts itself.
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off"]
    steps.run(
        "installing Triton and the CPU engine's runtime",
        [str(runtime.python), "-I", "-m", "pip", "--disable-pip-version-check", "install", *options, *PINS],
        timeout_s=_PIP_TIMEOUT_S,
    )
    runtime.library.symlink_to(python.library)


def _verify(runtime: Runtime, steps: _Steps) -> None:
    """Run what was installed once, so that a runtime that cannot work here is never called ready."""
    steps.run("checking that it runs", [str(runtime.python), "-I", "-c", _IMPORTS], timeout_s=_PROBE_TIMEOUT_S)
    answer = run_capture([str(runtime.tritonserver), "--help"], timeout_s=_PROBE_TIMEOUT_S)
    if "Usage: tritonserver" not in answer.output:
        raise EnvironmentFault(
            f"the installed tritonserver does not run here: {answer.output[-300:] or 'it printed nothing'}",
            hint=f"it needs x86-64 Linux with glibc {'.'.join(map(str, _OLDEST_GLIBC))} or newer",
        )


def _platform_findings() -> list[Finding]:
    wanted = ".".join(map(str, _OLDEST_GLIBC))
    library, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if (
        platform.system() == "Linux"
        and platform.machine() == "x86_64"
        and library == "glibc"
        and numbers >= _OLDEST_GLIBC
    ):
        return []
    seen = f"{platform.system()} on {platform.machine()}, {library or 'unknown C library'} {version}".strip()
    hint = "use the container image, or another machine"
    return [_finding("error", "runtime.platform", f"needs x86-64 Linux with glibc {wanted}; this is {seen}", hint)]


def _memory_findings() -> list[Finding]:
    try:
        facts = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return [_finding("error", "runtime.shared-memory", f"{_SHARED_MEMORY} cannot be used", "mount a tmpfs there")]
    free = facts.f_bavail * facts.f_frsize
    if free >= _LEAST_SHARED_MEMORY:
        return []
    message = f"{_SHARED_MEMORY} has {free // 2**20} MiB free; models exchange tensors there"
    return [_finding("warning", "runtime.shared-memory", message, "in a container: --shm-size=1g")]


def _finding(severity: Severity, code: str, message: str, hint: str) -> Finding:
    return Finding(severity=severity, code=code, message=message, hint=hint, where="profile cpu")
