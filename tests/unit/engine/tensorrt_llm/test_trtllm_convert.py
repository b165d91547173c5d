"""How a checkpoint becomes a TensorRT-LLM checkpoint: every precision with every method, run in the stand-in."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from specdeploy.config.schema import TensorrtLlmConfig
from specdeploy.engine.profile import OUTPUT, PREVIOUS
from specdeploy.engine.tensorrt_llm.conversion_checks import check_conversion
from specdeploy.engine.tensorrt_llm.convert import convert
from specdeploy.engine.tensorrt_llm.precisions import PRECISIONS
from specdeploy.errors import ConfigError
from specdeploy.modelopt.options import parse_options
from tests.toolchain import install_toolchain
from tests.toolchain.convert_arguments import converter_parser
from tests.unit.engine.tensorrt_llm.trtllm_cases import CALIBRATION, codes, head, model, profile, spec
from tests.unit.engine.tensorrt_llm.trtllm_play import play, write_calibration, write_head, write_model
from tests.unit.toolchain.runs import document

METHODS = ("draft_target", "ngram", "lookahead", "medusa", "eagle", "redrafter")
HEADS = ("medusa", "eagle", "redrafter")
KV_CACHES = {"auto": None, "fp8": "FP8", "int8": "INT8"}
EVERY = list(itertools.product(METHODS, PRECISIONS, KV_CACHES))
MODELOPT = TensorrtLlmConfig(converter="modelopt", python="/opt/modelopt/bin/python")
UNQUANTISED = ("bf16", "fp16", "fp32")


def _engine(method, **changes):
    return spec(head=head() if method in HEADS else None, **changes)


def _check(made, engine):
    return codes(check_conversion(engine, made.config.speculation, made.config.tensorrt_llm, made.release))


def _conversions(made, engine):
    config = made.config
    return convert(engine, config.speculation, config.tensorrt_llm, made.release, CALIBRATION)


def _only(made, engine):
    (conversion,) = _conversions(made, engine)
    return conversion


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Small sources that a toolchain converts."""
    folder = tmp_path_factory.mktemp("conversions")
    write_model(folder / "model")
    write_head(folder / "head")
    write_calibration(folder / "texts")
    return folder


@pytest.fixture(scope="module")
def toolchain(place):
    """The stand-in of 0.21, for its ReDrafter converter is that of the releases before 1.0."""
    return install_toolchain(place / "trtllm", "0.21.0", gpus=2)


class TestEveryPrecision:
    """Every precision, method and KV cache either is refused before anything runs, or comes out as it was wanted."""

    @pytest.mark.parametrize(("method", "precision", "kv_cache"), EVERY)
    def test_the_checkpoint_is_what_was_wanted(self, place, toolchain, tmp_path, method, precision, kv_cache):
        """Algorithms of weights and KV cache, type, ranks and longest draft, as the tools record them."""
        checkpoint = model("llama-3.1-8b-instruct", path=str(place / "model"))
        engine = spec(precision=precision, kv_cache=kv_cache, tp_size=2, checkpoint=checkpoint)
        engine = dataclasses.replace(engine, head=head(path=str(place / "head")) if method in HEADS else None)
        made = dataclasses.replace(profile(method, "0.21.0"), calibration=str(place / "texts"))
        if _check(made, engine):
            assert _is_refused(method, precision, kv_cache)
            return
        config = document(play(toolchain, made.steps(engine)[:-1], tmp_path / "run"))

        assert not _is_refused(method, precision, kv_cache)
        assert config["quantization"]["quant_algo"] == PRECISIONS[precision].algorithm
        assert config["quantization"]["kv_cache_quant_algo"] == KV_CACHES[kv_cache]
        assert config["dtype"] == {"fp32": "float32", "fp16": "float16"}.get(precision, "bfloat16")
        assert (config["mapping"]["tp_size"], config["mapping"]["world_size"]) == (2, 2)
        assert config.get("max_draft_len") == (63 if method in {"medusa", "eagle"} else None)

    @pytest.mark.parametrize(("precision", "kv_cache"), list(itertools.product(PRECISIONS, KV_CACHES)))
    def test_modelopt_takes_the_line(self, precision, kv_cache):
        """By its own parser, which also refuses what does not go together; the rest is refused before."""
        made = profile(settings=MODELOPT)
        engine = spec(precision=precision, kv_cache=kv_cache, tp_size=2, pp_size=2)
        if codes_found := _check(made, engine):
            assert (codes_found, precision) in [
                (["convert.modelopt-precision"], refused) for refused in ("fp32", "int8_wo", "int4_wo")
            ]
            return
        step = made.steps(engine)[0]
        assert (step.argv[:2], step.argv[4]) == (("python3", "-c"), "specdeploy.modelopt")
        wanted = parse_options(step.argv[5:])
        assert (wanted.tp_size, wanted.pp_size, wanted.kv_cache) == (2, 2, kv_cache)
        assert wanted.qformat == (PRECISIONS[precision].qformat or "full_prec")
        assert step.gpus == (4 if precision == "nvfp4" else 0)

    def test_modelopt_joins_no_head(self):
        """It would write the base model alone."""
        made = profile("medusa", settings=MODELOPT)

        assert _check(made, _engine("medusa")) == ["convert.modelopt-head"]


