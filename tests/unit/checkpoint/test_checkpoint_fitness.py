"""One checkpoint and the GPU engine that is wanted of it: what fits, and what is said about what does not."""

from __future__ import annotations

import pytest

from specdeploy.checkpoint.fitness import check_fitness
from specdeploy.checkpoint.info import TensorInfo
from specdeploy.errors import ConfigError
from tests.unit.checkpoint.folders import info

LLAMA_70B = info(
    name="Llama-3.1-70B",
    dtype="bfloat16",
    vocab_size=128256,
    hidden_size=8192,
    num_layers=80,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=28672,
    max_position_embeddings=131072,
    tie_word_embeddings=False,
)
QWEN_72B = info(
    name="Qwen2-72B",
    architecture="Qwen2ForCausalLM",
    dtype="bfloat16",
    vocab_size=152064,
    hidden_size=8192,
    num_layers=80,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=29568,
    max_position_embeddings=32768,
    tie_word_embeddings=False,
)
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def _check(checkpoint=LLAMA_70B, **changes):
    return check_fitness(checkpoint, **{"role": "target", "precision": "bf16", "max_seq_len": 4096} | changes)


def _codes(checkpoint=LLAMA_70B, **changes):
    return [(found.severity, found.code.removeprefix("fitness.")) for found in _check(checkpoint, **changes)]


def _like(checkpoint, **changes):
    return info(**{name: getattr(checkpoint, name) for name in vars(checkpoint)} | changes)


def _tensors(checkpoint, *, without=(), layers=None):
    """Return the tensors of a Llama of the checkpoint's sizes."""
    hidden, width = checkpoint.hidden_size, checkpoint.num_heads * checkpoint.head_dim
    shared, inner = checkpoint.num_kv_heads * checkpoint.head_dim, checkpoint.intermediate_size
    layer = {
        "self_attn.q_proj.weight": (width, hidden),
        "self_attn.k_proj.weight": (shared, hidden),
        "self_attn.v_proj.weight": (shared, hidden),
        "self_attn.o_proj.weight": (hidden, width),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    shapes = {"model.embed_tokens.weight": (checkpoint.vocab_size, hidden), "model.norm.weight": (hidden,)}
    for number in range(checkpoint.num_layers if layers is None else layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return tuple(
        TensorInfo(name=name, dtype="BF16", shape=shape, nbytes=0, file="model.safetensors")
        for name, shape in shapes.items()
        if name not in without
    )


@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (8, 1), (4, 2)])
def test_a_usual_engine_has_nothing_against_it(tp_size, pp_size):
    """Llama 3.1 70B over the usual numbers of GPUs."""
    assert _codes(tp_size=tp_size, pp_size=pp_size, precision="int4_awq") == []


def test_heads_that_do_not_divide_name_what_would():
    """64 heads cannot lie on 6 ranks; the cure lists the sizes that work for heads and shared heads."""
    errors = [found for found in _check(tp_size=6) if found.code == "fitness.heads-not-divisible"]

    assert "64 attention heads do not divide by tp_size 6" in errors[0].message
    assert "tp_size can be 1, 2, 4, 8, 16" in errors[0].hint
    assert errors[0].where == "target"


def test_shared_heads_are_split_or_copied():
    """8 key-value heads on 16 ranks lie on two each; 6 on 4 ranks is impossible."""
    assert ("info", "kv-heads-copied") in _codes(tp_size=16)
    odd = _like(LLAMA_70B, num_heads=24, num_kv_heads=6)
    assert ("error", "kv-heads-not-divisible") in _codes(odd, tp_size=4)


@pytest.mark.parametrize(
    ("precision", "tp_size", "fits"),
    [("int4_awq", 1, True), ("int4_awq", 8, False), ("w4a8_awq", 2, False), ("bf16", 8, True), ("nvfp4", 8, True)],
)
def test_shards_must_hold_whole_groups(precision, tp_size, fits):
    """29568 values over 8 ranks leave 3696, which is no multiple of 128: AWQ fails after hours of calibration."""
    found = [found for found in _check(QWEN_72B, precision=precision, tp_size=tp_size) if found.severity == "error"]

    assert ([error.code for error in found] == []) is fits
    if not fits:
        assert "intermediate size 29568" in found[0].message
        assert found[0].hint == "tp_size 1 would do."


def test_stages_that_are_not_even_are_a_warning():
    """And more stages than layers an error."""
    assert _codes(pp_size=3) == [("warning", "stages-uneven")]
    assert "2, 4, 5, 8" in _check(pp_size=3)[0].hint
    assert _codes(pp_size=81) == [("error", "too-many-stages")]


def test_experts_must_divide():
    """Mixtral's eight over two or four, not over three; a dense network has none."""
    mixtral = _like(LLAMA_70B, architecture="MixtralForCausalLM", num_experts=8)

    assert _codes(mixtral, tp_size=4, ep_size=4) == []
    assert ("error", "experts-not-divisible") in _codes(mixtral, tp_size=4, ep_size=3)
    assert ("error", "experts-ranks") in _codes(mixtral, tp_size=2, ep_size=4)
    assert _codes(tp_size=2, ep_size=2) == [("error", "no-experts")]


def test_a_padded_vocabulary_is_said():
    """Its width decides whether two engines' logits can be compared."""
    (found,) = _check(_like(LLAMA_70B, vocab_size=32001), tp_size=4)

    assert (found.severity, found.code) == ("info", "fitness.vocabulary-padded")
    assert "32001 ids are padded to 32004" in found.message


