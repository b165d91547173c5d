"""Writes a toolchain into a folder: programs, examples tree, settings."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.toolchain.build import FLAGS
from tests.toolchain.convert_arguments import PARSERS
from tests.toolchain.faults import write_faults
from tests.toolchain.machine import CALLS, SETTINGS
from tests.toolchain.release import family_folder, flags_release

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE: Final = Path(__file__).parent
_FLAG_FILES: Final = _HERE.parent / "data" / "trtllm_build_flags"
_LONGEST_SHEBANG: Final = 120  # Linux cuts the line at 127 bytes
# Loads the copy of this package that lies beside the program, whichever Python runs it.
_PROGRAM: Final = """\
#!{interpreter}
import sys
from pathlib import Path

root = Path(__file__).resolve().parents[{depth}]
sys.path.insert(0, str(root / "lib"))
from tests.toolchain.{module} import main  # noqa: E402

sys.exit(main(sys.argv[1:], root{arguments}))
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toolchain:
    """An installed toolchain.

    Args:
        root: Its folder.
        bin: Folder of ``trtllm-build`` and ``nvidia-smi``.
        examples: The examples tree with the converters.
        release: The TensorRT-LLM release that it plays.
        env: What to set on top of the inherited environment: ``PATH``, with ``bin`` first.
    """

    root: Path
    bin: Path
    examples: Path
    release: str
    env: Mapping[str, str]

    def converter(self, family: str) -> Path:
        """Return the converter of a family, where this release keeps it."""
        return self.examples / family_folder(self.release, family) / "convert_checkpoint.py"

    @property
    def quantizer(self) -> Path:
        """``quantize.py``."""
        return self.examples / "quantization" / "quantize.py"


def install_toolchain(
    root: Path,
    release: str,
    *,
    gpus: int = 1,
    gpu_name: str = "NVIDIA H100 80GB HBM3",
    compute_capability: str = "9.0",
    faults: Mapping[str, str] | None = None,
) -> Toolchain:
    """Write the toolchain of a release into ``root``.

    Args:
        root: A folder, made if missing. Programs find it from where they lie: it may be moved or mounted elsewhere.
        release: The TensorRT-LLM release, 0.16 to 1.2.
        gpus: GPUs that the machine pretends to have; with 0, ``trtllm-build`` and ``quantize.py`` fail.
        gpu_name: Name of each.
        compute_capability: Of each.
        faults: By tool, how it fails; see ``tests/toolchain/faults.py``.

    Raises:
        ValueError: A release, a tool or a fault that there is not.
    """
    flags = _FLAG_FILES / f"trtllm_build_flags_{flags_release(release)}.json"
    root.mkdir(parents=True, exist_ok=True)
    _copy_package(root / "lib")
    shutil.copyfile(flags, root / FLAGS)
    settings = {
        "release": release,
        "gpus": gpus,
        "gpu_name": gpu_name,
        "compute_capability": compute_capability,
    }
    (root / SETTINGS).write_text(json.dumps(settings) + "\n", encoding="utf-8")
    write_faults(root, faults or {})
    _write_program(root, "bin/trtllm-build", "build")
    _write_program(root, "bin/nvidia-smi", "smi")
    _write_program(root, "examples/quantization/quantize.py", "quantize")
    for family in PARSERS:
        _write_program(root, f"examples/{family_folder(release, family)}/convert_checkpoint.py", "convert", family)
    path = os.pathsep.join([str(root / "bin"), os.environ.get("PATH", os.defpath)])
    return Toolchain(root=root, bin=root / "bin", examples=root / "examples", release=release, env={"PATH": path})


def set_faults(toolchain: Toolchain, faults: Mapping[str, str]) -> None:
    """Replace the faults of a toolchain, for the calls from now on."""
    write_faults(toolchain.root, faults)


def read_calls(toolchain: Toolchain) -> list[dict[str, Any]]:
    """Return what was run so far, oldest first: ``tool``, ``program``, ``argv``, ``cwd``, ``pid`` and ``env``."""
    path = toolchain.root / CALLS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _copy_package(lib: Path) -> None:
    """Copy the modules of this package, so that the programs need neither the checkout nor anything installed."""
    package = lib / "tests" / "toolchain"
    package.mkdir(parents=True, exist_ok=True)
    # A real package, not a namespace: some distributions leave a `tests` package in site-packages.
    (lib / "tests" / "__init__.py").touch()
    (package / "__init__.py").touch()
    for module in _HERE.glob("*.py"):
        if module.name not in {"__init__.py", "install.py"}:
            shutil.copyfile(module, package / module.name)


def _write_program(root: Path, relative: str, module: str, *arguments: str) -> None:
    path = root / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _PROGRAM.format(
        interpreter=_interpreter(),
        depth=len(Path(relative).parts) - 1,
        module=module,
        arguments="".join(f", {argument!r}" for argument in arguments),
    )
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _interpreter() -> str:
    """Return the interpreter of the programs: the caller's, isolated from what is installed in it."""
    plain = " " not in sys.executable and len(sys.executable) < _LONGEST_SHEBANG
    return f"{sys.executable} -IS" if plain else "/usr/bin/env python3"
