"""The profile as a whole: what decides an engine's key and what must not, and what is said about it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from specdeploy.config.schema import TensorrtLlmConfig
from specdeploy.engine.profile import engine_key
from specdeploy.errors import ConfigError
from tests.toolchain.flags import build_parser, load_flags
from tests.unit.engine.tensorrt_llm.trtllm_cases import ROOT, codes, head, model, profile, spec

OTHER = model("llama-3.1-8b-instruct", fingerprint="e" * 64)
MOVED = model("llama-3.1-8b-instruct", path="/elsewhere/copy", name="copy")


def _key(made, engine):
    return engine_key(made.steps(engine))


def _settings(**changes):
    return profile(settings=TensorrtLlmConfig(**changes))


class TestKeys:
    """An engine is built again when, and only when, it would be another one."""

    @pytest.mark.parametrize(
        ("made", "engine"),
        [
            (profile(release="1.2.0"), spec()),
            (profile("ngram", num_draft_tokens=5), spec()),
            (profile("lookahead"), spec()),
            (profile(num_draft_tokens=5), spec()),
            (profile(max_draft_tokens=8), spec()),
            (_settings(max_num_tokens=4096), spec()),
            (_settings(logits_dtype="float16"), spec()),
            (dataclasses.replace(profile(), capability=(8, 9)), spec()),
            (dataclasses.replace(profile(), capability=None), spec()),
            (profile(), spec(precision="fp16")),
            (profile(), spec(precision="fp8")),
            (profile(), spec(kv_cache="int8")),
            (profile(), spec(tp_size=2)),
            (profile(), spec(pp_size=2)),
            (profile(), spec(max_batch_size=9)),
            (profile(), spec(max_seq_len=4097)),
            (profile(), spec(checkpoint=OTHER)),
            (profile(), spec(role="draft")),
            (profile(), spec(extra_build_args=("--gemm_plugin disable",))),
            (profile(), spec(extra_build_args=("--strip_plan",))),
            (profile(), spec(extra_convert_args=("--use_parallel_embedding",))),
        ],
    )
    def test_what_makes_another_engine(self, made, engine):
        """One key each, and none is that of the plain deployment."""
        assert _key(made, engine) != _key(profile(), spec())

    @pytest.mark.parametrize(
        ("made", "engine"),
        [
            (profile(), spec(checkpoint=MOVED)),
            (profile(), spec(name="another-name")),
            (_settings(workers=1), spec()),
            (_settings(examples_dir="/opt/examples/"), spec()),
            (_settings(python="/usr/bin/python3.12"), spec()),
            # Nothing of it is calibrated.
            (_settings(calib_size=7), spec()),
            (dataclasses.replace(profile(), calibration="", calibration_fingerprint=""), spec()),
            (dataclasses.replace(profile(), modelopt_python="/opt/python"), spec()),
            (profile(), spec(extra_build_args=("--log_level verbose",))),
            (profile(), spec(extra_build_args=("--input_timing_cache /tmp/cache",))),
            (profile(), spec(extra_build_args=("--gemm_plugin auto",))),
            # Another method's settings.
            (profile(tree_tokens=5, num_heads=2, num_beams=3, window_size=3), spec()),
        ],
    )
    def test_what_does_not(self, made, engine):
        """Where things lie, who makes them, how many at once, and how much is said meanwhile."""
        assert _key(made, engine) == _key(profile(), spec())

    def test_the_texts_decide_a_quantised_engine(self):
        """Their content and number, not their place; for ModelOpt as for upstream's script."""
        for settings in (TensorrtLlmConfig(), TensorrtLlmConfig(converter="modelopt")):
            made, engine = profile(settings=settings), spec(precision="fp8")
            moved = dataclasses.replace(made, calibration="/elsewhere")
            others = dataclasses.replace(made, calibration_fingerprint="d" * 64)
            fewer = profile(settings=dataclasses.replace(settings, calib_size=5))

            assert _key(made, engine) == _key(moved, engine)
            assert len({_key(each, engine) for each in (made, others, fewer)}) == 3

    @pytest.mark.parametrize("method", ["medusa", "eagle", "redrafter"])
    @pytest.mark.parametrize("release", ["0.21.0", "1.2.1"])
    def test_the_head_decides_the_targets_engine(self, method, release):
        """Its content, not its place."""
        made = profile(method, release)
        plain, moved, other = (spec(head=each) for each in (head(), head(path="/x"), head(fingerprint="d" * 64)))

        assert _key(made, plain) == _key(made, moved) != _key(made, other)

    def test_a_converted_checkpoint_serves_engines_of_other_limits(self):
        """So that a kept one is used again."""
        first, second = (profile().steps(spec(max_seq_len=length)) for length in (1024, 2048))

        assert first[0].key == second[0].key
        assert first[1].key != second[1].key

    def test_the_parts_are_plain_and_say_what_the_key_is_made_from(self):
        """Two keys that differ can be explained."""
        convert, build = profile().steps(spec(extra_build_args=("--strip_plan --opt_num_tokens=64",)))

        assert json.loads(json.dumps(build.parts)) == build.parts
        assert convert.parts["checkpoint"] == spec().checkpoint.fingerprint
        assert (build.parts["gpu"], build.parts["strip_plan"], build.parts["opt_num_tokens"]) == ("9.0", True, "64")


