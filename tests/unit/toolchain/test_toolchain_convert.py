"""The stand-in converters and ``quantize.py``: what they accept, refuse and write."""

from __future__ import annotations

import pytest

from tests.toolchain import install_toolchain
from tests.unit.toolchain.runs import document, main_convert, main_quantize, names, write_source


@pytest.fixture(scope="module")
def toolchain(tmp_path_factory):
    """A toolchain of the last release, which no test here changes."""
    return install_toolchain(tmp_path_factory.mktemp("trtllm"), "1.2.1")


@pytest.fixture
def source(tmp_path):
    """A Hugging Face folder of a Llama."""
    return write_source(tmp_path / "source")


@pytest.fixture
def out(tmp_path):
    """Where a checkpoint goes."""
    return tmp_path / "out"


def _gpt2(path):
    names_of_gpt2 = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "activation_function": "gelu_new"}
    llama = ("hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings", "hidden_act")
    absent = dict.fromkeys((*llama, "intermediate_size", "num_key_value_heads"))
    return write_source(path, architectures=["GPT2LMHeadModel"], model_type="gpt2", **names_of_gpt2, **absent)


class TestArguments:
    """The command lines of the families."""

    @pytest.mark.parametrize(
        ("family", "argv"),
        [
            ("llama", ["--no_such_flag"]),
            ("llama", ["--dtype", "fp16"]),
            ("llama", ["--weight_only_precision", "fp8"]),
            ("qwen", ["--output_dir", "x"]),
            ("qwen", ["--model_dir", "m", "--use_fp8"]),
            ("gemma", ["--model_dir", "m"]),
            ("gemma", ["--model_dir", "m", "--output_dir", "x", "--tp_size", "2"]),
            ("gemma", ["--model_dir", "m", "--output_dir", "x", "--ckpt-type", "gguf"]),
            ("phi", ["--model_dir", "m", "--use_parallel_embedding"]),
            ("falcon", ["--model_dir", "m", "--smoothquant", "0.5"]),
            ("medusa", ["--dtype", "auto"]),
            ("medusa", ["--max_draft_len", "63"]),
            ("eagle", ["--dtype", "auto"]),
            ("redrafter", ["--model_dir", "m"]),
            ("redrafter", ["--model_dir", "m", "--drafter_model_dir", "d", "--pp_size", "2"]),
        ],
    )
    def test_a_bad_command_line_exits_2(self, toolchain, family, argv):
        """Each family has its own flags, and argparse's word on every other."""
        with pytest.raises(SystemExit) as caught:
            main_convert(toolchain, family, *argv)
        assert caught.value.code == 2

    @pytest.mark.parametrize(
        ("family", "argv", "error", "words"),
        [
            ("phi", ["--pp_size", 2], AssertionError, "Pipeline parallelism is not supported"),
            ("eagle", ["--pp_size", 2], AssertionError, "not supported in EAGLE yet"),
            ("eagle", ["--meta_ckpt_dir", "m"], AssertionError, "meta ckpt is not supported yet"),
            ("gpt", [], NotImplementedError, "No source model path specified"),
            ("falcon", [], TypeError, "not NoneType"),
            ("llama", ["--moe_tp_size", 2, "--moe_ep_size", 2], AssertionError, "must equal to tp_size"),
        ],
    )
    def test_what_is_refused_after_parsing(self, toolchain, out, family, argv, error, words):
        """The assertions of the scripts."""
        with pytest.raises(error, match=words):
            main_convert(toolchain, family, *argv, "--output_dir", out)

    def test_gemma_needs_to_be_told_what_it_reads(self, toolchain, source, out):
        """Without --ckpt-type it fails on a lookup."""
        with pytest.raises(KeyError, match="None"):
            main_convert(toolchain, "gemma", "--model-dir", source, "--output-model-dir", out)


class TestSources:
    """What is read."""

    def test_a_folder_that_is_not_there(self, toolchain, tmp_path, out):
        """Said as transformers says it."""
        with pytest.raises(OSError, match="Incorrect path_or_model_id"):
            main_convert(toolchain, "llama", "--model_dir", tmp_path / "missing", "--output_dir", out)

    def test_a_folder_without_weights_or_with_half_of_them(self, toolchain, source, out):
        """No weights and a cut file are told apart."""
        weights = source / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        with pytest.raises(Exception, match="file not fully covered"):
            main_convert(toolchain, "llama", "--model_dir", source, "--output_dir", out)
        weights.unlink()
        with pytest.raises(OSError, match="no file named model"):
            main_convert(toolchain, "llama", "--model_dir", source, "--output_dir", out)

    @pytest.mark.parametrize(("family", "words"), [("qwen", "Unsupported model type: llama"), ("phi", "Invalid model")])
    def test_a_model_of_another_family(self, toolchain, source, out, family, words):
        """The wrong converter refuses the model."""
        with pytest.raises(AssertionError, match=words):
            main_convert(toolchain, family, "--model_dir", source, "--output_dir", out)

    @pytest.mark.parametrize(("heads", "kv_heads", "fits"), [(8, 2, True), (8, 8, True), (6, 6, False), (8, 3, False)])
    def test_heads_must_divide(self, toolchain, tmp_path, out, heads, kv_heads, fits):
        """Query heads are divided, key and value heads divided or duplicated."""
        source = write_source(tmp_path / "heads", num_attention_heads=heads, num_key_value_heads=kv_heads)
        argv = ("--model_dir", source, "--output_dir", out, "--tp_size", 4)
        if fits:
            assert main_convert(toolchain, "llama", *argv) == 0
        else:
            with pytest.raises(AssertionError):
                main_convert(toolchain, "llama", *argv)

    def test_llama_without_a_model_writes_a_made_up_configuration(self, toolchain, out):
        """A forgotten --model_dir is no error upstream: a configuration of some 7B, and no weights."""
        assert main_convert(toolchain, "llama", "--output_dir", out) == 0
        assert names(out) == {"config.json"}
        assert document(out)["hidden_size"] == 4096


