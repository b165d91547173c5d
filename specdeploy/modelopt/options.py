"""The command line, parsed into one value. What can be refused without opening a file is refused here."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from specdeploy.errors import ConfigError
from specdeploy.modelopt.formats import AWQ_BLOCK_SIZE, DTYPES, FORMATS, KV_CACHES
from specdeploy.modelopt.refusal import Refusal, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROGRAM: Final = "python -m specdeploy.modelopt"
_COUNTS: Final = ("tp_size", "pp_size", "calib_size", "calib_seq_len", "awq_block_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversion:
    """One conversion that is wanted.

    Args:
        checkpoint: The Hugging Face folder.
        output: The folder to fill; new or empty.
        dtype: Of the weights that are not quantised.
        qformat: A key of ``FORMATS``.
        kv_cache: A key of ``KV_CACHES``.
        tp_size: Ranks that share every layer.
        pp_size: Groups of layers, each on ranks of its own.
        calib_dataset: Texts to calibrate with, where something is quantised.
        calib_size: Texts to use at most.
        calib_seq_len: Tokens of a text to use at most.
        awq_block_size: Weights that share one scale, for the AWQ formats; None is their default.
        device: Where the model runs while it is calibrated.
    """

    checkpoint: Path
    output: Path
    dtype: str
    qformat: str = "full_prec"
    kv_cache: str = "auto"
    tp_size: int = 1
    pp_size: int = 1
    calib_dataset: Path | None = None
    calib_size: int = 512
    calib_seq_len: int = 512
    awq_block_size: int | None = None
    device: str = "cpu"

    @property
    def is_quantized(self) -> bool:
        """Whether anything has scales that come from calibration."""
        return self.qformat != "full_prec" or self.kv_cache != "auto"

    @property
    def block_size(self) -> int | None:
        """Weights along the input dimension that share one scale, or None when the format has no blocks."""
        return self.awq_block_size or FORMATS[self.qformat].block_size


class _Parser(argparse.ArgumentParser):
    """Reports a bad argument as the rest of the program reports an error."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, hint=f"{PROGRAM} --help")


def parse_options(argv: Sequence[str] | None, *, description: str = "") -> Conversion:
    """Return what ``argv`` asks for; None is the command line of the process.

    Raises:
        ConfigError: An argument is unknown, missing or out of range, or two do not go together.
    """
    conversion = Conversion(**vars(_parser(description).parse_args(argv)))
    refuse(_refusals(conversion), ConfigError)
    return conversion


def _parser(description: str) -> _Parser:
    parser = _Parser(prog=PROGRAM, description=description)
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, help="a Hugging Face checkpoint folder with safetensors")
    add("--output", type=Path, required=True, help="a new or empty folder")
    add("--dtype", choices=(*DTYPES, "float32"), required=True, help="of the weights that are not quantised")
    add("--qformat", choices=tuple(FORMATS), default="full_prec", help="of the weights (default full_prec)")
    add("--kv-cache", choices=tuple(KV_CACHES), default="auto", help="type of the KV cache (default auto: as computed)")
    add("--tp-size", type=int, default=1, metavar="N", help="ranks that share every layer (default 1)")
    add("--pp-size", type=int, default=1, metavar="N", help="groups of layers on ranks of their own (default 1)")
    add("--calib-dataset", type=Path, metavar="FILE", help='.jsonl with a "text" in every line, or one text a line')
    add("--calib-size", type=int, default=512, metavar="N", help="texts to use at most (default 512)")
    add("--calib-seq-len", type=int, default=512, metavar="N", help="tokens of a text to use at most (default 512)")
    add("--awq-block-size", type=int, metavar="N", help=f"weights that share one scale (default {AWQ_BLOCK_SIZE})")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where the model runs (default cpu)")
    return parser


def _refusals(wanted: Conversion) -> Iterator[Refusal]:
    """Yield every reason why ``wanted`` cannot be done, whatever the checkpoint is."""
    for name in _COUNTS:
        value = getattr(wanted, name)
        if value is not None and value < 1:
            yield Refusal(message=f"{_option(name)} {value}: at least 1 is needed", hint=f"raise {_option(name)}")
    if wanted.dtype not in DTYPES:
        yield Refusal(
            message=f"--dtype {wanted.dtype}: ModelOpt writes {' and '.join(DTYPES)} only",
            hint=f"use --dtype float16, or TensorRT-LLM's convert_checkpoint.py for {wanted.dtype}",
        )
    if wanted.is_quantized and wanted.calib_dataset is None:
        asked = f"--qformat {wanted.qformat} --kv-cache {wanted.kv_cache}"
        yield Refusal(message=f"{asked} needs texts to calibrate with", hint="add --calib-dataset FILE")
    form = FORMATS[wanted.qformat]
    if wanted.awq_block_size is not None and not form.block_is_free:
        yield Refusal(
            message=f"--awq-block-size does not go with --qformat {wanted.qformat}", hint="leave --awq-block-size out"
        )
    if form.needs_cuda and wanted.device == "cpu":
        yield Refusal(
            message=f"--qformat {wanted.qformat}: ModelOpt packs these weights on a GPU only", hint="use --device cuda"
        )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
