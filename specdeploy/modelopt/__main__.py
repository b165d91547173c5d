"""``python -m specdeploy.modelopt``: a Hugging Face checkpoint becomes a TensorRT-LLM checkpoint.

Quantises with ModelOpt where asked to, on local calibration texts; reads safetensors only, runs no code of the
checkpoint, asks no hub. The output folder holds a whole checkpoint afterwards, or nothing.

Exit codes: 0 done, 2 bad checkpoint or arguments, 4 this machine (package missing, disk full) or a failure in ModelOpt.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from specdeploy.modelopt.console import exit_code_of
from specdeploy.modelopt.convert import convert
from specdeploy.modelopt.options import parse_options

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Parse ``argv`` and convert.

    Raises:
        ConfigError: An option, the checkpoint or the calibration set is wrong.
        EnvironmentFault: A package is missing, the disk is full, or ModelOpt failed.
    """
    convert(parse_options(argv, description=(__doc__ or "").partition("\n")[0].replace("``", "")))


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