class TestCheckpoints:
    """What is written."""

    def test_fields(self, toolchain, source, out):
        """What a reader of a checkpoint finds, and no version: the real converters write none."""
        argv = ("--model_dir", source, "--output_dir", out, "--dtype", "bfloat16", "--cp_size", 2, "--pp_size", 2)
        main_convert(toolchain, "llama", *argv)
        config = document(out)
        assert config["architecture"] == "LlamaForCausalLM"
        assert (config["dtype"], config["logits_dtype"]) == ("bfloat16", "float32")
        assert (config["vocab_size"], config["num_key_value_heads"], config["intermediate_size"]) == (300, 2, 128)
        assert config["mapping"]["world_size"] == 4
        assert config["quantization"] == {"quant_algo": None, "kv_cache_quant_algo": None}
        assert "version" not in config
        assert names(out) == {"config.json", "rank0.safetensors", "rank1.safetensors"}  # context ranks share

    @pytest.mark.parametrize(
        ("family", "model_type", "architecture", "argv"),
        [
            ("qwen", "qwen2", "Qwen2ForCausalLM", ["--tp_size", 2]),
            ("gemma", "gemma2", "Gemma2ForCausalLM", ["--ckpt-type", "hf", "--world-size", 2]),
            ("phi", "phi3", "Phi3ForCausalLM", ["--tp_size", 2]),
            ("falcon", "falcon", "FalconForCausalLM", ["--tp_size", 2]),
        ],
    )
    def test_families(self, toolchain, tmp_path, out, family, model_type, architecture, argv):
        """Every family writes its architecture and its ranks, gemma under its own flags."""
        source = write_source(tmp_path / family, architectures=[architecture], model_type=model_type)
        main_convert(toolchain, family, "--model_dir", source, "--output_dir", out, *argv)
        assert document(out)["architecture"] == architecture
        assert document(out)["mapping"]["tp_size"] == 2
        assert names(out) == {"config.json", "rank0.safetensors", "rank1.safetensors"}

    def test_gpt_has_names_of_its_own(self, toolchain, tmp_path, out):
        """The sizes of GPT-2's configuration are found under GPT-2's names."""
        main_convert(toolchain, "gpt", "--model_dir", _gpt2(tmp_path / "gpt2"), "--output_dir", out)
        config = document(out)
        assert (config["architecture"], config["hidden_size"], config["intermediate_size"]) == (
            "GPTForCausalLM",
            64,
            256,
        )
        assert (config["num_hidden_layers"], config["num_key_value_heads"]) == (2, 4)

    @pytest.mark.parametrize(
        ("argv", "algorithm", "kv_cache"),
        [
            (["--use_weight_only"], "W8A16", None),
            (["--use_weight_only", "--weight_only_precision", "int4"], "W4A16", None),
            (["--use_weight_only", "--weight_only_precision", "int4_awq"], "W4A16_AWQ", None),
            (["--weight_only_precision", "int4"], None, None),  # without --use_weight_only it means nothing
            (["--use_fp8", "--fp8_kv_cache"], "FP8", "FP8"),
            (["--use_fp8_rowwise"], "FP8_PER_CHANNEL_PER_TOKEN", None),
        ],
    )
    def test_quantization(self, toolchain, source, out, argv, algorithm, kv_cache):
        """The algorithms by TensorRT-LLM's names."""
        main_convert(toolchain, "llama", "--model_dir", source, "--output_dir", out, *argv)
        block = document(out)["quantization"]
        assert (block["quant_algo"], block["kv_cache_quant_algo"]) == (algorithm, kv_cache)

    def test_smooth_quant_calibrates(self, toolchain, source, out, tmp_path):
        """It needs calibration data, which no network brings."""
        argv = ("--model_dir", source, "--output_dir", out, "--smoothquant", "0.5", "--per_token", "--int8_kv_cache")
        with pytest.raises(ConnectionError, match="ccdv/cnn_dailymail"):
            main_convert(toolchain, "llama", *argv)
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "train.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
        main_convert(toolchain, "llama", *argv, "--calib_dataset", tmp_path / "data")
        block = document(out)["quantization"]
        assert block == {"quant_algo": "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", "kv_cache_quant_algo": "INT8"}


