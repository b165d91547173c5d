"""``python -m specdeploy.cpu.compile``: a Llama-family checkpoint becomes an engine of ONNX Runtime GenAI.

Reads config.json, safetensors and the tokenizer of a Hugging Face folder; writes a folder that
``onnxruntime_genai.Model`` loads. Needs neither torch nor transformers. The output folder is the caller's to publish
or to throw away: nothing is cleaned up here.

Exit codes: 0 done, 2 bad checkpoint or arguments, 4 this machine (disk full, package missing).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.cpu.console import exit_code_of
from specdeploy.cpu.packages import require_packages

if TYPE_CHECKING:
    from collections.abc import Sequence

PRECISIONS: Final = ("fp32", "int8", "int4")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse ``argv`` and compile.

    Raises:
        ConfigError: The checkpoint cannot be compiled, or the output folder is not empty.
        EnvironmentFault: A package is missing, or the disk is full.
    """
    parser = argparse.ArgumentParser(prog="python -m specdeploy.cpu.compile", description=_summary())
    parser.add_argument("--checkpoint", type=Path, required=True, help="a Hugging Face checkpoint folder")
    parser.add_argument("--precision", choices=PRECISIONS, required=True, help="of the matrix products")
    parser.add_argument("--output", type=Path, required=True, help="a new or empty folder")
    parser.add_argument("--threads", type=int, default=2, help="threads inside an operator (default 2)")
    arguments = parser.parse_args(argv)
    if arguments.threads < 1:
        parser.error(f"--threads {arguments.threads}: at least 1 is needed")
    require_packages("compiling a checkpoint", "numpy", "onnx")
    from specdeploy.cpu.llama_compiler import compile_checkpoint  # noqa: PLC0415 - only now known to be importable

    compile_checkpoint(arguments.checkpoint, arguments.precision, arguments.output, threads=arguments.threads)


def _summary() -> str:
    """Return the first line of the module's documentation, without its markup."""
    return (__doc__ or "").partition("\n")[0].replace("``", "")


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