def _is_refused(method, precision, kv_cache):
    """Say what no converter of 0.21 can do, by its own options: EAGLE's weights, and nothing of ReDrafter's."""
    if method == "eagle":
        return precision not in {*UNQUANTISED, "int8_wo", "int4_wo"} or kv_cache != "auto"
    return method == "redrafter" and (precision not in UNQUANTISED or kv_cache != "auto")


class TestPlain:
    """A checkpoint of its own."""

    def test_llama_over_ranks(self):
        """Tensor and pipeline parallelism, converted by as many workers as there are ranks."""
        conversion = _only(profile(), spec(tp_size=4, pp_size=2))

        assert conversion.script == "models/core/llama/convert_checkpoint.py"
        assert conversion.paths == {"--model_dir": "/checkpoints/llama-3.1-8b-instruct", "--output_dir": OUTPUT}
        assert conversion.arguments[4:] == (
            *("--dtype", "bfloat16", "--tp_size", "4", "--pp_size", "2"),
            *("--workers", "8"),
        )
        assert "workers" not in conversion.parts

    def test_the_experts_of_a_mixture(self):
        """What is left of the tensor parallelism is shared inside every expert."""
        conversion = _only(profile(), spec(checkpoint=model("llama-3.1-8b-instruct"), tp_size=8, ep_size=4))
        parsed = converter_parser("llama").parse_args(conversion.arguments)

        assert (parsed.tp_size, parsed.moe_tp_size, parsed.moe_ep_size) == (8, 2, 4)

    @pytest.mark.parametrize(
        ("changes", "settings", "code"),
        [
            ({"tp_size": 4, "ep_size": 3}, None, "convert.experts"),
            ({"tp_size": 4, "ep_size": 2, "precision": "fp8"}, None, "convert.no-expert-parallelism"),
            ({"tp_size": 4, "ep_size": 2, "kv_cache": "int8"}, None, "convert.no-expert-parallelism"),
            ({"tp_size": 4, "ep_size": 2}, MODELOPT, "convert.no-expert-parallelism"),
            ({"tp_size": 4, "ep_size": 2, "architecture": "FalconForCausalLM"}, None, "convert.no-expert-parallelism"),
        ],
    )
    def test_experts_that_nothing_divides_are_an_error(self, changes, settings, code):
        """The program would ignore the wish, or not know the option."""
        architecture = changes.pop("architecture", "MixtralForCausalLM")
        engine = spec(checkpoint=model("llama-3.1-8b-instruct", architecture=architecture), **changes)

        assert _check(profile(settings=settings), engine) == [code]

    def test_gemma_has_its_own_spelling(self):
        """Hyphens, the ranks as a world size, and neither stages nor weight-only precisions."""
        gemma = model("llama-3.1-8b-instruct", architecture="Gemma2ForCausalLM")
        conversion = _only(profile(), spec(checkpoint=gemma, tp_size=2))
        parsed = converter_parser("gemma").parse_args(conversion.arguments)

        assert (parsed.ckpt_type, parsed.dtype, parsed.world_size) == ("hf", "bfloat16", 2)
        assert (str(parsed.model_dir), str(parsed.output_dir)) == (gemma.path, OUTPUT)
        assert _check(profile(), spec(checkpoint=gemma, pp_size=2)) == ["convert.pipeline"]
        assert _check(profile(), spec(checkpoint=gemma, precision="int8_wo")) == ["convert.weight-only"]

    def test_phi_has_no_stages(self):
        """Its converter asserts that there is one."""
        phi = model("llama-3.1-8b-instruct", architecture="Phi3ForCausalLM")

        assert _check(profile(), spec(checkpoint=phi, pp_size=2)) == ["convert.pipeline"]
        assert _check(profile(), spec(checkpoint=phi, tp_size=2)) == []

    def test_a_model_class_that_the_release_cannot_convert(self):
        """As a finding, and as an error for who plans all the same."""
        qwen = model("qwen2.5-32b-instruct", architecture="Qwen3ForCausalLM")
        old, new = profile(release="0.19.0"), profile(release="0.20.0")

        assert _check(old, spec(checkpoint=qwen)) == ["convert.architecture"]
        assert _check(new, spec(checkpoint=qwen)) == []
        with pytest.raises(ConfigError, match="no known converter for Qwen3ForCausalLM"):
            _conversions(old, spec(checkpoint=qwen))

    def test_quantising_needs_the_gpus_of_the_engine(self):
        """The unquantised model has to lie on them, a conversion needs none."""
        assert _only(profile(), spec(precision="fp8", tp_size=4)).gpus == 4
        assert _only(profile(), spec(tp_size=4)).gpus == 0

    def test_the_users_own_arguments_come_last(self):
        """So that they win, and they are part of the result."""
        conversion = _only(
            profile(), spec(extra_convert_args=("--use_parallel_embedding", "--embedding_sharding_dim 1"))
        )

        assert conversion.arguments[-3:] == ("--use_parallel_embedding", "--embedding_sharding_dim", "1")
        assert conversion.parts["extra"] == {"use_parallel_embedding": [], "embedding_sharding_dim": ["1"]}

    def test_how_arguments_are_written_does_not_matter(self):
        """Another order, another spelling, or more to read in the log is the same engine."""
        one = spec(extra_convert_args=("--group_size 64", "--hidden_act=silu"))
        other = spec(extra_convert_args=("--hidden_act silu", "--log_level verbose", "--group_size=64"))

        assert profile().steps(one)[0].key == profile().steps(other)[0].key != profile().steps(spec())[0].key

    @pytest.mark.parametrize(
        ("argument", "severity", "code", "hint"),
        [
            ("--tp_size 2", "error", "flags.owned", "Leave it out here."),
            ("--model_dir /x", "error", "flags.owned", "Leave it out here."),
            ("--load_by_shards", "warning", "convert.unknown-option", "did you mean --load_by_shard?"),
        ],
    )
    def test_arguments_that_no_converter_should_get(self, argument, severity, code, hint):
        """What the configuration decides is refused; what is not known is said before an hour of conversion."""
        (finding,) = profile().check(spec(extra_convert_args=(argument,)))

        assert (finding.severity, finding.code, finding.hint) == (severity, code, hint)

    def test_an_open_quotation_is_a_finding(self):
        """And no crash of the plan."""
        assert _check(profile(), spec(extra_convert_args=("--a 'b",))) == ["flags.syntax"]