class TestQuantize:
    """``quantize.py``."""

    @pytest.fixture
    def data(self, tmp_path):
        """A folder of calibration data."""
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "train.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
        return tmp_path / "data"

    @pytest.mark.parametrize(
        ("argv", "algorithm", "kv_cache"),
        [
            (["--qformat", "fp8", "--kv_cache_dtype", "fp8"], "FP8", "FP8"),
            (["--qformat", "fp8"], "FP8", None),
            (["--qformat", "int8_sq", "--kv_cache_dtype", "int8"], "W8A8_SQ_PER_CHANNEL", "INT8"),
            (["--qformat", "nvfp4"], "NVFP4", None),
            (["--qformat", "int4_awq", "--awq_block_size", 32], "W4A16_AWQ", None),
            (["--qformat", "w4a8_awq", "--awq_block_size", 32], "W4A8_AWQ", None),
        ],
    )
    def test_formats(self, toolchain, source, data, out, argv, algorithm, kv_cache):
        """The export's configuration: algorithm, KV cache, what is left out, and who made it."""
        argv = ("--model_dir", source, "--output_dir", out, "--calib_dataset", data, "--tp_size", 2, *argv)
        assert main_quantize(toolchain, *argv) == 0
        config = document(out)
        block = config["quantization"]
        assert (block["quant_algo"], block["kv_cache_quant_algo"]) == (algorithm, kv_cache)
        assert block["exclude_modules"] == ["lm_head"]
        assert config["producer"] == {"name": "modelopt", "version": "0.37.0"}
        assert names(out) == {"config.json", "rank0.safetensors", "rank1.safetensors"}

    def test_weight_only_needs_no_data(self, toolchain, source, out):
        """Nothing is calibrated for it, unless the KV cache is quantized too."""
        argv = ("--model_dir", source, "--output_dir", out, "--qformat", "int8_wo")
        assert main_quantize(toolchain, *argv) == 0
        assert document(out)["quantization"]["quant_algo"] == "W8A16"
        with pytest.raises(ConnectionError):
            main_quantize(toolchain, *argv, "--kv_cache_dtype", "fp8")

    @pytest.mark.parametrize(
        ("dataset", "error"),
        [(None, ConnectionError), ("my_texts", NotImplementedError), ("empty", FileNotFoundError)],
    )
    def test_calibration_data_must_be_here(self, toolchain, source, out, tmp_path, dataset, error):
        """The default set is a download, another name is unknown, an empty folder is empty."""
        (tmp_path / "empty").mkdir()
        given = {None: [], "my_texts": ["--calib_dataset", "my_texts"]}
        chosen = given.get(dataset, ["--calib_dataset", tmp_path / "empty"])
        with pytest.raises(error):
            main_quantize(toolchain, "--model_dir", source, "--output_dir", out, "--qformat", "fp8", *chosen)

    @pytest.mark.parametrize(
        ("block", "tp_size", "fits"), [(128, 1, False), (64, 1, True), (64, 2, False), (32, 2, True)]
    )
    def test_awq_groups_must_divide_a_rank_s_share(self, toolchain, source, data, out, block, tp_size, fits):
        """Hidden size over tensor parallelism is a multiple of the group."""
        argv = ("--model_dir", source, "--output_dir", out, "--calib_dataset", data, "--qformat", "int4_awq")
        argv = (*argv, "--awq_block_size", block, "--tp_size", tp_size)
        if fits:
            main_quantize(toolchain, *argv)
            assert document(out)["quantization"]["group_size"] == block
        else:
            with pytest.raises(AssertionError, match="not divisible by block size"):
                main_quantize(toolchain, *argv)

    def test_it_needs_a_gpu(self, source, out, tmp_path):
        """No GPU, and no driver in front of one, are the same to it."""
        argv = ("--model_dir", source, "--output_dir", out)
        with pytest.raises(OSError, match="GPU is required for inference"):
            main_quantize(install_toolchain(tmp_path / "cpu", "1.2.1", gpus=0), *argv)
        faulty = install_toolchain(tmp_path / "no-driver", "1.2.1", faults={"quantize.py": "no_driver"})
        with pytest.raises(OSError, match="GPU is required for inference"):
            main_quantize(faulty, *argv)

    def test_medusa_heads_are_added(self, toolchain, source, data, out, tmp_path):
        """The heads join the quantized model, themselves not quantized."""
        head = write_source(tmp_path / "head", medusa_num_layers=1)
        argv = ("--model_dir", source, "--output_dir", out, "--calib_dataset", data, "--qformat", "fp8")
        main_quantize(toolchain, *argv, "--medusa_model_dir", head, "--max_draft_len", 31)
        config = document(out)
        assert (config["architecture"], config["max_draft_len"]) == ("MedusaForCausalLM", 31)
        assert "*medusa_heads*" in config["quantization"]["exclude_modules"]

    def test_a_bad_command_line_exits_2(self, toolchain):
        """An unknown format is argparse's business."""
        with pytest.raises(SystemExit) as caught:
            main_quantize(toolchain, "--qformat", "int3")
        assert caught.value.code == 2
