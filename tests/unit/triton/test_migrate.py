"""Moving deployments: what becomes of each value of a repository filled in by hand, and of a deployment on engines."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.config.leaves import flatten
from specdeploy.config.rules import check_config
from specdeploy.errors import ConfigError, RepositoryError
from specdeploy.triton.repository.built import read_built
from specdeploy.triton.repository.migrate import UNKNOWN, configured, migrate
from specdeploy.triton.repository.notes import Note, notes_document, notes_text
from specdeploy.triton.repository.nvidia import read_nvidia
from specdeploy.triton.repository.overrides import check_overrides
from specdeploy.triton.repository.to_llmapi import to_llmapi
from specdeploy.triton.sources import read_repository
from tests.nvidia_templates import FILL, draft_copy, refill, write_engine, write_templates

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from specdeploy.config.schema import DeployConfig
    from specdeploy.triton.repository.built import BuiltEngine
    from specdeploy.triton.repository.migrate import Migration

    Filled = dict[str, str]

EXTERNAL, MEDUSA, LOOKAHEAD, REDRAFTER, EAGLE = 2, 4, 8, 16, 32
TOKENIZER = "/models/target"


def engine(tmp_path: Path, name: str = "target", **arguments: Any) -> BuiltEngine:
    """Return an engine as its ``config.json`` describes it."""
    folder = write_engine(tmp_path / name, **arguments)
    return read_built(json.loads((folder / "config.json").read_bytes()), name=name, size_bytes=6)


def repository(
    tmp_path: Path, fill: Mapping[str, str] | None = None, *, draft: Mapping[str, str] | None = None, **arguments: Any
) -> Path:
    """Write a repository, filled in; with *draft*, a copy of its engine model with these parameters changed."""
    release = arguments.pop("release", "1.2.1")
    folder = write_templates(tmp_path / "nvidia", release, fill={**FILL, **(fill or {})}, **arguments)
    if draft is not None:
        draft_copy(folder)
        refill(folder, "tensorrt_llm_draft", draft)
    return folder


def pair(tmp_path: Path, fill: Mapping[str, str] | None = None, **target: Any) -> Migration:
    """Return what becomes of a target and a draft."""
    folder = repository(tmp_path, fill, draft={"gpt_model_path": "/engines/draft"})
    arguments: dict[str, Any] = {"mode": EXTERNAL, "max_draft_len": 8, **target}
    engines = {"target": engine(tmp_path, **arguments), "draft": engine(tmp_path, "draft")}
    return moved(folder, engines)


def moved(folder: Path, engines: Mapping[str, BuiltEngine], **arguments: Any) -> Migration:
    """Return what becomes of a repository on disk."""
    given: dict[str, Any] = {"name": "moved", "tokenizer": TOKENIZER, "eos_token_ids": (2,), **arguments}
    return migrate(read_nvidia(read_repository(folder)), engines, **given)


def single(tmp_path: Path, fill: Mapping[str, str] | None = None, **target: Any) -> Migration:
    """Return what becomes of one engine without a draft."""
    no_draft = {"tensorrt_llm_draft_model_name": ""}
    return moved(repository(tmp_path, {**no_draft, **(fill or {})}), {"target": engine(tmp_path, **target)})


def note(notes: tuple[Note, ...], where: str) -> Note:
    """Return the only note about a place."""
    (only,) = [one for one in notes if one.where == where]
    return only


class TestEngines:
    """The engines' own ``config.json``."""

    def test_what_the_builder_added_is_taken_off(self, tmp_path: Path) -> None:
        """The recorded longest sequence has room for drafts, and for an EAGLE tree's depth, that no request gets."""
        assert engine(tmp_path, mode=EXTERNAL, max_draft_len=8).max_seq_len == 512
        tree = engine(
            tmp_path,
            "eagle",
            mode=EAGLE,
            max_draft_len=63,
            pretrained={"num_eagle_layers": 4},
            build={"max_seq_len": 512 + 63 + 4},
        )
        assert tree.max_seq_len == 512

    @pytest.mark.parametrize("mode", [2, "2", "DRAFT_TOKENS_EXTERNAL", "SpeculativeDecodingMode.DRAFT_TOKENS_EXTERNAL"])
    def test_the_mode_is_a_number_or_a_name(self, tmp_path: Path, mode: int | str) -> None:
        """Releases write it one way or the other."""
        assert engine(tmp_path, mode=mode, max_draft_len=4).method == "draft_target"

    @pytest.mark.parametrize(
        ("algorithm", "cache", "precision", "kv_cache"),
        [
            (None, None, "fp16", "auto"),
            ("FP8", "FP8", "fp8", "fp8"),
            ("W4A16_AWQ", None, "int4_awq", "auto"),
            ("W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN", "INT8", "int8_sq", "int8"),
            ("SOMETHING_NEW", None, "", "auto"),
        ],
    )
    def test_precisions_have_our_names(
        self, tmp_path: Path, algorithm: str | None, cache: str | None, precision: str, kv_cache: str
    ) -> None:
        """Quantisation is named as in ``specdeploy.yaml``; one that we have no name for has none."""
        built = engine(tmp_path, pretrained={"quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": cache}})

        assert (built.precision, built.kv_cache) == (precision, kv_cache)

    @pytest.mark.parametrize("document", [None, [], {}, {"version": "1.2.1"}, {"pretrained_config": 1}])
    def test_what_is_no_engine_is_refused(self, document: object) -> None:
        """A folder that is something else is named, with what to name instead."""
        with pytest.raises(RepositoryError, match=r"config\.json of x") as caught:
            read_built(document, name="x", size_bytes=0)

        assert "trtllm-build" in caught.value.hint