class TestHeads:
    """A head that is joined to its base model."""

    def test_a_draft_has_no_head(self):
        """It is converted as any checkpoint is."""
        assert _only(profile("eagle"), _engine("eagle", role="draft")).script.endswith("llama/convert_checkpoint.py")

    @pytest.mark.parametrize(
        ("architecture", "model_type"),
        [("LlamaForCausalLM", "llama"), ("MixtralForCausalLM", "mixtral"), ("Qwen2ForCausalLM", "qwen2")],
    )
    def test_medusa_is_told_the_kind_of_its_base(self, architecture, model_type):
        """Which it would take for a Llama otherwise."""
        checkpoint = model("llama-3.1-8b-instruct", architecture=architecture)
        conversion = _only(profile("medusa", num_heads=3), _engine("medusa", checkpoint=checkpoint, pp_size=2))
        parsed = converter_parser("medusa").parse_args(conversion.arguments)

        assert (parsed.model_type, parsed.num_medusa_heads, parsed.pp_size) == (model_type, 3, 2)
        assert (parsed.max_medusa_token_len, parsed.num_medusa_layers) == (63, 1)

    def test_quantised_medusa_is_made_by_quantize(self):
        """Which calls the longest draft by another name."""
        conversion = _only(profile("medusa", tree_tokens=31), _engine("medusa", precision="fp8"))

        assert conversion.script == "quantization/quantize.py"
        assert conversion.options["--max_draft_len"] == "31"
        assert conversion.paths["--medusa_model_dir"] == head().path

    @pytest.mark.parametrize(
        ("method", "release", "takes"),
        [
            ("medusa", "1.2.1", {"LlamaForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM"}),
            ("eagle", "1.2.1", {"LlamaForCausalLM", "MixtralForCausalLM"}),
            ("redrafter", "0.21.0", {"LlamaForCausalLM"}),
            ("redrafter", "1.0.0", {"LlamaForCausalLM", "Qwen2ForCausalLM"}),
        ],
    )
    def test_a_head_goes_with_few_model_classes(self, method, release, takes):
        """The others have draft-target speculation, or the LLM API."""
        every = ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM", "GemmaForCausalLM")
        made = profile(method, release)
        found = {
            architecture: _check(
                made, _engine(method, checkpoint=model("llama-3.1-8b-instruct", architecture=architecture))
            )
            for architecture in every
        }

        assert {architecture for architecture in every if not found[architecture]} == takes
        assert {tuple(found[architecture]) for architecture in set(every) - takes} == {("convert.head-base",)}

    @pytest.mark.parametrize("release", ["1.0.0", "1.2.1"])
    @pytest.mark.parametrize(
        ("precision", "kv_cache", "base"), [("bf16", "auto", "convert"), ("fp8", "fp8", "quantise")]
    )
    def test_redrafter_is_joined_to_a_converted_base(self, release, precision, kv_cache, base):
        """From 1.0 on: the base first, by the converter of its family or by quantize.py, then the head."""
        made = profile("redrafter", release)
        engine = _engine(
            "redrafter", precision=precision, kv_cache=kv_cache, extra_convert_args=("--storage-type fp16",)
        )
        alone = made.steps(dataclasses.replace(engine, head=None, extra_convert_args=()))
        first, second = _conversions(made, engine)
        steps = made.steps(engine)

        assert _check(made, engine) == []
        assert [step.name for step in steps] == [base, "join", "build"]
        assert second.paths == {
            "--base_model_checkpoint_dir": PREVIOUS,
            "--output_dir": OUTPUT,
            "--drafter_model_dir": head().path,
        }
        assert second.options["--redrafter_num_beams"] == "5"
        assert (first.extra, second.extra) == ((), ("--storage-type", "fp16"))
        # The base is an ordinary checkpoint, which another engine may have left.
        assert steps[0] == alone[0]
        assert steps[1].inputs == (head().path,)
        assert steps[1].parts["head"] == head().fingerprint
        assert "checkpoint" not in steps[1].parts

    @pytest.mark.parametrize(
        ("precision", "kv_cache", "code"),
        [
            ("int8_wo", "auto", "convert.head-precision"),
            ("nvfp4", "auto", "convert.head-precision"),
            ("fp8", "int8", "convert.head-kv-cache"),
        ],
    )
    def test_a_base_that_is_not_documented_for_redrafter(self, precision, kv_cache, code):
        """FP16, BF16 and FP8 are."""
        assert _check(profile("redrafter"), _engine("redrafter", precision=precision, kv_cache=kv_cache)) == [code]
