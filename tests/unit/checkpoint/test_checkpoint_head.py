"""Draft heads: what each published layout is recognised as, and what is said about a head and a target."""

from __future__ import annotations

import json

import pytest

from specdeploy.checkpoint.head_compat import check_head
from specdeploy.checkpoint.read_head import read_head
from specdeploy.errors import CheckpointError
from tests.unit.checkpoint.folders import info, safetensors, write_json

LAYER = {
    "self_attn.q_proj.weight": (8, 8),
    "mlp.down_proj.weight": (8, 16),
    "post_attention_layernorm.weight": (8,),
}
EAGLE = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 6}
EAGLE_TENSORS = {
    "embed_tokens.weight": (6, 8),
    "fc.weight": (8, 16),
    "fc.bias": (8,),
    **{f"layers.0.{name}": shape for name, shape in LAYER.items()},
}
EAGLE3 = {**EAGLE, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 4}
EAGLE3_TENSORS = {
    "fc.weight": (8, 24),
    "lm_head.weight": (4, 8),
    "d2t": (4,),
    "t2d": (6,),
    "norm.weight": (8,),
    **{f"midlayer.{name}": shape for name, shape in LAYER.items()},
}
MEDUSA = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/big"}
REDRAFTER = {"hidden_size": 8, "exit_dim": 16, "num_draft_layers": 2, "rnn": True, "vocab_size": 6}
REDRAFTER_TENSORS = {
    "lm_head.0.linear.weight": (16, 16),
    "lm_head.0.linear.bias": (16,),
    "lm_head.1.linear.weight": (16, 16),
    "lm_head.1.linear.bias": (16,),
    "lm_head.2.weight": (6, 16),
    "rnn_u.weight": (8, 8),
    "rnn_u.bias": (8,),
    "rnn_w.weight": (8, 8),
}
SPECULATORS = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 4,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "meta/big"}},
    "transformer_layer_config": {"hidden_size": 8, "vocab_size": 6, "num_hidden_layers": 1},
}
TARGET = info()


def _medusa_tensors(heads, prefix=""):
    layers = {"0.linear.weight": (8, 8), "0.linear.bias": (8,), "1.weight": (6, 8)}
    return {f"{prefix}{head}.{name}": shape for head in range(heads) for name, shape in layers.items()}


def _write(path, config, tensors, name=None):
    path.mkdir(parents=True, exist_ok=True)
    name = name or ("medusa_lm_head.safetensors" if "medusa_num_heads" in config else "model.safetensors")
    write_json(path / "config.json", config)
    (path / name).write_bytes(safetensors(tensors))
    return path


def _head(path, config, tensors, **without):
    return read_head(_write(path / "head", config, tensors, **without))


def _codes(head, target=TARGET, **changes):
    return [(found.severity, found.code) for found in check_head(target, head, **{"method": head.kind} | changes)]


def _bad(head, target=TARGET, **changes):
    return [found for found in _codes(head, target, **changes) if found[0] != "info"]


def test_an_eagle_head_is_told_from_its_fusing_layer(tmp_path):
    """A layer that reads an embedding and a hidden state side by side, with its bias."""
    head = _head(tmp_path, EAGLE, EAGLE_TENSORS)

    assert (head.kind, head.name, head.path) == ("eagle", "head", str(tmp_path / "head"))
    assert (head.hidden_size, head.target_hidden_size, head.vocab_size) == (8, 8, 6)
    assert (head.num_layers, head.has_fc_bias, head.base_model, head.dtype) == (1, True, None, "float32")
    assert head.parameters == 6 * 8 + 8 * 16 + 8 + 8 * 8 + 8 * 16 + 8
    assert _bad(head) == []


def test_an_eagle_head_without_a_bias_is_refused_for_the_engine_flow(tmp_path):
    """TensorRT-LLM's converter dies on it with a KeyError; the cure computes the same."""
    tensors = {name: shape for name, shape in EAGLE_TENSORS.items() if name != "fc.bias"}
    head = _head(tmp_path, EAGLE, tensors)

    (found,) = (found for found in check_head(TARGET, head, method="eagle") if found.severity == "error")

    assert (found.code, head.has_fc_bias) == ("head.no-fc-bias", False)
    assert "KeyError: 'fc.bias'" in found.message
    assert "zeros" in found.hint