class TestPair:
    """A target and a draft behind `tensorrt_llm_bls`."""

    def test_the_configuration_is_one_that_loads(self, tmp_path: Path) -> None:
        """What comes out is free of contradictions, and has the engines' own limits."""
        config = pair(tmp_path).config

        assert check_config(config) == ()
        assert check_overrides(config) == ()
        assert (config.profile, config.release, config.speculation.method) == ("tensorrt_llm", "1.2.1", "draft_target")
        assert (config.speculation.num_draft_tokens, config.speculation.max_draft_tokens) == (4, 8)
        assert (config.build.max_seq_len, config.build.max_batch_size) == (512, 8)

    def test_requests_without_a_word_on_draft_logits_mean_what_they_meant(self, tmp_path: Path) -> None:
        """NVIDIA's default is to match tokens, ours is rejection sampling: theirs is kept."""
        assert not pair(tmp_path).config.speculation.use_draft_logits

    def test_a_short_engine_is_not_asked_for_more(self, tmp_path: Path) -> None:
        """The default draft is no longer than what the engine was built for."""
        assert pair(tmp_path, mode=EXTERNAL, max_draft_len=2).config.speculation.num_draft_tokens == 2

    def test_settings_with_a_key_go_there(self, tmp_path: Path) -> None:
        """GPU ids, KV fraction, queue and instances have keys of their own."""
        migration = pair(
            tmp_path,
            {
                "gpu_device_ids": "3",
                "kv_cache_free_gpu_mem_fraction": "0.4",
                "max_queue_size": "32",
                "preprocessing_instance_count": "2",
            },
        )
        config = migration.config

        assert config.target.gpu_ids == config.draft.gpu_ids == (3,)
        assert config.target.kv_fraction == config.draft.kv_fraction == 0.4
        assert config.repo.max_queue_size == 32
        assert config.repo.preprocessing_instances == 2
        assert note(migration.notes, "tensorrt_llm gpu_device_ids").to == "target.gpu_ids: [3]"

    def test_settings_without_a_key_become_lines(self, tmp_path: Path) -> None:
        """Every parameter that the release's backend takes and that we leave alone is handed on as it is."""
        config = pair(
            tmp_path,
            {
                "kv_cache_host_memory_bytes": "1000000",
                "max_attention_window_size": "4096,256",
                "batch_scheduler_policy": "max_utilization",
                "add_special_tokens": "False",
            },
        ).config

        assert set(config.repo.parameters) == {
            *(f"{model} kv_cache_host_memory_bytes=1000000" for model in ("tensorrt_llm", "tensorrt_llm_draft")),
            *(f"{model} max_attention_window_size=4096,256" for model in ("tensorrt_llm", "tensorrt_llm_draft")),
            *(f"{model} batch_scheduler_policy=max_utilization" for model in ("tensorrt_llm", "tensorrt_llm_draft")),
            *(f"{model} tokenizer_dir={TOKENIZER}" for model in ("tensorrt_llm", "tensorrt_llm_draft")),
            "preprocessing add_special_tokens=false",
        }
        assert check_overrides(config) == ()

    @pytest.mark.parametrize(
        ("placeholder", "value", "where", "now"),
        [
            ("exclude_input_in_output", "True", "tensorrt_llm exclude_input_in_output", "false"),
            ("enable_kv_cache_reuse", "false", "tensorrt_llm enable_kv_cache_reuse", "true"),
            ("max_beam_width", "4", "tensorrt_llm max_beam_width", "1"),
            ("batching_strategy", "V1", "tensorrt_llm gpt_model_type", "inflight_fused_batching"),
            ("triton_max_batch_size", "16", "tensorrt_llm max_batch_size", "1"),
            ("max_queue_delay_microseconds", "100", "tensorrt_llm max_queue_delay_microseconds", "0"),
            ("bls_instance_count", "4", "tensorrt_llm_bls instances", "build.max_batch_size: 8"),
            ("participant_ids", "1", "tensorrt_llm participant_ids", "by speculation.fast_logits"),
        ],
    )
    def test_what_must_change_says_why(
        self, tmp_path: Path, placeholder: str, value: str, where: str, now: str
    ) -> None:
        """A value that the draft loop cannot work with is replaced, with the old one, the new one and the reason."""
        found = note(pair(tmp_path, {placeholder: value}).notes, where)

        assert (found.outcome, found.to) == ("changed", now)
        assert found.why

    @pytest.mark.parametrize(
        ("placeholder", "value", "where"),
        [
            ("skip_special_tokens", "false", "postprocessing skip_special_tokens"),
            ("accumulate_tokens", "true", "tensorrt_llm_bls accumulate_tokens"),
            ("multimodal_model_path", "/models/vision", "preprocessing multimodal_model_path"),
            ("multimodal_encoders_name", "encoders", "tensorrt_llm_bls multimodal_encoders_name"),
            ("encoder_engine_dir", "/engines/encoder", "tensorrt_llm encoder_model_path"),
            ("cross_kv_cache_fraction", "0.5", "tensorrt_llm cross_kv_cache_fraction"),
            ("num_nodes", "2", "tensorrt_llm num_nodes"),
            ("medusa_choices", "{0}", "tensorrt_llm medusa_choices"),
            ("kv_cache_free_gpu_mem_fraction", "most", "tensorrt_llm kv_cache_free_gpu_mem_fraction"),
        ],
    )
    def test_what_has_no_place_is_listed(self, tmp_path: Path, placeholder: str, value: str, where: str) -> None:
        """Nothing is dropped in silence."""
        found = note(pair(tmp_path, {placeholder: value}).notes, where)

        assert (found.outcome, found.value) == ("lost", value)
        assert found.why

    @pytest.mark.parametrize(("bls", "engine_", "streams"), [("false", "false", False), ("true", "false", True)])
    def test_what_did_not_stream_does_not(self, tmp_path: Path, bls: str, engine_: str, streams: bool) -> None:
        """Clients of a server that was not decoupled may be unary, which a decoupled one refuses."""
        folder = repository(tmp_path, {"decoupled_mode": engine_}, draft={"gpt_model_path": "/engines/draft"})
        path = folder / "tensorrt_llm_bls" / "config.pbtxt"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(f"decoupled: {engine_}", f"decoupled: {bls}"), encoding="utf-8")
        engines = {"target": engine(tmp_path, mode=EXTERNAL, max_draft_len=8), "draft": engine(tmp_path, "draft")}

        assert moved(folder, engines).config.repo.decoupled == streams

    def test_front_doors_of_two_kinds_become_streaming_ones(self, tmp_path: Path) -> None:
        """Both have one wiring; whoever called the one that did not stream is told."""
        folder = repository(tmp_path, {"decoupled_mode": "true"}, draft={"gpt_model_path": "/engines/draft"})
        path = folder / "tensorrt_llm_bls" / "config.pbtxt"
        path.write_text(path.read_text(encoding="utf-8").replace("decoupled: true", "decoupled: false"))
        engines = {"target": engine(tmp_path, mode=EXTERNAL, max_draft_len=8), "draft": engine(tmp_path, "draft")}
        migration = moved(folder, engines)

        assert migration.config.repo.decoupled
        assert note(migration.notes, "tensorrt_llm_bls decoupled").outcome == "changed"

    def test_several_instances_of_an_engine_keep_the_first(self, tmp_path: Path) -> None:
        """``0;1`` are two copies of the engine, and a deployment has one."""
        migration = pair(tmp_path, {"gpu_device_ids": "0;1"})

        assert migration.config.target.gpu_ids == (0,)
        outcomes = {one.outcome for one in migration.notes if one.where == "tensorrt_llm gpu_device_ids"}
        assert outcomes == {"carried", "lost"}

    def test_placeholders_that_were_never_filled_in_are_no_values(self, tmp_path: Path) -> None:
        """Those in strings and those that no server would have started with are both listed as never set."""
        folder = write_templates(
            tmp_path / "nvidia",
            "1.2.1",
            fill={"engine_dir": "/engines/target", "tokenizer_dir": TOKENIZER, "tensorrt_llm_draft_model_name": ""},
        )
        migration = moved(folder, {"target": engine(tmp_path, mode=EXTERNAL, max_draft_len=4)})
        unset = {one.where for one in migration.notes if one.outcome == "unset"}

        assert {"tensorrt_llm kv_cache_free_gpu_mem_fraction", "tensorrt_llm max_queue_size"} <= unset
        assert {"tensorrt_llm_bls bls_instance_count", "ensemble triton_max_batch_size"} <= unset
        assert migration.config.repo.max_queue_size == -1
        assert not any(one.where == "tensorrt_llm_bls instances" for one in migration.notes)

    def test_checkpoints_are_to_be_named(self, tmp_path: Path) -> None:
        """An engine does not say what it was made of; the configuration says that somebody has to."""
        migration = pair(tmp_path)

        assert migration.config.target.tokenizer == TOKENIZER
        assert migration.config.draft.checkpoint == UNKNOWN
        assert note(migration.notes, "draft checkpoint").outcome == "changed"

    def test_other_names_of_the_engine_models_are_understood(self, tmp_path: Path) -> None:
        """`tensorrt_llm_bls` may call its engines by any name; ours have one each."""
        folder = repository(
            tmp_path, {"tensorrt_llm_draft_model_name": "llama_small"}, draft={"gpt_model_path": "/engines/draft"}
        )
        (folder / "tensorrt_llm_draft").rename(folder / "llama_small")
        engines = {
            "target": engine(tmp_path, mode=EXTERNAL, max_draft_len=4),
            "draft": engine(tmp_path, "draft"),
        }
        migration = moved(folder, engines)

        assert set(migration.parts) == {"target", "draft"}
        assert note(migration.notes, "tensorrt_llm_bls tensorrt_llm_draft_model_name").to == "tensorrt_llm_draft"

    def test_the_facts_of_the_engines_are_their_own(self, tmp_path: Path) -> None:
        """The repository learns what the engines are from themselves; no key of our store is made up for them."""
        facts = pair(tmp_path).parts["target"]

        assert (facts.key, facts.release, facts.max_draft_len, facts.vocab_size) == ("", "1.2.1", 8, 300)
        assert facts.eos_token_ids == (2,)

    def test_own_models_settings_and_tensors_are_listed(self, tmp_path: Path) -> None:
        """What was added by hand is named, so that nobody finds out from a client."""
        folder = repository(tmp_path, draft={"gpt_model_path": "/engines/draft"})
        (folder / "reranker").mkdir()
        (folder / "reranker" / "config.pbtxt").write_text('name: "reranker" backend: "python"', encoding="utf-8")
        bls = folder / "tensorrt_llm_bls" / "config.pbtxt"
        text = bls.read_text(encoding="utf-8")
        text = text.replace("input [", 'input [ { name: "tenant" data_type: TYPE_STRING dims: [ 1 ] },', 1)
        bls.write_text(text + "response_cache { enable: true }\n", encoding="utf-8")
        engines = {
            "target": engine(tmp_path, mode=EXTERNAL, max_draft_len=4),
            "draft": engine(tmp_path, "draft"),
        }
        lost = {one.where for one in moved(folder, engines).notes if one.outcome == "lost"}

        assert {"model reranker", "tensorrt_llm_bls input tenant", "tensorrt_llm_bls response_cache.enable"} <= lost

    def test_files_queues_and_tensors_of_every_model_are_listed(self, tmp_path: Path) -> None:
        """Whatever was put beside the templates, in whichever model: nothing gets lost without a word."""
        folder = repository(tmp_path, draft={"gpt_model_path": "/engines/draft"})
        (folder / "preprocessing" / "1" / "stopwords.txt").write_text("stop\n", encoding="utf-8")
        (folder / "README.ops").write_text("Call us first.\n", encoding="utf-8")
        config = folder / "preprocessing" / "config.pbtxt"
        text = config.read_text(encoding="utf-8")
        text = text.replace("input [", 'input [ { name: "MY_EXTRA" data_type: TYPE_STRING dims: [ 1 ] },', 1)
        text = text.replace("dynamic_batching {", "dynamic_batching { preserve_ordering: true", 1)
        config.write_text(text, encoding="utf-8")
        engines = {
            "target": engine(tmp_path, mode=EXTERNAL, max_draft_len=4),
            "draft": engine(tmp_path, "draft"),
        }
        lost = {one.where for one in moved(folder, engines).notes if one.outcome == "lost"}

        assert {
            "file preprocessing/1/stopwords.txt",
            "file README.ops",
            "preprocessing input MY_EXTRA",
            "preprocessing dynamic_batching.preserve_ordering",
        } <= lost

    def test_changed_code_is_found_against_the_image(self, tmp_path: Path) -> None:
        """With the image's templates at hand, the files that were changed are listed, and only those."""
        folder = repository(tmp_path, draft={"gpt_model_path": "/engines/draft"})
        image = read_repository(write_templates(tmp_path / "image", "1.2.1"))
        (folder / "preprocessing" / "1" / "model.py").write_text("mine = 1\n", encoding="utf-8")
        engines = {
            "target": engine(tmp_path, mode=EXTERNAL, max_draft_len=4),
            "draft": engine(tmp_path, "draft"),
        }

        code = [one.where for one in moved(folder, engines, templates=image).notes if one.where.startswith("code ")]
        assert code == ["code preprocessing/1/model.py"]
        assert note(moved(folder, engines).notes, "python code").outcome == "changed"

    def test_queue_policies_written_by_hand_are_carried(self, tmp_path: Path) -> None:
        """Time-outs and priorities stand in no placeholder; those who need them write them in."""
        folder = repository(tmp_path, draft={"gpt_model_path": "/engines/draft"})
        config = folder / "tensorrt_llm" / "config.pbtxt"
        policy = (
            "default_queue_policy: { timeout_action: DELAY default_timeout_microseconds: 250000 max_queue_size: 7 }"
        )
        text = config.read_text(encoding="utf-8")
        text = text.replace("default_queue_policy: { max_queue_size: 0 }", f"{policy} priority_levels: 3", 1)
        config.write_text(text, encoding="utf-8")
        engines = {
            "target": engine(tmp_path, mode=EXTERNAL, max_draft_len=4),
            "draft": engine(tmp_path, "draft"),
        }
        migration = moved(folder, engines)
        repo = migration.config.repo

        assert (repo.max_queue_size, repo.queue_timeout_ms, repo.priority_levels) == (7, 250, 3)
        assert note(migration.notes, "tensorrt_llm timeout_action").outcome == "changed"

    def test_a_share_that_was_left_to_the_backend_is_planned(self, tmp_path: Path) -> None:
        """Nine tenths for each of two engines was the default; that is not carried over."""
        migration = pair(tmp_path, {"kv_cache_free_gpu_mem_fraction": ""})

        assert migration.config.target.kv_fraction == migration.config.draft.kv_fraction == 0
        assert note(migration.notes, "tensorrt_llm kv_cache_free_gpu_mem_fraction, left out").outcome == "changed"

    @pytest.mark.parametrize("ids", ["-1", "0,x", "all"])
    def test_gpus_that_are_none_are_listed(self, tmp_path: Path, ids: str) -> None:
        """A value that the configuration would refuse does not get there."""
        migration = pair(tmp_path, {"gpu_device_ids": ids})

        assert migration.config.target.gpu_ids == ()
        assert note(migration.notes, "tensorrt_llm gpu_device_ids").outcome == "lost"

    def test_ranks_are_the_engines_own(self, tmp_path: Path) -> None:
        """Two engines of different world sizes keep them; how they are served follows."""
        config = pair(tmp_path, {"gpu_device_ids": ""}, mode=EXTERNAL, max_draft_len=8, tp_size=2).config

        assert (config.target.tp_size, config.draft.tp_size) == (2, 1)