def test_an_architecture_that_no_converter_takes_names_the_nearest():
    """Whether the release's table is a set or a mapping to scripts."""
    qwen3 = _like(LLAMA_70B, architecture="Qwen3ForCausalLM")

    (found,) = _check(qwen3, supported_architectures={"Qwen2ForCausalLM": "qwen", "GPT2LMHeadModel": "gpt"})

    assert (found.severity, found.code) == ("error", "fitness.architecture-unsupported")
    assert "Qwen2ForCausalLM" in found.hint
    assert _codes(supported_architectures=frozenset({"LlamaForCausalLM"})) == []


@pytest.mark.parametrize(
    ("dtype", "precision", "found"),
    [
        ("float32", "fp8", [("warning", "float32-cast")]),
        ("float32", "fp32", []),
        ("bfloat16", "fp16", [("warning", "bfloat16-cast")]),
        ("float16", "bf16", []),
    ],
)
def test_casts_that_change_values_are_a_warning(dtype, precision, found):
    """The engine then differs from the checkpoint that it is compared with."""
    assert _codes(_like(LLAMA_70B, dtype=dtype), precision=precision) == found


def test_weights_that_are_quantised_already_are_a_warning():
    """The converters of the engine flow take few of them."""
    assert _codes(_like(LLAMA_70B, quant_method="awq")) == [("warning", "already-quantized")]


def test_a_tied_output_layer_is_said():
    """The engine holds it twice."""
    assert _codes(_like(LLAMA_70B, tie_word_embeddings=True)) == [("info", "tied-embeddings")]


@pytest.mark.parametrize(
    ("scaling", "max_seq_len", "found"),
    [
        (LLAMA3_ROPE, 8192, ("info", "rope-scaled")),
        (LLAMA3_ROPE, 65536, ("info", "rope-scaled")),
        (YARN, 32768, ("info", "rope-scaled")),
        (YARN, 65536, ("warning", "rope-stretched")),
        ({"rope_type": "dynamic", "factor": 2.0}, 200_000, ("warning", "rope-stretched")),
        ({"rope_type": "spiral"}, 4096, ("warning", "rope-unknown")),
    ],
)
def test_rotary_scaling_is_named(scaling, max_seq_len, found):
    """With its type, and as a warning where it changes answers or may be ignored."""
    assert _codes(_like(LLAMA_70B, rope_scaling=scaling), max_seq_len=max_seq_len) == [found]


def test_a_window_that_is_shorter_than_the_context():
    """The runtime must be told; networks that alternate are built that way."""
    mistral = _like(LLAMA_70B, architecture="MistralForCausalLM", sliding_window=4096)
    gemma = _like(LLAMA_70B, architecture="Gemma2ForCausalLM", sliding_window=4096)

    assert _codes(mistral, max_seq_len=4096) == []
    (found,) = _check(mistral, max_seq_len=8192)
    assert (found.severity, found.code) == ("warning", "fitness.sliding-window")
    assert "max_attention_window_size to 4096" in found.hint
    assert _codes(gemma, max_seq_len=8192) == [("info", "sliding-window")]


def test_missing_tensors_are_counted_and_named():
    """A shard that was left out shows as tensors that the network needs."""
    small = info(dtype="bfloat16")
    whole = _like(small, tensors=_tensors(small))
    cut = _like(small, tensors=_tensors(small, without=("model.norm.weight",), layers=1))

    assert ("error", "tensors-missing") not in _codes(whole)
    (found,) = (found for found in _check(cut) if found.severity == "error")
    assert "10 of 20 tensors" in found.message
    assert "model.norm.weight, model.layers.1.self_attn.q_proj.weight" in found.message


def test_an_output_layer_is_needed_unless_it_is_tied():
    """And Qwen2 needs its biases."""
    small = info(dtype="bfloat16", tie_word_embeddings=False)
    llama = _like(small, tensors=_tensors(small))
    qwen = _like(small, architecture="Qwen2ForCausalLM", tie_word_embeddings=True, tensors=_tensors(small))

    assert "lm_head.weight" in next(f.message for f in _check(llama) if f.code == "fitness.tensors-missing")
    assert "6 of 26 tensors" in next(f.message for f in _check(qwen) if f.code == "fitness.tensors-missing")


def test_weights_of_another_size_than_the_configuration_are_an_error():
    """A config.json that was copied from a larger model."""
    small = info(dtype="bfloat16")
    copied = _like(small, tensors=_tensors(small), num_kv_heads=4)

    errors = [found for found in _check(copied) if found.severity == "error"]

    assert [found.code for found in errors] == ["fitness.shape-differs"]
    assert "self_attn.k_proj.weight has the shape [4, 8], config.json makes it [8, 8]" in errors[0].message


def test_errors_come_first():
    """All at once, the worst on top."""
    found = _codes(_like(LLAMA_70B, tie_word_embeddings=True, dtype="float32"), tp_size=6)

    severities = [severity for severity, _ in found]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert len(found) >= 3


def test_an_unknown_precision_is_refused():
    """With the nearest one."""
    with pytest.raises(ConfigError) as caught:
        _check(precision="int4_awk")

    assert caught.value.hint == "Did you mean int4_awq?"
