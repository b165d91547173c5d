"""The stand-in ``trtllm-build``: as strict as the flag data, and rewriting what the real one rewrites."""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path

import pytest

from tests.toolchain import install_toolchain
from tests.toolchain.build import FLAGS
from tests.toolchain.flags import build_parser, load_flags
from tests.unit.toolchain.runs import FLAGS_OF, document, main_build, names, write_model

_DATA = Path(__file__).parents[2] / "data" / "trtllm_build_flags"
_FP8 = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
_PAGED, _FP8_CONTEXT = "use_paged_context_fmha", "use_fp8_context_fmha"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Toolchains by release and compute capability, each installed once: no test here changes one."""

    @functools.cache
    def install(release, capability="9.0"):
        return install_toolchain(tmp_path_factory.mktemp("trtllm"), release, compute_capability=capability)

    return install


@pytest.fixture(params=FLAGS_OF)
def era(request, installed):
    """A release, its flag data, and the parser of its toolchain."""
    toolchain = installed(request.param)
    data = json.loads((_DATA / f"trtllm_build_flags_{FLAGS_OF[request.param]}.json").read_text(encoding="utf-8"))
    return toolchain, data["flags"], build_parser(load_flags(toolchain.root / FLAGS))


@pytest.fixture
def toolchain(installed):
    """A toolchain of 1.0 on Hopper."""
    return installed("1.0.0")


@pytest.fixture
def build(toolchain, tmp_path):
    """Build a checkpoint with changes and flags; return the recorded build configuration."""

    def built(*flags, on=toolchain, **changes):
        checkpoint = write_model(tmp_path / "model", on, **changes)
        main_build(on, "--checkpoint_dir", checkpoint, "--output_dir", tmp_path / "engine", *flags)
        return document(tmp_path / "engine")["build_config"]

    return built


class TestFlags:
    """The command line."""

    def test_the_accepted_flags_are_those_of_the_data(self, era):
        """No flag more and none less than the release's era lists, aliases included."""
        _, data, parser = era
        listed = {name for flag in data for name in (flag["flag"], *flag["aliases"])}
        accepted = {name for action in parser._actions for name in action.option_strings}
        assert accepted == listed | {"-h", "--help"}

    def test_defaults_and_choices_are_those_of_the_data(self, era):
        """Every default is the listed one, suppressed ones are absent, and a value out of the choices is refused."""
        _, data, parser = era
        given = vars(parser.parse_args([]))
        assert given == {flag["dest"]: flag["default"] for flag in data if flag["default"] != argparse.SUPPRESS}
        for flag in data:
            if flag["choices"]:
                assert parser.parse_args([flag["flag"], flag["choices"][-1]])
                with pytest.raises(SystemExit):
                    parser.parse_args([flag["flag"], "no-such-choice"])

    @pytest.mark.parametrize(
        "argv",
        [
            ["--no_such_flag", "1"],
            ["--max_batch_size", "many"],
            ["--kv_cache_type", "pagd"],
            ["--strip_plan", "yes"],
            ["--max_", "1"],
            ["--speculative_decoding_mode", "ngram"],
        ],
    )
    def test_a_bad_command_line_exits_2(self, era, argv):
        """Unknown and ambiguous flags, wrong types and superfluous values end as argparse ends them."""
        toolchain, _, _ = era
        with pytest.raises(SystemExit) as caught:
            main_build(toolchain, *argv)
        assert caught.value.code == 2

    def test_abbreviations_are_accepted(self, era):
        """An unambiguous beginning of a flag is the flag, as upstream."""
        _, _, parser = era
        assert parser.parse_args(["--max_batch", "7"]).max_batch_size == 7

    def test_aliases_share_a_value(self, era):
        """The old name of a length still sets it."""
        _, _, parser = era
        assert parser.parse_args(["--max_decoder_seq_len", "7"]).max_seq_len == 7

    @pytest.mark.parametrize(
        ("release", "paged", "block", "auto_parallel"),
        [
            ("0.18.2", False, 64, True),
            ("0.19.0", True, 32, True),
            ("1.1.0", True, 32, True),
            ("1.2.0", True, 32, False),
        ],
    )
    def test_eras_differ(self, build, installed, release, paged, block, auto_parallel):
        """Defaults changed between 0.16 and 0.21, and the auto-parallel block left in 1.2."""
        record = build(on=installed(release))
        assert record["plugin_config"][_PAGED] is paged
        assert record["plugin_config"]["tokens_per_block"] == block
        assert ("auto_parallel_config" in record) is auto_parallel


