"""Reading checkpoint folders: what is understood, and what is refused with which words."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from specdeploy.checkpoint.read import read_checkpoint, stat_fingerprint
from specdeploy.errors import CheckpointError
from tests.unit.checkpoint.folders import (
    SETTINGS,
    TOKENIZER,
    safetensors,
    safetensors_header,
    write_folder,
    write_json,
    write_shards,
)


def _refusal(path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    return caught.value.message


def test_reads_an_ordinary_folder(tmp_path):
    """Every field comes from the file that Hugging Face keeps it in."""
    info = read_checkpoint(write_folder(tmp_path / "small"))

    assert (info.name, info.path) == ("small", str(tmp_path / "small"))
    assert (info.architecture, info.dtype, info.vocab_size) == ("LlamaForCausalLM", "float32", 6)
    assert (info.num_heads, info.num_kv_heads, info.head_dim, info.rope_theta) == (4, 2, 2, 500000.0)
    assert (info.bos_token_id, info.eos_token_ids, info.pad_token_id) == (1, (2,), None)
    assert (info.parameters, info.weight_bytes) == (6 * 8 + 8, 4 * (6 * 8 + 8))
    assert [tensor.name for tensor in info.tensors] == ["model.embed_tokens.weight", "model.norm.weight"]
    assert info.tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert info.tokenizer.size == 6


def test_the_generation_configuration_decides_the_end_of_an_answer(tmp_path):
    """Its list of EOS ids goes before the model configuration's, as when transformers generates."""
    folder = write_folder(tmp_path)
    write_json(folder / "generation_config.json", {"eos_token_id": [5, 3], "pad_token_id": -1})

    info = read_checkpoint(folder)

    assert (info.eos_token_ids, info.pad_token_id) == ((5, 3), None)


def test_special_ids_fall_back_to_the_tokenizer(tmp_path):
    """A folder whose configurations name no EOS id takes the one of the tokenizer's EOS token."""
    info = read_checkpoint(write_folder(tmp_path, eos_token_id=None, bos_token_id=None))

    assert (info.bos_token_id, info.eos_token_ids) == (4, (5,))


def test_a_tied_head_is_inferred_from_the_tensors(tmp_path):
    """Without `tie_word_embeddings`, an `lm_head.weight` decides."""
    folder = write_folder(tmp_path, tie_word_embeddings=None)
    assert read_checkpoint(folder).tie_word_embeddings is True

    (folder / "model.safetensors").write_bytes(safetensors({"lm_head.weight": (6, 8)}))

    assert read_checkpoint(folder).tie_word_embeddings is False


def test_a_stored_copy_of_a_tied_head_is_no_parameter(tmp_path):
    """The head that is thrown away when loading does not count, its bytes on disk do."""
    folder = write_folder(tmp_path)
    tensors = {"lm_head.weight": (6, 8), "model.embed_tokens.weight": (6, 8)}
    (folder / "model.safetensors").write_bytes(safetensors(tensors))

    info = read_checkpoint(folder)

    assert (info.parameters, info.weight_bytes) == (48, 2 * 48 * 4)


def test_the_type_of_most_bytes_counts_when_none_is_said(tmp_path):
    """Without `dtype` or `torch_dtype` the safetensors headers decide."""
    assert read_checkpoint(write_folder(tmp_path, torch_dtype=None)).dtype == "float32"


def test_a_template_file_goes_before_the_settings(tmp_path):
    """`chat_template.jinja` is where newer folders keep the chat template."""
    folder = write_folder(tmp_path)
    assert read_checkpoint(folder).tokenizer.chat_template == SETTINGS["chat_template"]

    (folder / "chat_template.jinja").write_text("{{ newer }}", encoding="utf-8")

    assert read_checkpoint(folder).tokenizer.chat_template == "{{ newer }}"


def test_shards_are_read_through_their_index(tmp_path):
    """Tensors of all shards are listed, each with its file."""
    info = read_checkpoint(write_shards(tmp_path, shards=3))

    assert len(info.tensors) == 6
    assert {tensor.file for tensor in info.tensors} == {f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3)}


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (shutil.rmtree, "there is no checkpoint folder"),
        (lambda f: (shutil.rmtree(f), f.write_text("x")), "is a file"),
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text('{"a": '), "config.json is not valid JSON"),
        (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\xff"), "config.json is not valid JSON"),
        (lambda f: (f / "config.json").write_text("[1]"), "holds a list"),
        (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "it has no `model`"),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "only as pickles (pytorch_model.bin)"),
    ],
)
def test_a_broken_folder_is_refused(tmp_path, break_it, said):
    """The message names the folder or file and what is wrong with it."""
    folder = write_folder(tmp_path / "broken")
    break_it(folder)

    message = _refusal(folder)

    assert str(folder) in message
    assert said in message


