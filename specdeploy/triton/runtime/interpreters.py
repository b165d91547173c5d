"""Finds a Python that Triton's model processes can run on.

Knows what such a Python needs: a version that the server's stubs and the pinned packages are built for, ``venv``, a
shared ``libpython`` for the stub to link, and that it really runs (a pyenv shim on PATH need not). Installs nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ToolMissing
from specdeploy.system.process import run_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Best first. With the stubs of Triton 2.51, responses can crash a 3.12 process in ways that 3.11 survives; 3.13 has no
# NumPy 1.x, which these stubs need; ONNX Runtime GenAI 0.18 has no build for 3.10.
SERVER_PYTHONS: Final = ("3.11", "3.12")
_PROBE: Final = """
import json, os, sys, sysconfig
get = sysconfig.get_config_var
name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
folders = [get("LIBDIR") or "", os.path.join(sys.base_prefix, "lib"), os.path.join(sys.base_prefix, "lib64")]
found = [p for p in (os.path.join(f, name) for f in folders) if os.path.exists(p)]
try:
    import ensurepip, venv
    has_venv = True
except ImportError:
    has_venv = False
print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "library": found[:1], "venv": has_venv}))
"""
_PROBE_TIMEOUT_S: Final = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python that will do.

    Args:
        path: The program.
        version: Such as ``3.11``.
        library: Its ``libpython3.x.so.1.0``.
    """

    path: Path
    version: str
    library: Path


def find_interpreter(probe: Callable[[Path], Interpreter | str] | None = None) -> Interpreter:
    """Return the best Python of this machine for the server.

    Args:
        probe: Returns the interpreter at a path, or why it will not do; None runs it.

    Raises:
        ToolMissing: None will do; the message names those that were tried, and why.
    """
    tried: list[str] = []
    for version in SERVER_PYTHONS:
        for path in dict.fromkeys(_candidates(version)):
            answer = (probe or probe_interpreter)(path)
            if isinstance(answer, Interpreter) and answer.version == version:
                return answer
            reason = answer if isinstance(answer, str) else f"is Python {answer.version}"
            tried.append(f"{path} {reason}")
    wanted = " or ".join(SERVER_PYTHONS)
    raise ToolMissing(
        f"the embedded Triton runtime needs Python {wanted}; tried: {'; '.join(tried) or 'found none'}",
        hint=f"install Python {SERVER_PYTHONS[0]} with its venv module and shared library, and put it on PATH",
    )


def probe_interpreter(path: Path) -> Interpreter | str:
    """Run a Python and return what it is, or why it will not do."""
    captured = run_capture([str(path), "-I", "-c", _PROBE], timeout_s=_PROBE_TIMEOUT_S)
    lines = captured.output.splitlines()
    if not captured.ok or not lines:
        return "does not run"
    try:
        facts = json.loads(lines[-1])
    except ValueError:
        return f"does not answer like a Python: {lines[-1][:80]!r}"
    if not facts["venv"]:
        return "has no venv and ensurepip (on Debian: the package python3-venv)"
    if not facts["library"]:
        return "has no shared libpython"
    return Interpreter(path=path, version=facts["version"], library=Path(facts["library"][0]))


def _candidates(version: str) -> Iterator[Path]:
    """Yield where a Python of *version* may be, ours first."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        yield Path(sys.executable)
    name = f"python{version}"
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and os.access(Path(folder, name), os.X_OK):
            yield Path(folder, name)
    home = Path.home()
    yield from sorted(Path(os.environ.get("PYENV_ROOT", home / ".pyenv"), "versions").glob(f"{version}.*/bin/{name}"))
    yield from sorted((home / ".local/share/uv/python").glob(f"cpython-{version}.*/bin/{name}"))