class TestMethods:
    """Engines that speculate by themselves."""

    def test_medusa(self, tmp_path: Path) -> None:
        """The tree that was given goes along, and the number of heads is the checkpoint's."""
        migration = single(
            tmp_path,
            {"decoding_mode": "medusa", "medusa_choices": "{0},{0,0},{1}"},
            mode=MEDUSA,
            max_draft_len=63,
            pretrained={"num_medusa_heads": 4},
        )
        speculation = migration.config.speculation

        assert (speculation.method, speculation.tree_choices) == ("medusa", "{0},{0,0},{1}")
        assert (speculation.tree_tokens, speculation.num_heads) == (63, 4)
        assert set(migration.parts) == {"target"}

    def test_eagle_is_known_from_the_engine_alone(self, tmp_path: Path) -> None:
        """``decoding_mode`` may be left out: the backend finds out, and so do we."""
        speculation = single(
            tmp_path,
            mode=EAGLE,
            max_draft_len=63,
            pretrained={"num_eagle_layers": 4},
            build={"max_seq_len": 579},
        ).config.speculation

        assert (speculation.method, speculation.tree_depth) == ("eagle", 4)

    def test_a_repository_without_its_front_doors(self, tmp_path: Path) -> None:
        """An engine that is called by itself is enough: ours come with front doors."""
        folder = write_templates(tmp_path / "nvidia", "1.2.1", fill=FILL, models=("tensorrt_llm",))
        migration = moved(folder, {"target": engine(tmp_path, mode=MEDUSA, max_draft_len=63)})

        assert migration.config.speculation.method == "medusa"
        assert {one.where.split()[0] for one in migration.notes} >= {"tensorrt_llm", "target"}

    def test_redrafter(self, tmp_path: Path) -> None:
        """Beams and their length are baked into the engine."""
        speculation = single(
            tmp_path,
            {"decoding_mode": "redrafter"},
            mode=REDRAFTER,
            max_draft_len=24,
            pretrained={"redrafter_num_beams": 4, "redrafter_draft_len_per_beam": 6},
        ).config.speculation

        assert (speculation.method, speculation.num_beams, speculation.beam_tokens) == ("redrafter", 4, 6)

    def test_lookahead(self, tmp_path: Path) -> None:
        """The window goes along when it comes to the draft length that the engine was built for."""
        window = {
            "decoding_mode": "lookahead",
            "lookahead_window_size": "4",
            "lookahead_ngram_size": "4",
            "lookahead_verification_set_size": "4",
        }
        speculation = single(tmp_path, window, mode=LOOKAHEAD, max_draft_len=23).config.speculation

        assert (speculation.window_size, speculation.ngram_size, speculation.verification_size) == (4, 4, 4)

    def test_a_window_that_the_engine_cannot_hold_is_refused(self, tmp_path: Path) -> None:
        """The backend would fail at the first request (tensorrtllm_backend#710)."""
        with pytest.raises(RepositoryError) as caught:
            single(tmp_path, {"decoding_mode": "lookahead"}, mode=LOOKAHEAD, max_draft_len=16)

        assert "83 draft tokens" in caught.value.findings[0].message

    def test_a_draft_that_the_method_has_no_use_for_is_listed(self, tmp_path: Path) -> None:
        """Behind a Medusa engine a draft model is never called."""
        folder = repository(tmp_path, draft={"gpt_model_path": "/engines/draft"})
        engines = {"target": engine(tmp_path, mode=MEDUSA, max_draft_len=63), "draft": engine(tmp_path, "draft")}
        migration = moved(folder, engines)

        assert set(migration.parts) == {"target"}
        assert note(migration.notes, "model tensorrt_llm_draft").outcome == "lost"

    def test_an_engine_for_external_drafts_without_a_draft_model_looks_them_up(self, tmp_path: Path) -> None:
        """It does not mind whose tokens it checks, so it can be served by ngram; that is said."""
        migration = single(tmp_path, mode=EXTERNAL, max_draft_len=4)

        assert migration.config.speculation.method == "ngram"
        assert any(one.to == "speculation.method: ngram" and one.outcome == "changed" for one in migration.notes)

    def test_an_engine_without_speculation_is_refused(self, tmp_path: Path) -> None:
        """The error says how to build the target."""
        with pytest.raises(RepositoryError) as caught:
            pair(tmp_path, mode=1, max_draft_len=0)

        (finding,) = caught.value.findings
        assert finding.code == "migrate.no-speculation"
        assert "draft_tokens_external" in finding.hint

    def test_engines_that_do_not_belong_together_are_refused(self, tmp_path: Path) -> None:
        """Everything that is wrong is said at once."""
        folder = repository(tmp_path, draft={"gpt_model_path": "/engines/draft"})
        engines = {
            "target": engine(tmp_path, mode=EXTERNAL, max_draft_len=4),
            "draft": engine(tmp_path, "draft", release="1.1.0", pretrained={"logits_dtype": "float16"}),
        }
        with pytest.raises(RepositoryError) as caught:
            moved(folder, engines)

        assert [finding.code for finding in caught.value.findings] == ["migrate.release", "migrate.logits"]


