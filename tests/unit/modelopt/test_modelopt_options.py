"""The command line of the converter: what it takes, and what it refuses before any file is opened."""

from __future__ import annotations

import pytest

from specdeploy.errors import ConfigError
from specdeploy.modelopt.options import parse_options

_BASE = ["--checkpoint", "in", "--output", "out"]


def _parse(*arguments, dtype="float16"):
    return parse_options([*_BASE, "--dtype", dtype, *arguments])


def test_the_short_form_keeps_the_weights_as_they_are_on_one_rank():
    """Nothing is quantised, split or moved to a GPU unless asked for."""
    wanted = _parse()
    assert (wanted.qformat, wanted.kv_cache, wanted.tp_size, wanted.pp_size) == ("full_prec", "auto", 1, 1)
    assert (wanted.device, wanted.is_quantized, wanted.block_size) == ("cpu", False, None)


@pytest.mark.parametrize("arguments", [["--qformat", "fp8"], ["--kv-cache", "int8"]])
def test_scales_need_texts(arguments):
    """Weights and KV cache alike are scaled by what calibration sees."""
    with pytest.raises(ConfigError, match="needs texts to calibrate with") as caught:
        _parse(*arguments)
    assert caught.value.hint == "add --calib-dataset FILE"
    assert _parse(*arguments, "--calib-dataset", "texts.jsonl").is_quantized


def test_float32_is_refused_because_modelopt_would_write_float16():
    """What would silently become something else is not accepted."""
    with pytest.raises(ConfigError, match="--dtype float32: ModelOpt writes float16 and bfloat16 only"):
        _parse(dtype="float32")


def test_a_block_size_belongs_to_awq():
    """It is used where the format leaves it free, has a default there, and is refused elsewhere."""
    awq = ["--qformat", "int4_awq", "--calib-dataset", "texts.txt"]
    assert _parse(*awq).block_size == 128
    assert _parse(*awq, "--awq-block-size", "64").block_size == 64
    with pytest.raises(ConfigError, match="--awq-block-size does not go with --qformat full_prec"):
        _parse("--awq-block-size", "64")


def test_nvfp4_needs_a_gpu():
    """ModelOpt finds that out after calibrating; we say it first."""
    nvfp4 = ["--qformat", "nvfp4", "--calib-dataset", "texts.txt"]
    with pytest.raises(ConfigError, match="packs these weights on a GPU only"):
        _parse(*nvfp4)
    assert _parse(*nvfp4, "--device", "cuda").block_size == 16


@pytest.mark.parametrize("name", ["tp-size", "pp-size", "calib-size", "calib-seq-len", "awq-block-size"])
def test_counts_start_at_one(name):
    """Zero ranks or texts are no ranks or texts."""
    awq = ["--qformat", "int4_awq", "--calib-dataset", "texts.txt"]
    with pytest.raises(ConfigError, match=f"--{name} 0: at least 1 is needed"):
        _parse(*awq, f"--{name}", "0")


def test_everything_wrong_is_told_at_once():
    """One run, one list."""
    with pytest.raises(ConfigError) as caught:
        _parse("--qformat", "nvfp4", "--tp-size", "0", dtype="float32")
    assert caught.value.message.count(";") == 3
    assert caught.value.hint.count(";") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--qformat", "int3"], "invalid choice: 'int3'"),
        (["--tp-size", "two"], "invalid int value: 'two'"),
        (["--tpsize", "2"], "unrecognized arguments: --tpsize 2"),
    ],
)
def test_a_bad_argument_reads_like_every_other_error(arguments, message):
    """An error of ours with a hint, not argparse's usage text."""
    with pytest.raises(ConfigError, match=message) as caught:
        _parse(*arguments)
    assert caught.value.hint == "python -m specdeploy.modelopt --help"
