"""What is refused by a look at a checkpoint's ``config.json``, before weights are loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdeploy.errors import CheckpointError
from specdeploy.modelopt.options import Conversion
from specdeploy.modelopt.source import Source, check_source, read_source

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
}


def _folder(tmp_path, config=_LLAMA, weights="model.safetensors"):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / weights).touch()
    return tmp_path


def _check(source, *, with_tensorrt_llm=False, **wanted):
    check_source(
        source,
        Conversion(checkpoint=Path("in"), output=Path("out"), dtype="float16", **wanted),
        with_tensorrt_llm=with_tensorrt_llm,
    )


@pytest.fixture
def llama(tmp_path):
    """The sizes above, as they are read."""
    return read_source(_folder(tmp_path))


def test_sizes_are_read_and_the_head_is_derived(llama):
    """A head is as wide as the heads share the width, unless the checkpoint says otherwise."""
    assert llama == Source(
        architecture="LlamaForCausalLM",
        layers=6,
        hidden=1024,
        intermediate=2816,
        heads=16,
        kv_heads=4,
        head_dim=64,
    )


def test_what_is_not_said_is_not_known(tmp_path):
    """A key and value head for every query head is the one default that every family has."""
    source = read_source(_folder(tmp_path, {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 8}))
    assert (source.kv_heads, source.layers, source.head_dim) == (8, None, None)
    _check(source, tp_size=2, pp_size=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read .*config.json"),
        ("[]", "is not a JSON object"),
        ("{}", "names no architecture"),
        ('{"architectures": []}', "names no architecture"),
    ],
)
def test_a_config_that_says_nothing_is_refused(tmp_path, text, message):
    """Each in one line that names the file."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_source(tmp_path)


def test_a_folder_that_is_none_is_refused(tmp_path):
    """The system's own words, and the path."""
    with pytest.raises(CheckpointError, match=r"cannot read .*missing/config\.json: No such file"):
        read_source(tmp_path / "missing")


def test_pickled_weights_are_refused(tmp_path):
    """They can run code when they are loaded."""
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file"):
        read_source(_folder(tmp_path, weights="pytorch_model.bin"))


def test_an_architecture_is_refused_by_name_unless_tensorrt_llm_helps():
    """ModelOpt alone knows a few; beside TensorRT-LLM it asks that for the configuration."""
    qwen = Source(architecture="Qwen2ForCausalLM")
    with pytest.raises(CheckpointError, match="Qwen2ForCausalLM: ModelOpt alone converts LlamaForCausalLM, Mistral"):
        _check(qwen)
    _check(qwen, with_tensorrt_llm=True)


def test_a_quantised_checkpoint_is_refused(tmp_path):
    """Quantising twice multiplies the errors."""
    source = read_source(_folder(tmp_path, _LLAMA | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(CheckpointError, match=r"already quantised \(gptq\)"):
        _check(source)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"tp_size": 3}, "--tp-size 3 does not divide the attention heads, 16"),
        ({"tp_size": 3}, "--tp-size 3 and the 4 key and value heads do not divide one another"),
        ({"pp_size": 4}, "--pp-size 4 does not divide the layers, 6"),
        ({"tp_size": 8, "qformat": "int8_sq"}, "int8_sq cannot share 4 key and value heads among 8 ranks"),
        ({"tp_size": 4, "qformat": "int4_awq"}, "feed-forward width, 2816 / 4, is no multiple of .* block of 128"),
        ({"qformat": "int4_awq", "awq_block_size": 96}, "the width, 1024 / 1, is no multiple of .* block of 96"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(llama, wanted, message):
    """Every one with the numbers that clash."""
    with pytest.raises(CheckpointError, match=message):
        _check(llama, **wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        {"tp_size": 8},
        {"tp_size": 8, "qformat": "fp8"},
        {"tp_size": 4, "qformat": "int8_sq"},
        {"tp_size": 4, "pp_size": 3},
        {"tp_size": 2, "qformat": "int4_awq"},
        {"tp_size": 4, "qformat": "int4_awq", "awq_block_size": 64},
        {"tp_size": 4, "qformat": "nvfp4", "device": "cuda"},
    ],
)
def test_sizes_that_divide_are_not(llama, wanted):
    """Also more ranks than key heads, where a scale does not stand in the way."""
    _check(llama, **wanted)
