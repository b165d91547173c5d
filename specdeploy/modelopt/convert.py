"""One conversion, from the first check to the published folder. Heavy packages are imported when all else is known."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ToolMissing
from specdeploy.modelopt.calibration import read_texts
from specdeploy.modelopt.console import Progress, in_one_line, say
from specdeploy.modelopt.layout import check_layout
from specdeploy.modelopt.output import filled_at_the_end
from specdeploy.modelopt.packages import INSTALL, is_installed, require_packages
from specdeploy.modelopt.source import check_source, read_source

if TYPE_CHECKING:
    from types import ModuleType

    from specdeploy.modelopt.options import Conversion
    from specdeploy.modelopt.source import Source

# Read when the packages are imported: no hub is ever asked.
_OFFLINE: Final = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def convert(wanted: Conversion) -> None:
    """Make the TensorRT-LLM checkpoint that is ``wanted``, printing progress lines.

    Raises:
        ConfigError: The checkpoint or the calibration set is wrong, or the output folder is not empty.
        EnvironmentFault: A package is missing, the disk is full, or ModelOpt failed.
    """
    source = read_source(wanted.checkpoint)
    check_source(source, wanted, with_tensorrt_llm=is_installed("tensorrt_llm"))
    texts = read_texts(wanted.calib_dataset, wanted.calib_size) if wanted.is_quantized and wanted.calib_dataset else ()
    require_packages()
    with filled_at_the_end(wanted.output) as scratch:
        progress = Progress(5 if wanted.is_quantized else 4)
        progress.step(_summary(source, wanted))
        engine = _engine()
        say(f"    {engine.versions()}")
        progress.step(f"loading the weights as {wanted.dtype}")
        model = engine.load_model(wanted)
        if wanted.is_quantized:
            progress.step(f"calibrating with {len(texts)} texts of at most {wanted.calib_seq_len} tokens")
            engine.quantize(model, wanted, texts)
        progress.step("writing the TensorRT-LLM checkpoint")
        engine.export(model, wanted, source, scratch)
        progress.step("checking what was written")
        check_layout(scratch, wanted, source)
    say(f"wrote {wanted.output}")


def _engine() -> ModuleType:
    """Import what needs torch, with every road to a hub closed.

    Raises:
        ToolMissing: A package is there and cannot be imported.
    """
    os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    try:
        from specdeploy.modelopt import model  # noqa: PLC0415 - only now known to be importable, and slow
    except ImportError as error:
        raise ToolMissing(f"cannot import ModelOpt: {in_one_line(error)}", hint=INSTALL) from error
    return model


def _summary(source: Source, wanted: Conversion) -> str:
    layers = f", {source.layers} layers" if source.layers else ""
    ranks = f"tensor parallel {wanted.tp_size}, pipeline parallel {wanted.pp_size}"
    return f"{source.architecture}{layers}: {wanted.qformat}, KV cache {wanted.kv_cache}, {ranks}"
