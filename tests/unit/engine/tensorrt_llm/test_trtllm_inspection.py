"""What a finished engine records against what was planned: the stand-in's engines, its rewrites and its faults."""

from __future__ import annotations

import dataclasses

import pytest

from specdeploy.config.schema import TensorrtLlmConfig
from tests.toolchain import install_toolchain, set_faults
from tests.unit.engine.tensorrt_llm.trtllm_cases import codes, head, model, profile, spec
from tests.unit.engine.tensorrt_llm.trtllm_play import (
    edit,
    play,
    recorded,
    write_calibration,
    write_head,
    write_model,
)
from tests.unit.toolchain.runs import document

HEADS = ("medusa", "eagle", "redrafter")
METHODS = ("draft_target", "ngram", "lookahead", *HEADS)


@pytest.fixture
def toolchain(tmp_path):
    """The stand-in of 1.2.1."""
    return install_toolchain(tmp_path / "trtllm", "1.2.1", gpus=4)


@pytest.fixture
def engine_of(tmp_path):
    """Return a function that gives the engine of a small model, and one with a head."""
    write_model(tmp_path / "model")
    write_head(tmp_path / "head")

    def make(method="draft_target", **changes):
        joined = head(path=str(tmp_path / "head")) if method in HEADS else None
        return spec(checkpoint=model("llama-3.1-8b-instruct", path=str(tmp_path / "model")), head=joined, **changes)

    return make


@pytest.fixture
def build(toolchain, tmp_path):
    """Return a function that builds an engine in the stand-in; keywords are options to be other than planned."""

    def run(made, engine, tools=toolchain, **words):
        return play(tools, made.steps(engine), tmp_path / "build", **words)

    return run


def _verify(made, engine, folder):
    return made.verify(engine, *recorded(folder))


class TestRewrites:
    """What the builder changes by itself, and what is as good as what was planned."""

    @pytest.mark.parametrize("release", ["0.17.0", "0.21.0", "1.2.1"])
    @pytest.mark.parametrize("method", METHODS)
    def test_an_engine_of_every_method_is_accepted(self, tmp_path, engine_of, build, method, release):
        """Longer sequences, more tokens a pass, plugins and modes that were not asked for."""
        made, engine = profile(method, release), engine_of(method)
        folder = build(made, engine, install_toolchain(tmp_path / release, release))
        record = document(folder)["build_config"]

        assert record["max_seq_len"] > engine.max_seq_len
        assert _verify(made, engine, folder) == ()

    def test_a_drafts_engine_is_ordinary(self, engine_of, build):
        """No mode, no draft tokens."""
        made, engine = profile(), engine_of(role="draft")
        folder = build(made, engine)

        assert document(folder)["build_config"]["speculative_decoding_mode"] == 1
        assert _verify(made, engine, folder) == ()

    @pytest.mark.parametrize("recorded_mode", [2, "DRAFT_TOKENS_EXTERNAL", "draft_tokens_external"])
    def test_the_mode_is_recorded_as_a_number_or_by_name(self, engine_of, build, recorded_mode):
        """Releases do either."""
        made, engine = profile(), engine_of()
        folder = build(made, engine)
        edit(folder, "build_config", speculative_decoding_mode=recorded_mode)

        assert _verify(made, engine, folder) == ()

    def test_more_than_planned_is_fine(self, engine_of, build):
        """A longer draft, a larger batch, longer sequences."""
        made, engine = profile(num_draft_tokens=8), engine_of(max_seq_len=4096, max_batch_size=8)
        folder = build(made, engine)
        less = dataclasses.replace(engine, max_seq_len=1024, max_batch_size=4)

        assert _verify(profile(num_draft_tokens=4), less, folder) == ()