class TestReading:
    """What is no repository of NVIDIA's."""

    @pytest.mark.parametrize(
        ("edit", "code"),
        [
            ({"engine_dir": ""}, "migrate.no-engine"),
            ({"tensorrt_llm_model_name": "llama"}, "migrate.no-model"),
            ({"tensorrt_llm_draft_model_name": "small"}, "migrate.no-model"),
            ({"triton_backend": "vllm"}, "migrate.backend"),
        ],
    )
    def test_what_does_not_fit_is_named(self, tmp_path: Path, edit: Filled, code: str) -> None:
        """An engine that is not named, a model that is not there, a backend that is another one."""
        folder = repository(tmp_path, {"tensorrt_llm_draft_model_name": "", **edit})

        with pytest.raises(RepositoryError) as caught:
            read_nvidia(read_repository(folder))

        assert [finding.code for finding in caught.value.findings] == [code]

    def test_a_broken_file_is_named_with_its_line(self) -> None:
        """As protobuf sees it."""
        with pytest.raises(RepositoryError) as caught:
            read_nvidia({"tensorrt_llm/config.pbtxt": b'name: "tensorrt_llm"\nbakcend: "x"\n'})

        assert caught.value.findings[0].where == "tensorrt_llm/config.pbtxt:2"

    def test_a_repository_of_ours_is_none(self) -> None:
        """It has nothing to be moved from; the way to the LLM API is named."""
        with pytest.raises(RepositoryError, match="specdeploy") as caught:
            read_nvidia({"specdeploy.json": b"{}"})

        assert "specdeploy.yaml" in caught.value.hint

    def test_an_old_release_has_the_older_names(self, tmp_path: Path) -> None:
        """Templates of 0.17, whose backend knows fewer parameters, are read like the others."""
        folder = repository(tmp_path, release="0.17.0", draft={"gpt_model_path": "/engines/draft"})
        engines = {
            "target": engine(tmp_path, mode=EXTERNAL, max_draft_len=4, release="0.17.0"),
            "draft": engine(tmp_path, "draft", release="0.17.0"),
        }

        assert moved(folder, engines).config.release == "0.17.0"


