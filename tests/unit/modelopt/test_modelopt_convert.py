"""The pieces of a conversion that need no torch: texts, ModelOpt's configuration, the output folder, packages."""

from __future__ import annotations

import json

import pytest

from specdeploy.errors import ConfigError, EnvironmentFault
from specdeploy.modelopt import packages
from specdeploy.modelopt.__main__ import main
from specdeploy.modelopt.calibration import read_texts
from specdeploy.modelopt.console import exit_code_of
from specdeploy.modelopt.formats import quantization_config
from specdeploy.modelopt.output import filled_at_the_end

_PRESETS = {
    "FP8_DEFAULT_CFG": {"quant_cfg": {"*weight_quantizer": {"num_bits": (4, 3)}}, "algorithm": "max"},
    "INT4_AWQ_CFG": {"quant_cfg": {"*weight_quantizer": {"block_sizes": {-1: 128}}}, "algorithm": "awq_lite"},
    "W4A8_AWQ_BETA_CFG": {"quant_cfg": {"*weight_quantizer": [{"block_sizes": {-1: 128}}, {"num_bits": (4, 3)}]}},
}


def test_texts_are_read_in_order_up_to_the_number_asked_for(tmp_path):
    """JSON lines give their text, other files their lines; what is empty does not count."""
    lines = tmp_path / "texts.jsonl"
    lines.write_text('{"text": "one", "id": 1}\n\n{"text": " "}\n{"text": "two"}\n{"text": "three"}\n')
    plain = tmp_path / "texts.txt"
    plain.write_text("one\n\n  two\n")
    assert read_texts(lines, 2) == ("one", "two")
    assert read_texts(lines, 100) == ("one", "two", "three")
    assert read_texts(plain, 100) == ("one", "  two")


@pytest.mark.parametrize("line", ["{", "[]", '"text"', '{"prompt": "x"}', '{"text": 3}'])
def test_a_json_line_without_text_is_named(tmp_path, line):
    """By its number, so that it can be found in a long file."""
    path = tmp_path / "texts.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(ConfigError, match=r'line 2 of .*texts\.jsonl is no object with a "text"'):
        read_texts(path, 10)


def test_texts_that_are_none_are_refused(tmp_path):
    """A missing file, one that is no text, and an empty one are told apart."""
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        read_texts(tmp_path / "missing.txt", 10)
    (tmp_path / "image.txt").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ConfigError, match="cannot read"):
        read_texts(tmp_path / "image.txt", 10)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="holds no text"):
        read_texts(tmp_path / "empty.jsonl", 10)


def test_nothing_to_quantise_is_no_configuration():
    """ModelOpt is then not asked to quantise at all."""
    assert quantization_config("full_prec", "auto", None, _PRESETS.__getitem__) is None


def test_a_kv_cache_is_quantised_on_top_of_the_weights_or_alone():
    """The scales of keys and values are found beside whatever the weights get."""
    both = quantization_config("fp8", "fp8", None, _PRESETS.__getitem__)
    alone = quantization_config("full_prec", "int8", None, _PRESETS.__getitem__)
    assert both["quant_cfg"]["*weight_quantizer"] == {"num_bits": (4, 3)}
    assert both["quant_cfg"]["*[kv]_bmm_quantizer"]["num_bits"] == (4, 3)
    assert alone["quant_cfg"]["default"] == {"enable": False}
    assert alone["quant_cfg"]["*[kv]_bmm_quantizer"]["num_bits"] == 8
    assert "*[kv]_bmm_quantizer" not in _PRESETS["FP8_DEFAULT_CFG"]["quant_cfg"]


def test_the_block_size_of_awq_is_that_of_the_integers():
    """W4A8 quantises twice; its blocks are those of the first time."""
    simple = quantization_config("int4_awq", "auto", 64, _PRESETS.__getitem__)
    double = quantization_config("w4a8_awq", "auto", 64, _PRESETS.__getitem__)
    assert simple["quant_cfg"]["*weight_quantizer"]["block_sizes"] == {-1: 64}
    assert double["quant_cfg"]["*weight_quantizer"] == [{"block_sizes": {-1: 64}}, {"num_bits": (4, 3)}]
    assert _PRESETS["INT4_AWQ_CFG"]["quant_cfg"]["*weight_quantizer"]["block_sizes"] == {-1: 128}


@pytest.mark.parametrize("exists", [True, False])
def test_the_output_is_empty_until_it_is_whole(tmp_path, exists):
    """A reader sees no file before the last is written, and no scratch folder afterwards."""
    output = tmp_path / "deep" / "out"
    if exists:
        output.mkdir(parents=True)
    with filled_at_the_end(output) as scratch:
        (scratch / "config.json").write_text("{}")
        (scratch / "rank0.safetensors").write_text("weights")
        assert [path.name for path in output.iterdir() if not path.name.startswith(".")] == []
    assert sorted(path.name for path in output.iterdir()) == ["config.json", "rank0.safetensors"]


def test_a_failure_leaves_what_was_there(tmp_path):
    """A folder that the caller made stays, empty; one that was made here goes."""
    mine, new = tmp_path / "mine", tmp_path / "new"
    mine.mkdir()
    for output in (mine, new):
        with pytest.raises(ZeroDivisionError):
            _fail_half_way(output)
    assert list(tmp_path.rglob("*")) == [mine]


def _fail_half_way(output):
    with filled_at_the_end(output) as scratch:
        (scratch / "rank0.safetensors").write_text("half")
        raise ZeroDivisionError


def test_an_output_that_holds_something_is_not_touched(tmp_path):
    """A folder with files, and a file."""
    (tmp_path / "precious").touch()
    for output in (tmp_path, tmp_path / "precious"):
        with pytest.raises(ConfigError, match="is no empty folder"), filled_at_the_end(output):
            pytest.fail("it was entered")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_an_output_under_a_file_cannot_be_made(tmp_path):
    """That is the machine's fault, with its own words."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(EnvironmentFault, match=r"cannot write .*: Not a directory"),
        filled_at_the_end(tmp_path / "file" / "out"),
    ):
        pytest.fail("it was entered")


def test_missing_packages_are_named_with_the_way_to_install_them(tmp_path, monkeypatch, capsys):
    """After the checkpoint was found good, and before the output is touched: exit code 4."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr(packages, "is_installed", lambda name: name == "torch")
    output = tmp_path / "out"

    argv = ["--checkpoint", str(tmp_path), "--output", str(output), "--dtype", "bfloat16"]

    assert exit_code_of(main, argv) == 4
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: converting a checkpoint needs nvidia-modelopt, transformers, safetensors, accelerate"
    assert hint.startswith("hint: pip install torch nvidia-modelopt==0.37.0 ")
    assert not output.exists()