class TestBuild:
    """The builder's command line."""

    @staticmethod
    def _parsed(made, engine):
        flags = load_flags(ROOT / "tests/data/trtllm_build_flags/trtllm_build_flags_1.2.1.json")
        return build_parser(flags).parse_args(made.steps(engine)[-1].argv[1:])

    @pytest.mark.parametrize(
        ("argument", "plugin"), [("--gemm_plugin disable", "disable"), ("--gemm_plugin=fp8", "fp8")]
    )
    def test_the_users_argument_wins(self, argument, plugin):
        """Over ours, on the command line and in the key."""
        engine = spec(extra_build_args=(argument,))

        assert self._parsed(profile(), spec()).gemm_plugin == "auto"
        assert self._parsed(profile(), engine).gemm_plugin == plugin
        assert profile().steps(engine)[-1].parts["gemm_plugin"] == plugin

    def test_quantised_weights_keep_the_releases_own_gemm(self):
        """Which is the one that knows them."""
        assert self._parsed(profile(), spec(precision="fp8")).gemm_plugin is None

    @pytest.mark.parametrize(
        ("method", "batch", "tokens"),
        [("lookahead", 256, 256 * 84), ("medusa", 256, 256 * 64), ("draft_target", 8, 8192), ("redrafter", 8, 8192)],
    )
    def test_a_pass_holds_a_step_of_every_sequence(self, method, batch, tokens):
        """The builder would raise it silently; the draft's engine verifies nothing."""
        engine = spec(max_batch_size=batch, head=head())

        assert self._parsed(profile(method), engine).max_num_tokens == tokens
        assert self._parsed(profile(method), dataclasses.replace(engine, role="draft")).max_num_tokens == 8192

    @pytest.mark.parametrize(("workers", "gpus"), [(0, 8), (2, 2), (16, 8)])
    def test_ranks_are_built_at_once(self, workers, gpus):
        """All of them unless the configuration says fewer."""
        step = _settings(workers=workers).steps(spec(tp_size=4, pp_size=2))[-1]

        assert step.gpus == gpus
        assert step.argv[step.argv.index("--workers") + 1] == str(workers or 8)

    def test_steps_say_what_they_read_and_write(self):
        """One file a rank, beside the configuration; the timing cache is thrown away."""
        convert, build = profile().steps(spec(tp_size=2))

        assert convert.inputs == ("/checkpoints/llama-3.1-8b-instruct",)
        assert convert.outputs == ("config.json", "rank0.safetensors", "rank1.safetensors")
        assert convert.requires == ("python3", "/app/examples/models/core/llama/convert_checkpoint.py")
        assert build.inputs == ()
        assert build.outputs == ("config.json", "rank0.engine", "rank1.engine")
        assert build.argv[-1] == "{scratch}/model.cache"

    def test_nothing_is_fetched_while_it_converts(self):
        """A checkpoint is a folder here: what is missing is an error at once."""
        assert profile().steps(spec())[0].env == {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


class TestSaid:
    """What is said about an engine."""

    def test_findings_of_every_kind_come_together(self):
        """Method, conversion, precision and arguments."""
        made = dataclasses.replace(profile("eagle"), calibration="")
        engine = spec(precision="fp8", pp_size=2, head=head(), extra_build_args=("--zzz",))

        assert codes(made.check(engine)) == [
            "method.eagle-pipeline",
            "convert.head-precision",
            "precision.no-calibration",
            "flags.unknown",
        ]

    def test_a_release_that_is_not_known_is_an_error(self):
        """Before any engine is planned."""
        with pytest.raises(ConfigError, match=r"1\.9"):
            profile(release="1.9").check(spec())

    def test_the_facts_of_a_target_and_a_draft(self):
        """The draft's engine is an ordinary one."""
        made = profile(max_draft_tokens=8)
        target, draft = (made.facts(spec(role=role, tp_size=2)) for role in ("target", "draft"))

        assert (target["method"], target["speculative_decoding_mode"], target["max_draft_len"]) == (
            "draft_target",
            2,
            8,
        )
        assert (draft["method"], draft["speculative_decoding_mode"], draft["max_draft_len"]) == ("none", 1, 0)
        assert (target["release"], target["compute_capability"], target["world_size"]) == ("1.2.1", "9.0", 2)
        assert json.loads(json.dumps(target)) == target

    @pytest.mark.parametrize(("precision", "gigabytes"), [("bf16", 141), ("fp8", 73), ("int4_awq", 39)])
    def test_the_size_of_a_70b(self, precision, gigabytes):
        """Embedding and output stay at 16 bits; within a twentieth, for a message."""
        engine = spec(checkpoint=model("llama-3.3-70b-instruct"), precision=precision)

        assert profile().estimated_bytes(engine) / 1e9 == pytest.approx(gigabytes, rel=0.05)

    def test_a_head_is_part_of_the_engine(self):
        """It is built in."""
        with_head, without = spec(head=head()), spec()
        made = profile("medusa")

        assert made.estimated_bytes(with_head) - made.estimated_bytes(without) == head().weight_bytes

    def test_auto_is_as_stored(self):
        """What the plan shows is never ``auto``."""
        assert profile().precision("auto", model("vicuna-7b-v1.3")) == "fp16"
        assert profile().precision("auto", model("llama-3.1-8b-instruct")) == "bf16"
        assert profile().limit(spec()) == 4096
        assert profile().requirements() == ("trtllm-build",)