class TestFaults:
    """What would fail at run time, found before the engine is published."""

    def _only(self, made, engine, folder):
        (finding,) = _verify(made, engine, folder)
        assert (finding.severity, finding.where) == ("error", engine.name)
        return finding

    @pytest.mark.parametrize(
        ("fault", "code", "says"),
        [
            ("success_without_file", "engine.ranks", "2 ranks, and the files with content are: none"),
            ("other_version:1.0.0", "engine.version", "built by TensorRT-LLM 1.0.0, and 1.2.1 is to serve it"),
            ("no_paged_fmha", "engine.no-reuse", "paged context attention is off"),
        ],
    )
    def test_a_builder_that_says_all_is_well(self, toolchain, engine_of, build, fault, code, says):
        """It ends with 0, and the engine is of no use."""
        set_faults(toolchain, {"trtllm-build": fault})
        made, engine = profile(), engine_of(tp_size=2)
        finding = self._only(made, engine, build(made, engine))

        assert finding.code == code
        assert says in finding.message

    @pytest.mark.parametrize("method", ["medusa", "lookahead"])
    def test_methods_that_send_nothing_again_need_no_reuse(self, toolchain, engine_of, build, method):
        """For them an engine without paged context attention is slower, not wrong."""
        set_faults(toolchain, {"trtllm-build": "no_paged_fmha"})
        made, engine = profile(method), engine_of(method)

        assert _verify(made, engine, build(made, engine)) == ()

    @pytest.mark.parametrize("rank", [0, 1])
    @pytest.mark.parametrize("empty", [True, False])
    def test_a_rank_that_is_missing_or_empty(self, engine_of, build, rank, empty):
        """Each runs on a GPU of its own."""
        made, engine = profile(), engine_of(tp_size=2)
        folder = build(made, engine)
        (folder / f"rank{rank}.engine").write_bytes(b"")
        if not empty:
            (folder / f"rank{rank}.engine").unlink()
        finding = self._only(made, engine, folder)

        assert finding.code == "engine.ranks"
        assert finding.message.endswith(f": rank{1 - rank}.engine")

    def test_too_few_draft_tokens(self, engine_of, build):
        """A request that asks for more would be refused."""
        finding = self._only(profile(num_draft_tokens=8), engine_of(), build(profile(), engine_of()))

        assert finding.code == "engine.draft-length"
        assert "takes 4 draft tokens, planned was at least 8" in finding.message

    @pytest.mark.parametrize("window", [6, 8])
    def test_another_lookahead_than_planned(self, engine_of, build, window):
        """The runtime asserts that the numbers are equal: more is as wrong as fewer."""
        finding = self._only(
            profile("lookahead", window_size=window), engine_of(), build(profile("lookahead"), engine_of())
        )

        assert finding.code == "engine.draft-length"
        assert "planned was exactly" in finding.message

    def test_another_mode_than_planned(self, engine_of, build):
        """Draft tokens would be refused."""
        folder = build(profile(), engine_of(), speculative_decoding_mode="lookahead_decoding")
        finding = self._only(profile(), engine_of(), folder)

        assert (finding.code, "DRAFT_TOKENS_EXTERNAL (2)" in finding.message) == ("engine.mode", True)

    @pytest.mark.parametrize("mode", ["NOTHING", None, 512])
    def test_a_mode_that_is_none_of_ours(self, engine_of, build, mode):
        """Unknown is not right."""
        made, engine = profile(), engine_of()
        folder = build(made, engine)
        edit(folder, "build_config", speculative_decoding_mode=mode)

        assert self._only(made, engine, folder).code == "engine.mode"

    @pytest.mark.parametrize("method", ["draft_target", "lookahead"])
    def test_a_kv_cache_that_is_not_paged(self, engine_of, build, method):
        """In-flight batching stands on pages, whatever the method."""
        made, engine = profile(method), engine_of()
        folder = build(made, engine, kv_cache_type="continuous")
        finding = self._only(made, engine, folder)

        assert (finding.code, "continuous, not paged" in finding.message) == ("engine.kv-cache-type", True)

    @pytest.mark.parametrize(
        ("built", "planned", "says"),
        [
            ("fp8", "auto", "its KV cache is FP8, planned was unquantised"),
            ("auto", "fp8", "its KV cache is unquantised, planned was FP8"),
        ],
    )
    def test_another_kv_cache_than_planned(self, tmp_path, engine_of, build, built, planned, says):
        """It would take twice or half the memory that was counted."""
        made = profile(settings=TensorrtLlmConfig(logits_dtype="float16"))
        made = dataclasses.replace(made, calibration=write_calibration(tmp_path / "texts"))
        folder = build(made, engine_of(precision="fp8", kv_cache=built))
        finding = self._only(made, engine_of(precision="fp8", kv_cache=planned), folder)

        assert (finding.code, says in finding.message) == ("engine.kv-cache", True)

    def test_an_int8_kv_cache_turns_reuse_off(self, tmp_path, engine_of, build):
        """The builder does so silently; the plan refuses it, and so does the inspection."""
        made = profile(settings=TensorrtLlmConfig(logits_dtype="float16"))
        made = dataclasses.replace(made, calibration=write_calibration(tmp_path / "texts"))
        engine = engine_of(precision="fp8", kv_cache="int8")

        assert codes(made.check(engine)) == ["precision.no-reuse"]
        assert self._only(made, engine, build(made, engine)).code == "engine.no-reuse"

    @pytest.mark.parametrize(
        ("change", "code", "says"),
        [
            ({"max_seq_len": 8192}, "engine.limit", "max_seq_len is 4100, planned was at least 8192"),
            ({"max_batch_size": 16}, "engine.limit", "max_batch_size is 8, planned was at least 16"),
        ],
    )
    def test_less_than_planned(self, engine_of, build, change, code, says):
        """Requests would be refused, or wait."""
        finding = self._only(profile(), engine_of(**change), build(profile(), engine_of()))

        assert (finding.code, finding.message) == (code, says)

    def test_another_division_than_planned(self, engine_of, build):
        """As many ranks, divided otherwise."""
        folder = build(profile(), engine_of(tp_size=2))
        findings = _verify(profile(), engine_of(pp_size=2), folder)

        assert codes(findings) == ["engine.mapping", "engine.mapping"]
        assert "tp_size is 2, planned was 1" in findings[0].message

    def test_other_logits_than_triton_is_told(self, engine_of, build):
        """Its ``logits_datatype`` follows the configuration."""
        other = profile(settings=TensorrtLlmConfig(logits_dtype="float16"))

        assert self._only(other, engine_of(), build(profile(), engine_of())).code == "engine.logits"

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"build_config": 3}', b"\xff"])
    def test_a_record_that_cannot_be_read(self, engine_of, content):
        """It is an error of the engine, and none of ours."""
        (finding,) = profile().verify(engine_of(), {"config.json": content}, {"rank0.engine": 1})

        assert (finding.code, "is not the JSON of an engine" in finding.message) == ("engine.config-unreadable", True)

    def test_a_record_that_is_missing(self, engine_of):
        """Or one that was never written."""
        (finding,) = profile().verify(engine_of(), {}, {"rank0.engine": 1})

        assert (finding.code, finding.message) == ("engine.config-unreadable", "config.json is missing")

    def test_an_empty_record_has_every_fault(self, engine_of):
        """Nothing that is absent passes for right."""
        findings = profile().verify(engine_of(), {"config.json": b"{}"}, {})

        assert set(codes(findings)) == {
            *("engine.ranks", "engine.version", "engine.mode", "engine.draft-length"),
            *("engine.limit", "engine.logits", "engine.no-reuse", "engine.kv-cache-type"),
        }