def deployment(**values: Any) -> tuple[DeployConfig, dict[str, Any]]:
    """Return a deployment on engines and the keys that its file gives; ``a__b`` stands for ``a.b``."""
    given = {
        "name": "big",
        "profile": "tensorrt_llm",
        "release": "1.2.1",
        "target.checkpoint": "checkpoints/big",
        "draft.checkpoint": "checkpoints/small",
        **{key.replace("__", "."): value for key, value in values.items()},
    }
    return configured(given), given


class TestToLlmApi:
    """From engines to the LLM API."""

    def test_a_pair_stays_a_pair(self) -> None:
        """The new configuration loads, with the same checkpoints and limits."""
        config, given = deployment(build__max_batch_size=16, repo__max_queue_size=64)
        values = to_llmapi(config, given).values
        new = configured(values)

        assert check_config(new) == ()
        assert (new.profile, new.speculation.method) == ("llmapi", "draft_target")
        assert new.draft.checkpoint == "checkpoints/small"
        assert (new.build.max_batch_size, new.repo.max_queue_size) == (16, 64)
        assert new.repo.path != config.repo.path

    def test_what_only_engines_have_is_dropped_and_listed(self) -> None:
        """Every key that was given and means nothing there is named."""
        config, given = deployment(
            target__precision="fp8",
            target__kv_cache="int8",
            target__gpu_ids=(0,),
            target__extra_build_args=("--gemm_plugin=fp8",),
            speculation__use_draft_logits=False,
            tensorrt_llm__converter="modelopt",
            draft__tp_size=2,
            target__tp_size=2,
        )
        moved_ = to_llmapi(config, given)
        new = configured(moved_.values)

        assert check_config(new) == ()
        assert (new.target.precision, new.target.kv_cache, new.target.tp_size) == ("auto", "auto", 2)
        assert new.draft.tp_size == 1
        lost = {one.where for one in moved_.notes if one.outcome == "lost"}
        assert {
            "target.precision",
            "target.kv_cache",
            "target.gpu_ids",
            "target.extra_build_args",
            "speculation.use_draft_logits",
            "tensorrt_llm.converter",
        } <= lost
        assert note(moved_.notes, "draft.tp_size").outcome == "changed"

    def test_what_clients_lose_is_listed(self) -> None:
        """The front door stays, but not everything that can be sent through it."""
        lost = {one.where for one in to_llmapi(*deployment()).notes if one.outcome == "lost"}

        assert {"request num_draft_tokens", "request use_draft_logits"} <= lost

    def test_parameters_become_arguments_where_there_are_some(self) -> None:
        """The KV cache's share and the backend's parameters go to the keys of the LLM API; the others are listed."""
        config, given = deployment(
            target__kv_fraction=0.5,
            draft__kv_fraction=0.4,
            repo__parameters=(
                "tensorrt_llm kv_cache_host_memory_bytes=1000",
                "tensorrt_llm max_attention_window_size=4096,256",
                "tensorrt_llm batch_scheduler_policy=max_utilization",
                "tensorrt_llm gpu_weights_percent=0.5",
                "tensorrt_llm_draft kv_cache_host_memory_bytes=1000",
                "preprocessing add_special_tokens=false",
            ),
        )
        moved_ = to_llmapi(config, given)

        assert moved_.values["llmapi.args"] == (
            "kv_cache_config.free_gpu_memory_fraction=0.70",
            "kv_cache_config.host_cache_size=1000",
            "kv_cache_config.max_attention_window=[4096,256]",
            "scheduler_config.capacity_scheduler_policy=MAX_UTILIZATION",
        )
        assert moved_.values["repo.parameters"] == ("preprocessing add_special_tokens=false",)
        assert note(moved_.notes, "repo.parameters tensorrt_llm gpu_weights_percent").outcome == "lost"

    @pytest.mark.parametrize("method", ["medusa", "eagle", "redrafter", "lookahead"])
    def test_methods_that_are_no_more_are_refused_with_a_way_out(self, method: str) -> None:
        """A method is not exchanged behind somebody's back."""
        draft = "" if method == "lookahead" else "heads/big"
        config, given = deployment(speculation__method=method, draft__checkpoint=draft)

        with pytest.raises(RepositoryError) as caught:
            to_llmapi(config, given)

        (finding,) = caught.value.findings
        assert method in finding.message
        assert "--method ngram" in finding.hint

    def test_another_method_can_be_asked_for(self) -> None:
        """Ngram needs no draft; eagle3 needs a head, and says so."""
        config, given = deployment(speculation__method="eagle", draft__checkpoint="heads/eagle2")

        new = configured(to_llmapi(config, given, method="ngram").values)
        assert check_config(new) == ()
        assert (new.speculation.method, new.draft.checkpoint) == ("ngram", "")

        new = configured(to_llmapi(config, given, method="eagle3", draft="heads/eagle3").values)
        assert check_config(new) == ()
        assert new.draft.checkpoint == "heads/eagle3"

        with pytest.raises(RepositoryError) as caught:
            to_llmapi(config, given, method="eagle3")
        assert caught.value.findings[0].code == "migrate.draft"

    def test_ngram_keeps_its_match(self) -> None:
        """The longest match means the same; a lookahead window of the same name does not."""
        config, given = deployment(speculation__method="ngram", speculation__ngram_size=3, draft__checkpoint="")
        assert to_llmapi(config, given).values["speculation.ngram_size"] == 3

        config, given = deployment(speculation__method="lookahead", speculation__ngram_size=3, draft__checkpoint="")
        assert "speculation.ngram_size" not in to_llmapi(config, given, method="ngram").values

    def test_an_old_release_becomes_one_with_the_llm_api(self) -> None:
        """Before 1.0 there is none on Triton; another release can be named, an unknown one cannot."""
        config, given = deployment(release="0.19.0")

        assert to_llmapi(config, given).values["release"] == "1.2.1"
        assert to_llmapi(config, given, release="1.1.0").values["release"] == "1.1.0"
        assert note(to_llmapi(config, given).notes, "release").outcome == "changed"
        with pytest.raises(ConfigError, match="not known"):
            to_llmapi(config, given, release="0.21.0")

    @pytest.mark.parametrize("profile", ["cpu", "llmapi"])
    def test_other_profiles_are_refused(self, profile: str) -> None:
        """There are no engines to move from."""
        config, given = deployment()

        with pytest.raises(RepositoryError, match=f"profile {profile}"):
            to_llmapi(dataclasses.replace(config, profile=profile), given)  # type: ignore[arg-type]

    def test_no_given_key_disappears_without_a_note(self) -> None:
        """A key that the new file does not give as it was is named by a note."""
        config, given = deployment(
            target__precision="int4_awq",
            target__kv_fraction=0.6,
            speculation__fast_logits=True,
            speculation__max_draft_tokens=8,
            repo__serving_mode="orchestrator",
            repo__rate_limits=("tensorrt_llm R=1", "preprocessing R=1"),
            build__max_seq_len=2048,
        )
        moved_ = to_llmapi(config, given)
        named = " ".join(one.where for one in moved_.notes)
        gone = [key for key, value in given.items() if moved_.values.get(key) != value and key != "profile"]

        assert [key for key in gone if key not in named] == []
        assert flatten(config)["build.max_seq_len"] == moved_.values["build.max_seq_len"] == 2048