class TestRewrites:
    """What is recorded is not what was asked for."""

    def test_lengths_are_deduced(self, build):
        """Left out, the sequence is the model's times its rope factor; the prompt is clipped to it."""
        record = build(rotary_scaling={"type": "linear", "factor": 2.0})
        assert (record["max_seq_len"], record["max_input_len"]) == (1024, 1024)
        assert build(rotary_scaling={"rope_type": "llama3", "factor": 8.0})["max_seq_len"] == 512
        assert build("--max_seq_len", 128)["max_input_len"] == 128

    def test_token_counts_fit_the_batch(self, build):
        """No more tokens than sequences can hold, no less than a block."""
        record = build("--max_batch_size", 2, "--max_seq_len", 100)
        assert (record["max_num_tokens"], record["opt_num_tokens"]) == (200, 2)
        assert build("--max_num_tokens", 8)["max_num_tokens"] == 32
        assert build("--remove_input_padding", "disable", "--max_batch_size", 2)["max_num_tokens"] == 1024

    def test_a_speculative_target_grows(self, build):
        """Sequence and tokens make room for the drafts; a draft model's build stays as it was."""
        flags = ("--max_draft_len", 10, "--max_batch_size", 1024)
        record = build("--speculative_decoding_mode", "draft_tokens_external", *flags)
        assert (record["max_seq_len"], record["max_num_tokens"]) == (522, 1024 * 11)
        assert record["speculative_decoding_mode"] == 2
        record = build(*flags)
        assert (record["max_seq_len"], record["max_num_tokens"], record["speculative_decoding_mode"]) == (512, 8192, 1)

    @pytest.mark.parametrize(
        ("mapping", "architecture", "kept"),
        [
            ({"tp_size": 2, "world_size": 2}, "LlamaForCausalLM", True),
            ({"tp_size": 1, "world_size": 1}, "LlamaForCausalLM", False),
            ({"tp_size": 2, "world_size": 2}, "Qwen2ForCausalLM", False),
        ],
    )
    def test_reduce_fusion_needs_tensor_parallelism_and_llama(self, toolchain, tmp_path, mapping, architecture, kept):
        """Elsewhere it is switched off, and the user buffer with it."""
        checkpoint = write_model(tmp_path / "model", toolchain, mapping=mapping, architecture=architecture)
        for rank in range(1, mapping["world_size"]):
            (checkpoint / f"rank{rank}.safetensors").write_bytes((checkpoint / "rank0.safetensors").read_bytes())
        flags = ("--reduce_fusion", "enable", "--user_buffer", "enable", "--norm_quant_fusion", "enable")
        main_build(toolchain, "--checkpoint_dir", checkpoint, "--output_dir", tmp_path / "engine", *flags)
        plugins = document(tmp_path / "engine")["build_config"]["plugin_config"]
        assert (plugins["reduce_fusion"], plugins["user_buffer"]) == (kept, kept)
        assert plugins["norm_quant_fusion"] is False

    @pytest.mark.parametrize(
        ("flags", "quantization", "capability", "paged", "fp8"),
        [
            ((), {}, "9.0", True, False),
            ((), _FP8, "9.0", True, True),
            ((), _FP8, "8.0", False, False),  # no FP8 context kernels before Ada
            ((), {"quant_algo": "FP8"}, "9.0", True, False),
            ((), {"kv_cache_quant_algo": "FP8"}, "9.0", False, False),
            ((), {"quant_algo": "W8A16", "kv_cache_quant_algo": "INT8"}, "9.0", False, False),
            (("--use_fp8_context_fmha", "disable"), _FP8, "9.0", True, True),
            (("--use_paged_context_fmha", "disable"), {"quant_algo": "FP8"}, "9.0", False, True),
            (("--context_fmha", "disable"), _FP8, "9.0", False, False),
            (("--streamingllm", "enable"), {}, "9.0", False, False),
        ],
    )
    def test_context_attention_follows_the_quantization(
        self, build, installed, flags, quantization, capability, paged, fp8
    ):
        """Paged context FMHA, and with it KV reuse, is lost silently where the KV cache does not allow it."""
        toolchain = installed("1.0.0", capability)
        plugins = build(*flags, on=toolchain, quantization=quantization)["plugin_config"]
        assert (plugins[_PAGED], plugins[_FP8_CONTEXT]) == (paged, fp8)

    @pytest.mark.parametrize(
        ("quantization", "plugin", "value"),
        [
            ({"quant_algo": "W8A16"}, "weight_only_quant_matmul_plugin", "float16"),
            ({"quant_algo": "W4A16_AWQ"}, "weight_only_groupwise_quant_matmul_plugin", "float16"),
            ({"quant_algo": "W8A8_SQ_PER_TENSOR_PLUGIN"}, "smooth_quant_gemm_plugin", "float16"),
            ({"quant_algo": "NVFP4"}, "gemm_plugin", "nvfp4"),
        ],
    )
    def test_quantization_brings_its_plugin(self, build, quantization, plugin, value):
        """The plugin that the algorithm needs is recorded without a flag for it."""
        assert build(quantization=quantization)["plugin_config"][plugin] == value

    @pytest.mark.parametrize(
        ("quantization", "words"),
        [
            ({"quant_algo": "W4A16_AWQ"}, "INT8/INT4 quantization"),
            ({"kv_cache_quant_algo": "INT8"}, "INT8/INT4 quantization"),
            ({"quant_algo": "W8A8_SQ_PER_CHANNEL"}, "SmoothQuant"),
            ({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "Per-channel or per-token"),
        ],
    )
    def test_data_centre_blackwell_refuses_integers(self, build, installed, quantization, words):
        """SM 100 takes no INT8 and INT4; SM 120 does."""
        toolchain = installed("1.2.1", "10.0")
        with pytest.raises(RuntimeError, match=words):
            build(on=toolchain, quantization=quantization)
        assert build(on=installed("1.2.1", "12.0"), quantization=quantization)

    def test_sm_100_refuses_plugins_without_kernels(self, build, installed):
        """A plugin that Blackwell lacks is refused before the checkpoint is read."""
        toolchain = installed("1.2.1", "10.0")
        with pytest.raises(NotImplementedError, match="low_latency_gemm_plugin=fp8 is not supported on SM 100"):
            build("--low_latency_gemm_plugin", "fp8", on=toolchain)

    @pytest.mark.parametrize(
        ("flags", "recorded"),
        [
            ((), "PAGED"),
            (("--kv_cache_type", "continuous"), "CONTINUOUS"),
            (("--paged_kv_cache", "disable"), "CONTINUOUS"),
        ],
    )
    def test_kv_cache_type(self, build, flags, recorded):
        """Recorded by its upper-case name, whichever flag chose it."""
        record = build(*flags)
        assert record["kv_cache_type"] == recorded
        assert record["plugin_config"]["paged_kv_cache"] is (recorded == "PAGED")
        assert record["plugin_config"]["paged_state"] is False


class TestRefusals:
    """What does not build."""

    @pytest.mark.parametrize("flag", ["--gather_context_logits", "--gather_all_token_logits"])
    def test_context_logits_and_drafts(self, build, flag):
        """Logits of the prompt cannot be gathered with drafts; alone they can."""
        with pytest.raises(RuntimeError, match="Gather context logits is not support with draft len > 0"):
            build(flag, "--max_draft_len", 4)
        assert build(flag)["gather_context_logits"] is True

    @pytest.mark.parametrize(
        ("changes", "flags", "words"),
        [
            ({}, (), None),
            ({"num_eagle_layers": 4}, ("--max_batch_size", 513), "Max batch size > 512"),
            ({"num_eagle_layers": 4}, ("--max_batch_size", 1, "--max_draft_len", 257), "Max draft len > 256"),
        ],
    )
    def test_eagle_demands(self, build, changes, flags, words):
        """EAGLE needs its own checkpoint, at most 512 sequences and at most 256 drafts."""
        with pytest.raises(AssertionError, match=words):
            build("--speculative_decoding_mode", "eagle", *flags, **changes)

    def test_profiles_and_optimal_tokens(self, build):
        """Two ways to steer the profiles exclude each other."""
        with pytest.raises(RuntimeError, match="multiple_profiles is enabled"):
            build("--multiple_profiles", "enable", "--opt_num_tokens", 8)

    def test_the_two_kv_cache_flags_must_agree(self, build):
        """The deprecated flag may not say the opposite of the new one."""
        with pytest.raises(AssertionError):
            build("--kv_cache_type", "paged", "--paged_kv_cache", "disable")

    def test_no_checkpoint(self, toolchain, tmp_path):
        """Neither a checkpoint nor a configuration: the raw error of the real tool."""
        with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'lower'"):
            main_build(toolchain, "--output_dir", tmp_path / "engine")

    def test_a_broken_checkpoint(self, toolchain, tmp_path):
        """A missing, cut or foreign rank file and an unknown architecture each fail in their own way."""
        checkpoint = write_model(tmp_path / "model", toolchain)
        rank, flags = checkpoint / "rank0.safetensors", ("--checkpoint_dir", checkpoint, "--output_dir", tmp_path / "e")
        whole, config = rank.read_bytes(), document(checkpoint)
        rank.write_bytes(whole[:-1])
        with pytest.raises(Exception, match="file not fully covered"):
            main_build(toolchain, *flags)
        rank.write_bytes(whole)
        (checkpoint / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 9}), encoding="utf-8")
        with pytest.raises(RuntimeError, match=r"Required but not provided tensors:.*layers\.8"):
            main_build(toolchain, *flags)
        (checkpoint / "config.json").write_text(json.dumps(config | {"architecture": "Nope"}), encoding="utf-8")
        with pytest.raises(KeyError, match="Nope"):
            main_build(toolchain, *flags)
        (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
        rank.unlink()
        with pytest.raises(AssertionError):
            main_build(toolchain, *flags)

    def test_a_version_in_the_checkpoint_is_only_warned_about(self, build, capsys):
        """The converters write none, and the builder compares none: the key is taken over with a warning."""
        assert build(version="0.16.0")
        assert "[W] Implicitly setting PretrainedConfig.version = 0.16.0" in capsys.readouterr().out


class TestOutputs:
    """What lies in the engine folder."""

    def test_a_dry_run_writes_the_record_alone(self, build, tmp_path):
        """Everything but the engine."""
        assert "dry_run" not in build("--dry_run")
        assert names(tmp_path / "engine") == {"config.json"}

    def test_a_fast_build_keeps_its_weights_beside_the_engine(self, build, tmp_path):
        """Managed weights are a file of their own."""
        assert build("--fast_build")["plugin_config"]["manage_weights"] is True
        assert names(tmp_path / "engine") == {"config.json", "rank0.engine", "rank0_managed_weights.safetensors"}

    def test_a_configuration_alone_can_be_built(self, toolchain, tmp_path):
        """--model_config needs no weights."""
        config = write_model(tmp_path / "model", toolchain) / "config.json"
        assert main_build(toolchain, "--model_config", config, "--output_dir", tmp_path / "engine") == 0
        assert names(tmp_path / "engine") == {"config.json", "rank0.engine"}


class TestBuildConfigFile:
    """``--build_config`` in both eras."""

    @pytest.fixture
    def from_file(self, build, installed, tmp_path, monkeypatch):
        """Build with a ``--build_config`` document and flags, for a release."""
        monkeypatch.chdir(tmp_path)  # the document, not a flag, says where the timing cache goes

        def built(release, *flags, **config):
            (tmp_path / "build.json").write_text(json.dumps(config), encoding="utf-8")
            toolchain = installed(release)
            return build("--build_config", tmp_path / "build.json", *flags, on=toolchain)

        return built

    _SIZES = {
        "max_input_len": 64,
        "max_seq_len": 128,
        "max_batch_size": 4,
        "max_beam_width": 1,
        "max_num_tokens": 256,
        "opt_num_tokens": None,
    }

    def test_until_1_1_the_sizes_are_required(self, from_file):
        """A key that is left out is a KeyError; plugins need the KV cache type beside them."""
        with pytest.raises(KeyError, match="max_input_len"):
            from_file("1.0.0", max_batch_size=4)
        with pytest.raises(KeyError, match="kv_cache_type"):
            from_file("1.0.0", plugin_config={}, **self._SIZES)
        plugins = {"tokens_per_block": 64}
        record = from_file("1.0.0", kv_cache_type="paged", plugin_config=plugins, nope=1, **self._SIZES)
        assert (record["max_batch_size"], record["kv_cache_type"]) == (4, "PAGED")
        assert record["plugin_config"]["tokens_per_block"] == 64

    def test_from_1_2_on_everything_is_optional_but_the_mode_is_a_number(self, from_file):
        """A partial document is fine, unknown keys are ignored, the name of a mode is not."""
        record = from_file("1.2.1", max_batch_size=4, max_batchsize=5, speculative_decoding_mode=2, max_draft_len=3)
        assert (record["max_batch_size"], record["max_seq_len"], record["speculative_decoding_mode"]) == (4, 515, 2)
        with pytest.raises(ValueError, match="validation error for BuildConfig"):
            from_file("1.2.1", speculative_decoding_mode="DRAFT_TOKENS_EXTERNAL")

    def test_from_1_2_on_plugin_flags_do_not_count_beside_it(self, from_file):
        """The document's plugins, or the defaults, are used; the command line's are dropped without a word."""
        flags = ("--tokens_per_block", 128)
        assert from_file("1.2.1", *flags, max_batch_size=4)["plugin_config"]["tokens_per_block"] == 32
        assert from_file("1.0.0", *flags, **self._SIZES)["plugin_config"]["tokens_per_block"] == 128