def test_an_eagle3_head_reads_three_hidden_states_and_proposes_a_part_of_the_vocabulary(tmp_path):
    """Its index tables are no parameters, and a smaller draft vocabulary is normal."""
    head = _head(tmp_path, EAGLE3, EAGLE3_TENSORS)

    assert (head.kind, head.hidden_size, head.target_hidden_size, head.num_layers) == ("eagle3", 8, 8, 1)
    assert (head.vocab_size, head.draft_vocab_size) == (6, 4)
    assert ("info", "head.draft-vocabulary") in _codes(head)
    assert _bad(head) == []


def test_an_eagle3_head_may_be_narrower_than_its_target(tmp_path):
    """What counts is the width that its fusing layer reads, over the layers that the configuration lists."""
    config = {**EAGLE3, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4]}}
    head = _head(tmp_path, config, {**EAGLE3_TENSORS, "fc.weight": (8, 32)})

    assert (head.hidden_size, head.target_hidden_size) == (8, 16)
    assert _bad(head, info(hidden_size=16)) == []
    assert _bad(head) == [("error", "head.hidden-size-differs")]


@pytest.mark.parametrize("prefix", ["", "medusa_head.", "medusa_heads."])
def test_medusa_heads_are_counted_in_the_weights(tmp_path, prefix):
    """The published configuration says 2 where the weights hold 5; both numbers are kept and named."""
    head = _head(tmp_path, MEDUSA, _medusa_tensors(5, prefix))

    assert (head.kind, head.num_heads_in_config, head.num_heads_in_weights, head.num_layers) == ("medusa", 2, 5, 1)
    assert (head.hidden_size, head.vocab_size, head.base_model) == (8, 6, "lmsys/big")
    assert _bad(head, num_heads=4) == [("warning", "head.medusa-count")]
    assert _bad(head, num_heads=6) == [("error", "head.medusa-too-few"), ("warning", "head.medusa-count")]


def test_medusa_weights_elsewhere_are_refused(tmp_path):
    """Converters open `medusa_lm_head.safetensors` and nothing else, after they have looked for the pickle."""
    folder = _write(tmp_path / "head", MEDUSA, _medusa_tensors(2), name="model.safetensors")
    with pytest.raises(CheckpointError, match=r"in model\.safetensors") as caught:
        read_head(folder)
    assert (caught.value.code, caught.value.hint) == (
        "checkpoint.file-name",
        "Rename the file to medusa_lm_head.safetensors.",
    )
    (folder / "model.safetensors").rename(folder / "medusa_lm_head.safetensors")
    assert read_head(folder).num_heads_in_weights == 2

    (folder / "medusa_lm_head.pt").write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match="converters open the pickle") as caught:
        read_head(folder)
    assert caught.value.code == "checkpoint.pickle"


def test_a_medusa_pickle_is_to_become_what_the_converter_opens(tmp_path):
    """The cure names the file by the name that it needs."""
    folder = _write(tmp_path / "head", MEDUSA, _medusa_tensors(2))
    (folder / "medusa_lm_head.safetensors").rename(folder / "medusa_lm_head.pt")

    with pytest.raises(CheckpointError, match="only as pickles") as caught:
        read_head(folder)

    assert '"medusa_lm_head.safetensors"), and remove medusa_lm_head.pt.' in caught.value.hint


def test_a_redrafter_head(tmp_path):
    """Recurrent, with the keys that TensorRT-LLM's converter reads."""
    head = _head(tmp_path, REDRAFTER, REDRAFTER_TENSORS)

    assert (head.kind, head.hidden_size, head.vocab_size, head.num_layers) == ("redrafter", 8, 6, 2)
    assert _bad(head) == []


def test_a_redrafter_head_that_contradicts_itself_is_refused(tmp_path):
    """Everything that is wrong is said at once."""
    config = {**REDRAFTER, "exit_dim": 8, "num_draft_layers": 3, "rnn": "yes"}

    with pytest.raises(CheckpointError) as caught:
        _head(tmp_path, config, REDRAFTER_TENSORS)

    assert "num_draft_layers is 3, the weights hold 2" in caught.value.message
    assert "exit_dim is 8, the output layer reads 16 values" in caught.value.message
    assert "rnn must be true or false, it is 'yes'" in caught.value.message