def test_a_sentencepiece_only_tokenizer_is_named(tmp_path):
    """The file that is there instead helps to see what happened."""
    folder = write_folder(tmp_path)
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")

    assert "only tokenizer.model" in _refusal(folder)


def test_all_wrong_keys_are_named_at_once(tmp_path):
    """One run tells everything that is missing or wrong in config.json."""
    message = _refusal(write_folder(tmp_path, hidden_size=None, vocab_size="six", num_hidden_layers=True))

    assert "hidden_size is missing" in message
    assert "vocab_size must be a positive integer, it is 'six'" in message
    assert "num_hidden_layers must be a positive integer, it is True" in message


def test_absent_shards_are_counted_and_named(tmp_path):
    """Three of five shards missing is one message."""
    folder = write_shards(tmp_path, shards=5)
    for number in (2, 3, 5):
        (folder / f"model-{number:05d}-of-00005.safetensors").unlink()

    message = _refusal(folder)

    assert "3 of 5 shards" in message
    assert "model-00002-of-00005.safetensors" in message


def test_only_headers_are_read_of_a_large_checkpoint(tmp_path):
    """Thirty shards that claim 140 GB between them; the files are sparse, so reading the data would take minutes."""
    folder = write_folder(tmp_path / "huge")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for shard in range(30):
        file = f"model-{shard:05d}-of-00030.safetensors"
        shapes = {f"model.layers.{shard}.{number}.weight": (8192, 7142) for number in range(20)}
        header = safetensors_header(shapes)
        with (folder / file).open("wb") as output:
            output.write(header)
            output.truncate(len(header) + 4 * 20 * 8192 * 7142)
        weight_map |= dict.fromkeys(shapes, file)
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})

    info = read_checkpoint(folder)

    assert len(info.tensors) == 600
    assert info.weight_bytes == 30 * 20 * 8192 * 7142 * 4


def test_a_tensor_that_is_not_in_its_shard_is_named(tmp_path):
    """The index and the shards have to agree."""
    folder = write_shards(tmp_path, shards=2)
    (folder / "model-00002-of-00002.safetensors").write_bytes(safetensors({"other": (1,)}))

    message = _refusal(folder)

    assert "2 tensors are not where" in message
    assert "layers.1.0.weight in model-00002-of-00002.safetensors" in message


def test_several_damaged_shards_are_all_reported(tmp_path):
    """Whoever copies them again needs the whole list."""
    folder = write_shards(tmp_path, shards=3)
    for number in (1, 3):
        file = folder / f"model-{number:05d}-of-00003.safetensors"
        file.write_bytes(file.read_bytes()[:-4])

    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder)

    assert "2 of 3 shards are damaged" in caught.value.message
    assert len(caught.value.findings) == 2


@pytest.mark.parametrize("weight_map", [None, [], {}, {"a": 1}])
def test_an_index_without_a_map_is_refused(tmp_path, weight_map):
    """An index that maps nothing is not an empty checkpoint."""
    folder = write_shards(tmp_path, shards=1)
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})

    assert "weight_map must map" in _refusal(folder)


def test_an_index_cannot_reach_outside_of_the_folder(tmp_path):
    """A path in the index is refused before it is opened."""
    folder = write_shards(tmp_path, shards=1)
    write_json(folder / "model.safetensors.index.json", {"weight_map": {"a": "../../etc/passwd"}})

    assert "outside of the folder" in _refusal(folder)


def test_a_copy_has_the_same_fingerprint(tmp_path):
    """Neither the folder's name nor the times of its files are part of the content."""
    original = write_folder(tmp_path / "original")
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(original, copy)
    os.utime(copy / "model.safetensors", (1, 1))

    ours, theirs = read_checkpoint(original), read_checkpoint(copy)

    assert ours.fingerprint == theirs.fingerprint
    assert ours.stat_fingerprint != theirs.stat_fingerprint
    assert stat_fingerprint(original) == ours.stat_fingerprint


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_any_change_of_content_changes_the_fingerprint(tmp_path, name):
    """Configuration, tokenizer files and weights are all covered."""
    folder = write_folder(tmp_path)
    before = read_checkpoint(folder).fingerprint
    data = (folder / name).read_bytes()
    changed = data[:-1] + b"\x01" if name.endswith(".safetensors") else data + b"\n"
    (folder / name).write_bytes(changed)

    assert read_checkpoint(folder).fingerprint != before


def test_both_spellings_of_merges_are_one_tokenizer(tmp_path):
    """Old libraries write "a b", new ones ["a", "b"]; only the file's digest differs."""
    old, new = write_folder(tmp_path / "old"), write_folder(tmp_path / "new")
    document = json.loads(json.dumps(TOKENIZER))
    document["model"]["merges"] = [["a", "b"]]
    write_json(new / "tokenizer.json", document)

    ours, theirs = read_checkpoint(old).tokenizer, read_checkpoint(new).tokenizer

    assert ours.merges_digest == theirs.merges_digest
    assert ours.digest != theirs.digest
