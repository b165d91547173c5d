"""Reading config.json: what is understood, what is refused, and the rope tables made from it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from specdeploy.cpu.genai_config import genai_config
from specdeploy.cpu.llama_config import read_llama_config
from specdeploy.cpu.rope import rope_tables
from specdeploy.errors import CheckpointError

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _read(folder, changes=None, generation=None):
    """Read a configuration with some keys changed."""
    (folder / "config.json").write_text(json.dumps(_CONFIG | (changes or {})))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_llama_config(folder)


def test_the_token_ids_of_generation_config_win(tmp_path):
    """Chat models end a turn with other tokens than config.json says."""
    config = _read(tmp_path, generation={"eos_token_id": [5, 6], "pad_token_id": 7})
    assert config.eos_token_ids == (5, 6)
    assert config.pad_token_id == 7


def test_the_head_size_may_differ_from_the_width_per_head(tmp_path):
    """An explicit head_dim wins over hidden_size / num_attention_heads."""
    assert _read(tmp_path).head_dim == 16
    assert _read(tmp_path, {"head_dim": 32}).head_dim == 32


@pytest.mark.parametrize("changes", [{"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5}}])
def test_the_rope_base_is_read_under_both_spellings(tmp_path, changes):
    """Old configurations have a key of their own, new ones a mapping."""
    assert _read(tmp_path, changes).rope_theta == 5e5


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8},
        {"architectures": []},
        {"sliding_window": 16},
        {"num_local_experts": 4},
        {"hidden_act": "gelu"},
        {"quantization_config": {"quant_method": "awq"}},
        {"partial_rotary_factor": 0.5},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        {"head_dim": 24},
    ],
)
def test_what_would_change_the_numbers_is_refused_by_name(tmp_path, changes):
    """The error names the key and the value, and says what to do."""
    with pytest.raises(CheckpointError, match=f"{next(iter(changes))} .*is not supported") as caught:
        _read(tmp_path, changes)
    assert "onnxruntime_genai.models.builder" in caught.value.hint


def test_a_window_as_long_as_the_context_is_no_window(tmp_path):
    """Such a window never hides a token."""
    assert _read(tmp_path, {"sliding_window": 64}).max_positions == 64


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"hidden_size": None}, "cannot be understood"),
        ({"rope_scaling": {"rope_type": "linear"}}, "cannot be understood, at 'factor'"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
    ],
)
def test_a_configuration_that_makes_no_model_is_refused(tmp_path, changes, seen):
    """Missing numbers and impossible ones are named."""
    with pytest.raises(CheckpointError, match=seen):
        _read(tmp_path, changes)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_file_is_refused(tmp_path, text):
    """Text that is not a JSON object is a checkpoint error, not a traceback."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_llama_config(tmp_path)


def test_a_folder_without_configuration_is_refused(tmp_path):
    """The error names the file that is missing."""
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        read_llama_config(tmp_path)


def test_plain_rope_tables_are_the_angles_of_the_paper(tmp_path):
    """Position p, pair i: the angle is p * theta ** (-2 i / head_dim)."""
    cos, sin = rope_tables(_read(tmp_path, {"rope_theta": 10000.0}))
    assert cos.shape == sin.shape == (64, 8)
    assert cos[3, 2] == pytest.approx(math.cos(3 * 10000.0 ** (-4 / 16)))
    assert sin[63, 7] == pytest.approx(math.sin(63 * 10000.0 ** (-14 / 16)))


def test_linear_scaling_stretches_positions(tmp_path):
    """With factor 4, position 8 is where position 2 was."""
    plain, _ = rope_tables(_read(tmp_path))
    scaled, _ = rope_tables(_read(tmp_path, {"rope_scaling": {"type": "linear", "factor": 4.0}}))
    np.testing.assert_allclose(scaled[8], plain[2], rtol=1e-6)


def test_llama3_scaling_keeps_fast_pairs_and_slows_slow_ones(tmp_path):
    """Pairs that turn 4 times within the old context keep their angle, those that turn less than once get 1/8."""
    _, plain = rope_tables(_read(tmp_path))
    _, scaled = rope_tables(_read(tmp_path, {"rope_scaling": _LLAMA3}))
    turns = 32 * 10000.0 ** (-np.arange(8) / 8) / (2 * math.pi)
    assert (turns >= 4).any()
    assert (turns <= 1).any()
    np.testing.assert_allclose(scaled[8, turns >= 4], plain[8, turns >= 4], rtol=1e-6)
    np.testing.assert_allclose(scaled[8, turns <= 1], plain[1, turns <= 1], rtol=1e-6)


def test_the_engine_configuration_has_what_verification_needs(tmp_path):
    """One shared key-value buffer, the context of the model, end and padding ids, idle threads that do not spin."""
    value = genai_config(_read(tmp_path, generation={"eos_token_id": [2, 5]}), threads=3)
    assert value["search"]["past_present_share_buffer"] is True
    assert value["search"]["max_length"] == value["model"]["context_length"] == 64
    assert (value["model"]["eos_token_id"], value["model"]["pad_token_id"]) == ([2, 5], 2)
    assert "bos_token_id" not in value["model"]
    options = value["model"]["decoder"]["session_options"]
    assert (options["intra_op_num_threads"], options["session.force_spinning_stop"]) == (3, "1")
