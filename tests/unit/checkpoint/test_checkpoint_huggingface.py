"""config.json of several families and generations of transformers to one set of fields."""

from __future__ import annotations

import pytest

from specdeploy.checkpoint.huggingface import BadConfig, model_fields, token_ids
from tests.unit.checkpoint.folders import CONFIG


def _without(*names):
    return {key: value for key, value in CONFIG.items() if key not in names}


def test_defaults_are_those_of_transformers():
    """As many key-value heads as heads, heads of hidden/heads, four times the width, theta 10000."""
    fields = model_fields(_without("num_key_value_heads", "intermediate_size", "rope_theta", "rms_norm_eps"))

    assert (fields.num_kv_heads, fields.head_dim, fields.intermediate_size) == (4, 2, 32)
    assert (fields.rope_theta, fields.rms_norm_eps) == (10000.0, 1e-6)


def test_an_explicit_head_size_wins():
    """Some families have heads that are wider than hidden size over heads."""
    assert model_fields({**CONFIG, "head_dim": 128}).head_dim == 128


def test_gpt2_names_are_understood():
    """The older spelling of the same sizes."""
    gpt2 = {"architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}

    fields = model_fields({**gpt2, "vocab_size": 50257, "n_inner": None, "layer_norm_epsilon": 1e-5})

    assert (fields.hidden_size, fields.num_layers, fields.max_position_embeddings) == (768, 12, 1024)
    assert (fields.intermediate_size, fields.rms_norm_eps) == (3072, 1e-5)


def test_the_language_part_of_a_multimodal_checkpoint_counts():
    """Its sizes are kept under `text_config`."""
    inner = _without("architectures")

    fields = model_fields({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": inner})

    assert (fields.architecture, fields.hidden_size) == ("Gemma3ForConditionalGeneration", 8)


def test_rope_parameters_of_transformers_5():
    """Theta and scaling moved into one object; its default type is no scaling."""
    plain = {"rope_theta": 1e6, "rope_type": "default"}
    scaled = {"rope_theta": 1e6, "rope_type": "llama3", "factor": 8.0}

    assert model_fields({**_without("rope_theta"), "rope_parameters": plain}).rope_theta == 1e6
    assert model_fields({**_without("rope_theta"), "rope_parameters": plain}).rope_scaling is None
    assert model_fields({**_without("rope_theta"), "rope_parameters": scaled}).rope_scaling == scaled


def test_rope_scaling_of_transformers_4():
    """The scaling is passed on as it stands."""
    assert model_fields({**CONFIG, "rope_scaling": {"type": "linear", "factor": 2.0}}).rope_scaling == {
        "type": "linear",
        "factor": 2.0,
    }


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({}, None),
        ({"sliding_window": None}, None),
        ({"sliding_window": 4096}, 4096),
        ({"sliding_window": 131072, "use_sliding_window": False}, None),
        ({"sliding_window": 1024, "layer_types": ["full_attention"]}, None),
        ({"sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"]}, 1024),
    ],
)
def test_a_sliding_window_counts_only_where_it_is_used(changes, window):
    """Qwen2 names one and switches it off; newer folders list what each layer does."""
    assert model_fields({**CONFIG, **changes}).sliding_window == window


@pytest.mark.parametrize("key", ["num_local_experts", "num_experts", "n_routed_experts"])
def test_experts_of_every_spelling(key):
    """Mixtral, Qwen and DeepSeek."""
    assert model_fields({**CONFIG, key: 8}).num_experts == 8
    assert model_fields(CONFIG).num_experts is None


def test_weights_that_are_quantised_already():
    """The method is kept, in small letters."""
    assert model_fields({**CONFIG, "quantization_config": {"quant_method": "AWQ", "bits": 4}}).quant_method == "awq"
    assert model_fields(CONFIG).quant_method is None


def test_heads_that_cannot_be_shared_are_refused():
    """Grouped-query attention needs a whole number of heads for each key-value head."""
    with pytest.raises(BadConfig, match="4 heads cannot share 3"):
        model_fields({**CONFIG, "num_key_value_heads": 3})


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [3]])
def test_an_architecture_is_needed(architectures):
    """Nothing is guessed from the model type."""
    with pytest.raises(BadConfig, match="architectures must be a list"):
        model_fields({**CONFIG, "architectures": architectures})


@pytest.mark.parametrize(
    ("value", "ids"),
    [(None, ()), (-1, ()), (0, (0,)), ([2, 7], (2, 7)), ([2, None], (2,)), (True, ()), ("2", ())],
)
def test_token_ids_of_every_spelling(value, ids):
    """One id, several, or none, where older folders write -1 for none."""
    assert token_ids(value) == ids
