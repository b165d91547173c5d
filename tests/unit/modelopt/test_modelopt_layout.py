"""Reading back what was written: every way in which it can differ from what was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdeploy.errors import BuildFailed
from specdeploy.modelopt.layout import check_layout
from specdeploy.modelopt.options import Conversion
from specdeploy.modelopt.source import Source

_CONFIG = {
    "architecture": "LlamaForCausalLM",
    "dtype": "float16",
    "hidden_act": "silu",
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 16,
    "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1, "moe_tp_size": 2},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "INT8", "exclude_modules": ["lm_head"]},
}


def _weights(data=b"\0" * 4):
    header = json.dumps({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + data


@pytest.fixture
def folder(tmp_path):
    """Two ranks in FP8 with an INT8 KV cache, as asked for below."""
    (tmp_path / "config.json").write_text(json.dumps(_CONFIG))
    for rank in range(2):
        (tmp_path / f"rank{rank}.safetensors").write_bytes(_weights())
    return tmp_path


def _check(folder, **other):
    asked = {"dtype": "float16", "qformat": "fp8", "kv_cache": "int8", "tp_size": 2} | other
    source = Source(architecture="LlamaForCausalLM", layers=2)
    check_layout(folder, Conversion(checkpoint=Path("in"), output=Path("out"), **asked), source)


def test_what_was_asked_for_passes(folder):
    """Further keys are TensorRT-LLM's business."""
    _check(folder)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"dtype": "bfloat16"}, "dtype is 'float16', not 'bfloat16'"),
        ({"qformat": "int8_sq"}, "quantization.quant_algo is 'FP8', not 'W8A8_SQ_PER_CHANNEL'"),
        ({"qformat": "full_prec"}, "quantization.quant_algo is 'FP8', not None"),
        ({"kv_cache": "auto"}, "quantization.kv_cache_quant_algo is 'INT8', not None"),
        ({"tp_size": 1, "pp_size": 2}, "mapping.tp_size is 2, not 1; mapping.pp_size is 1, not 2"),
        ({"tp_size": 1}, "rank1.safetensors is one rank too many"),
        ({"pp_size": 2}, "rank2.safetensors is missing; rank3.safetensors is missing"),
    ],
)
def test_what_was_not_asked_for_is_named(folder, asked, message):
    """With what is there and what should be."""
    with pytest.raises(BuildFailed, match=message):
        _check(folder, **asked)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": None}, "config.json lacks vocab_size"),
        ({"num_hidden_layers": 4}, "num_hidden_layers is 4, not 2"),
        ({"mapping": None}, "mapping.world_size is None, not 2"),
    ],
)
def test_a_config_that_cannot_be_right_is_refused(folder, change, message):
    """What TensorRT-LLM needs is there, and the layers are all there."""
    (folder / "config.json").write_text(json.dumps(_CONFIG | change))
    with pytest.raises(BuildFailed, match=message):
        _check(folder)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_config_that_is_none_is_refused(folder, text):
    """No JSON, or JSON of another kind."""
    (folder / "config.json").write_text(text)
    with pytest.raises(BuildFailed, match=r"config\.json"):
        _check(folder)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "rank1.safetensors has no header"),
        (b"\xff" * 64, "rank1.safetensors has no header"),
        ((2).to_bytes(8, "little") + b"[]", "rank1.safetensors has a damaged header"),
        ((2).to_bytes(8, "little") + b"{}", "rank1.safetensors holds no tensor"),
        (_weights(b"\0"), "rank1.safetensors is .* bytes long, not the"),
        (_weights(b"\0" * 9), "rank1.safetensors is .* bytes long, not the"),
    ],
)
def test_a_damaged_rank_is_refused(folder, contents, message):
    """Cut short, run over, or no safetensors file at all."""
    (folder / "rank1.safetensors").write_bytes(contents)
    with pytest.raises(BuildFailed, match=message):
        _check(folder)