def test_a_head_in_the_speculators_format(tmp_path):
    """The sizes are nested there, and the target is named as the verifier."""
    head = _head(tmp_path, SPECULATORS, EAGLE3_TENSORS)

    assert (head.kind, head.base_model, head.hidden_size) == ("speculators-eagle3", "meta/big", 8)
    assert (head.vocab_size, head.draft_vocab_size) == (6, 4)
    assert _bad(head, method="eagle3") == [("warning", "head.speculators-format")]


def test_sizes_in_the_configuration_and_in_the_weights_must_agree(tmp_path):
    """A copied config.json of another head is found before any converter runs."""
    with pytest.raises(CheckpointError, match=r"hidden_size is 16, fc.weight has the shape \[8, 16\]"):
        _head(tmp_path, {**EAGLE, "hidden_size": 16}, EAGLE_TENSORS)


def test_pickles_are_refused_with_the_cure(tmp_path):
    """Many heads are published that way; they are never loaded."""
    folder = _write(tmp_path / "head", EAGLE, EAGLE_TENSORS)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    with pytest.raises(CheckpointError, match=r"only as pickles \(pytorch_model.bin\)") as caught:
        read_head(folder)

    assert 'torch.load("pytorch_model.bin", weights_only=True), "model.safetensors"' in caught.value.hint


def test_an_ordinary_checkpoint_is_no_head(tmp_path):
    """The hint says where it belongs."""
    with pytest.raises(CheckpointError, match="neither an EAGLE") as caught:
        _head(tmp_path, {**EAGLE}, {"model.embed_tokens.weight": (6, 8)})

    assert "draft_target" in caught.value.hint


def test_a_head_can_be_written_down(tmp_path):
    """Without its list of tensors."""
    document = json.loads(json.dumps(_head(tmp_path, EAGLE, EAGLE_TENSORS).as_dict()))

    assert (document["kind"], document["has_fc_bias"]) == ("eagle", True)
    assert "tensors" not in document


def test_any_change_of_a_head_changes_its_fingerprint(tmp_path):
    """It is a part of the engine's key."""
    before = _head(tmp_path, EAGLE, EAGLE_TENSORS)
    after = _head(tmp_path, {**EAGLE, "rms_norm_eps": 1e-5}, EAGLE_TENSORS)

    assert before.fingerprint != after.fingerprint


@pytest.mark.parametrize(
    ("method", "said"),
    [("eagle", "kind eagle3, the method is eagle"), ("medusa", "kind eagle3"), ("lookahead", "takes no head")],
)
def test_a_head_serves_only_its_own_method(tmp_path, method, said):
    """And the cure names the method that it would serve."""
    head = _head(tmp_path, EAGLE3, EAGLE3_TENSORS)

    found = check_head(TARGET, head, method=method)[0]

    assert found.severity == "error"
    assert said in found.message
    assert "eagle3" in found.hint


@pytest.mark.parametrize(
    ("base", "target", "severity"),
    [
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b-chat-hf", None),
        ("meta-llama/Llama-2-7b-hf", "Llama-2-7b-chat-hf", "warning"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct-acme-2024", "warning"),
        ("lmsys/vicuna-7b-v1.3", "production", "warning"),
        ("lmsys/vicuna-7b-v1.3", "vicuna-13b-v1.3", "error"),
        ("lmsys/vicuna-7b-v1.3", "vicuna-7b-v1.5", "error"),
        ("Qwen/Qwen2.5-7B-Instruct", "Mistral-7B-Instruct", "error"),
    ],
)
def test_the_base_model_that_a_head_names(tmp_path, base, target, severity):
    """Another family, size or version is an error, another tuning or an untelling folder name is a warning."""
    head = _head(tmp_path, {**MEDUSA, "medusa_num_heads": 5, "base_model_name_or_path": base}, _medusa_tensors(5))

    found = [found for found in _bad(head, info(name=target)) if "base-model" in found[1]]

    assert [severity_found for severity_found, _ in found] == ([severity] if severity else [])


def test_a_head_of_another_vocabulary_is_an_error(tmp_path):
    """Its output rows are the target's ids."""
    head = _head(tmp_path, MEDUSA, _medusa_tensors(2))

    assert _bad(head, info(vocab_size=8)) == [("error", "head.vocabulary-differs")]
