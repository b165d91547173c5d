"""TensorRT-LLM checkpoint folders: what converters write, and what a conversion that went wrong looks like."""

from __future__ import annotations

import json

import pytest

from specdeploy.checkpoint.read_trtllm import is_trtllm_checkpoint, read_trtllm_checkpoint
from specdeploy.errors import CheckpointError
from tests.unit.checkpoint.folders import safetensors, write_folder, write_json

CONFIG = {
    "architecture": "LlamaForCausalLM",
    "dtype": "bfloat16",
    "logits_dtype": "float16",
    "vocab_size": 32001,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1, "moe_tp_size": -1},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]},
}
TENSORS = {"transformer.vocab_embedding.weight": (4, 4), "lm_head.weight": (4, 4)}


def _write(path, ranks=2, **changes):
    path.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    write_json(path / "config.json", config)
    for rank in range(ranks):
        (path / f"rank{rank}.safetensors").write_bytes(safetensors(TENSORS))
    return path


def _refusal(path):
    with pytest.raises(CheckpointError) as caught:
        read_trtllm_checkpoint(path)
    return caught.value.message


def test_reads_what_a_converter_writes(tmp_path):
    """Sizes, mapping, quantisation and the tensors of every rank."""
    found = read_trtllm_checkpoint(_write(tmp_path / "converted"))

    assert (found.name, found.architecture, found.dtype, found.logits_dtype) == (
        "converted",
        "LlamaForCausalLM",
        "bfloat16",
        "float16",
    )
    assert (found.num_layers, found.num_heads, found.num_kv_heads, found.head_dim) == (2, 4, 2, 16)
    assert (found.vocab_size, found.padded_vocab_size) == (32001, 32002)
    assert (found.mapping.world_size, found.mapping.tp_size, found.mapping.cp_size) == (2, 2, 1)
    assert found.mapping.moe_tp_size is None
    assert (found.quantization.quant_algo, found.quantization.exclude_modules) == ("FP8", ("lm_head",))
    assert [rank.file for rank in found.ranks] == ["rank0.safetensors", "rank1.safetensors"]
    assert [len(rank.tensors) for rank in found.ranks] == [2, 2]
    assert found.weight_bytes == 2 * 2 * 4 * 4 * 4
    assert found.speculative == {}


def test_defaults_are_those_of_tensorrt_llm(tmp_path):
    """One rank, no quantisation, 32-bit logits, as many key-value heads as heads."""
    found = read_trtllm_checkpoint(
        _write(tmp_path, ranks=1, mapping=None, quantization=None, logits_dtype=None, num_key_value_heads=None)
    )

    assert (found.mapping.world_size, found.quantization.quant_algo) == (1, None)
    assert (found.logits_dtype, found.num_kv_heads) == ("float32", 4)


def test_what_a_speculative_converter_adds_is_kept(tmp_path):
    """Medusa and EAGLE put their sizes beside the base model's."""
    found = read_trtllm_checkpoint(
        _write(tmp_path, architecture="MedusaForCausalLM", max_draft_len=63, num_medusa_heads=4, num_medusa_layers=1)
    )

    assert found.speculative == {"max_draft_len": 63, "num_medusa_heads": 4, "num_medusa_layers": 1}


def test_a_hugging_face_folder_is_none(tmp_path):
    """It lists `architectures`; the refusal says what to do with it."""
    folder = write_folder(tmp_path / "hf")

    assert not is_trtllm_checkpoint(folder)
    assert not is_trtllm_checkpoint(tmp_path / "absent")
    assert is_trtllm_checkpoint(_write(tmp_path / "trt"))
    assert "is not TensorRT-LLM's" in _refusal(folder)


def test_absent_ranks_are_counted_and_named(tmp_path):
    """A conversion that was killed leaves some of them out."""
    message = _refusal(_write(tmp_path, ranks=1))

    assert "1 of 2 rank files are absent: rank1.safetensors" in message


def test_ranks_of_another_conversion_are_refused(tmp_path):
    """trtllm-build would not look at them, and nobody would know which files belong together."""
    message = _refusal(_write(tmp_path, ranks=4))

    assert "world_size is 2, there are 4 rank files" in message
    assert "rank2.safetensors" in message


def test_every_truncated_rank_is_reported(tmp_path):
    """One run names all of them."""
    folder = _write(tmp_path)
    for rank in range(2):
        file = folder / f"rank{rank}.safetensors"
        file.write_bytes(file.read_bytes()[:-4])

    with pytest.raises(CheckpointError) as caught:
        read_trtllm_checkpoint(folder)

    assert len(caught.value.findings) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mapping": {"world_size": 2, "tp_size": 4}}, "world_size is 2, tp_size 4 x pp_size 1 x cp_size 1 is 4"),
        ({"mapping": {"tp_size": "two"}}, "mapping.tp_size must be a positive integer, it is 'two'"),
        ({"mapping": [2]}, "mapping must be an object"),
        ({"dtype": 16}, "dtype must be text, it is 16"),
        ({"hidden_size": None, "vocab_size": 0}, "hidden_size must be a positive integer, it is None"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path, changes, said):
    """With the key and the value seen."""
    assert said in _refusal(_write(tmp_path, **changes))


def test_it_can_be_written_down(tmp_path):
    """Without the tensors of its ranks."""
    document = json.loads(json.dumps(read_trtllm_checkpoint(_write(tmp_path)).as_dict()))

    assert document["ranks"][0]["file"] == "rank0.safetensors"
    assert document["mapping"]["tp_size"] == 2


def test_a_copy_has_the_same_fingerprint(tmp_path):
    """And another configuration has another one."""
    ours, theirs = (read_trtllm_checkpoint(_write(tmp_path / name)) for name in ("a", "b"))
    other = read_trtllm_checkpoint(_write(tmp_path / "c", dtype="float16"))

    assert ours.fingerprint == theirs.fingerprint != other.fingerprint