class TestNotes:
    """The report."""

    NOTES = (
        Note(outcome="carried", where="m a", value="1", to="k: 1"),
        Note(outcome="lost", where="m b", value="2", why="No place."),
        Note(outcome="unset", where="m c", value=""),
        Note(outcome="unset", where="n c", value=""),
        Note(outcome="changed", where="m d", value="3", to="4", why="It must."),
    )

    def test_people_see_first_what_they_lose(self) -> None:
        """Lost, changed, carried over, and in one line for each model what was never set."""
        assert notes_text(self.NOTES).splitlines() == [
            "Cannot be carried over (1):",
            "  m b = 2",
            "      No place.",
            "Changed (1):",
            "  m d = 3 -> 4",
            "      It must.",
            "Carried over (1):",
            "  m a = 1 -> k: 1",
            "Never filled in, so the backend's default was in use (2):",
            "  m: c",
            "  n: c",
        ]

    def test_machines_see_all_of_it(self) -> None:
        """Counts and notes, and what the mover says about itself."""
        document = notes_document(self.NOTES, source="here")

        assert document["counts"] == {"lost": 1, "changed": 1, "carried": 1, "unset": 2}
        assert document["source"] == "here"
        assert document["notes"][0] == {"outcome": "carried", "where": "m a", "value": "1", "to": "k: 1", "why": ""}
