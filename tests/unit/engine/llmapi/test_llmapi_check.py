"""What the `llmapi` profile has against a configuration: the user's arguments, the releases, the rules between keys."""

from __future__ import annotations

import pytest

from specdeploy.config.schema import DraftConfig, TensorrtLlmConfig
from specdeploy.engine.llmapi import llmapi_release
from specdeploy.errors import ConfigError
from tests.unit.engine.llmapi.llmapi_cases import METHODS, configured, deepseek, draft, found, profile, spec, target


def _only(made, engine=None):
    """Return the one finding that is neither about the schema's origin nor missing."""
    findings = [f for f in made.check(engine or spec()) if f.code != "llmapi.derived-schema"]
    (finding,) = findings
    return finding


@pytest.mark.parametrize(
    ("text", "row", "provenance"),
    [
        ("1.0.0", "1.0", "derived"),
        ("1.0.3.2510", "1.0", "derived"),
        ("1.1.0", "1.1", "derived"),
        ("1.2.1", "1.2", "derived"),
        ("1.2.0rc6.post2", "1.2", "derived"),
        ("1.3.0rc3", "1.3.0rc3", "read"),
        ("1.3.0rc4", "1.3", "derived"),
        ("1.3.0rc15", "1.3", "derived"),
        ("1.3.0", "1.3", "derived"),
        ("1.4.0rc1", "1.4", "derived"),
    ],
)
def test_a_release_is_found_by_its_minor_version(text, row, provenance):
    """Pre-releases are part of theirs, but for those of 1.3 that were still spelled as before."""
    release = llmapi_release(text)

    assert (release.name, release.provenance) == (row, provenance)


@pytest.mark.parametrize("text", ["0.21.0", "2.0", "1.5.0", "latest", "", "1", "1.2.x"])
def test_an_unknown_release_names_the_known_ones(text):
    """Older than 1.0, younger than what is known, or nothing of the kind."""
    with pytest.raises(ConfigError, match="LLM API") as caught:
        llmapi_release(text)

    assert "1.0, 1.1, 1.2, 1.3.0rc3, 1.3, 1.4" in caught.value.hint


@pytest.mark.parametrize("release", ["1.0.0", "1.1.0", "1.2.1", "1.3.0rc3", "1.3.0rc15", "1.4.0rc1"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_works_with_every_release(method, release):
    """What we write by ourselves passes our own check."""
    assert found(profile(method, release), spec(method)) == []


@pytest.mark.parametrize("method", ["lookahead", "medusa", "eagle", "redrafter"])
def test_a_method_of_the_engine_flow_is_refused(method):
    """The PyTorch backend has neither Lookahead nor Medusa; the file can be planned all the same."""
    made = profile(method)
    finding = _only(made)

    assert (finding.severity, finding.code, finding.where) == ("error", "llmapi.method", "speculation.method")
    assert "draft_target, eagle3, mtp, ngram" in finding.hint
    assert "speculative_config" not in made.steps(spec())[0].writes["model.yaml"]


def test_the_origin_of_the_schema_is_said():
    """Only the release that was read needs no remark."""
    derived = profile(release="1.2.1").check(spec())

    assert [(f.severity, f.code) for f in derived] == [("info", "llmapi.derived-schema")]
    assert "1.3.0rc3" in derived[0].message
    assert profile(release="1.3.0rc3").check(spec()) == ()


@pytest.mark.parametrize(
    ("argument", "path", "hint"),
    [
        ("max_batchsize=4", "max_batchsize", "did you mean max_batch_size?"),
        ("kv_cache_config.free_gpu_mem_fraction=0.5", "kv_cache_config.free_gpu_mem_fraction", "free_gpu_memory_fr"),
        ("free_gpu_memory_fraction=0.5", "free_gpu_memory_fraction", "kv_cache_config.free_gpu_memory_fraction"),
        ("speculative_config.max_concurency=8", "speculative_config.max_concurency", "max_concurrency"),
        ("speculative_config.num_medusa_heads=8", "speculative_config.num_medusa_heads", ""),
        ("triton_config.decouple=true", "triton_config.decouple", "decoupled"),
        ("zzz=1", "zzz", ""),
    ],
)
@pytest.mark.parametrize("release", ["1.2.1", "1.3.0rc3"])
def test_a_key_that_is_not_there_is_an_error_with_the_nearest_one(argument, path, hint, release):
    """At the top, in a section, in the wrong section; TensorRT-LLM refuses it, too, but only when it is started."""
    finding = _only(profile(release=release, args=[argument]))

    assert (finding.severity, finding.code, finding.where) == ("error", "llmapi.unknown-key", "llmapi.args")
    assert finding.message.endswith(f" {path}")
    assert hint in finding.hint


def test_a_younger_release_may_have_keys_that_were_not_read():
    """So there an unknown key is a warning that says which schema does not know it."""
    finding = _only(profile(release="1.4.0", args=["brand_new=1"]))

    assert finding.severity == "warning"
    assert "1.3.0rc3" in finding.message


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("stream_interval=often", "expected an integer, got 'often'"),
        ("stream_interval=1.5", "expected an integer, got 1.5"),
        ("stream_interval=true", "expected an integer, got True"),
        ("stream_interval=", "expected an integer, got None"),
        ("enable_chunked_prefill=1", "expected true or false, got 1"),
        ("max_input_len=[1]", "expected nothing or an integer, got [1]"),
        ("moe_config=TRTLLM", "moe_config: expected a mapping, got 'TRTLLM'"),
        ("moe_config.backend=CUTLAS", "expected one of AUTO, CUTLASS, CUTEDSL, WIDEEP, TRTLLM, DEEPGEMM, VANILLA, TRI"),
        ("cuda_graph_config.batch_sizes=[1, two]", "cuda_graph_config.batch_sizes[1]: expected an integer, got 'two'"),
        ("speculative_config.draft_len_schedule={1: many}", "speculative_config.draft_len_schedule.1: expected an int"),
        ("scheduler_config.capacity_scheduler_policy=X", "GUARANTEED_NO_EVICT"),
        ("load_format=7", "expected one of 0, 1, 2, got 7"),
        ("cache_transceiver_config.kv_transfer_timeout_ms=0", "expected more than 0, got 0"),
        ("triton_config.cancellation_check_period_ms=soon", "expected an integer, got 'soon'"),
        (
            "sparse_attention_config.window_size=x",
            "sparse_attention_config.window_size: expected nothing or an integer",
        ),
    ],
)
def test_a_bad_value_is_an_error_with_the_value(argument, says):
    """Wrong type, wrong choice, out of bounds; in lists and free mappings, too."""
    finding = _only(profile(args=[argument]))

    assert (finding.severity, finding.code) == ("error", "llmapi.bad-value")
    assert says in finding.message


def test_a_bad_choice_has_the_nearest_one_as_its_hint():
    """As an unknown key has."""
    assert _only(profile(args=["moe_config.backend=CUTLAS"])).hint == "did you mean CUTLASS?"


def test_a_number_that_yaml_takes_for_text_is_explained():
    """YAML wants a point in it."""
    finding = _only(profile(args=["kv_cache_config.free_gpu_memory_fraction=8e-1"]))

    assert "got '8e-1'" in finding.message
    assert "write 0.8" in finding.hint


@pytest.mark.parametrize(
    "argument",
    [
        "stream_interval=2",
        "batch_wait_timeout_ms=1",
        "kv_cache_config.enable_block_reuse=false",
        "triton_config.decoupled=false",
        "triton_config.cancellation_check_period_ms=50",
        "model_kwargs={num_hidden_layers: 2}",
        "env_overrides={NCCL_DEBUG: INFO}",
        "lora_config.anything=1",
        "cuda_graph_config=null",
        "speculative_config.max_concurrency=8",
        "speculative_config.draft_len_schedule={1: 4, 8: 0}",
        "scheduler_config={capacity_scheduler_policy: MAX_UTILIZATION}",
        "sampler_type=TorchSampler",
        "load_format=auto",
        "sparse_attention_config={algorithm: dsa, index_topk: 8}",
        "tensor_parallel_size=1",
        "dtype=auto",
        "kv_cache_config.dtype=auto",
        "speculative_config.decoding_type=DraftTarget",
    ],
)
def test_an_argument_that_the_llm_api_takes_is_taken(argument):
    """Ours said again included."""
    assert found(profile(args=[argument]), spec()) == []


@pytest.mark.parametrize(
    ("argument", "key"),
    [
        ("model=/models/other", "target.checkpoint"),
        ("tensor_parallel_size=2", "target.tp_size"),
        ("pipeline_parallel_size=2", "target.pp_size"),
        ("moe_expert_parallel_size=2", "target.ep_size"),
        ("dtype=float16", "target.precision"),
        ("max_batch_size=64", "build.max_batch_size"),
        ("max_seq_len=64", "build.max_seq_len"),
        ("max_num_tokens=64", "tensorrt_llm.max_num_tokens"),
        ("kv_cache_config.dtype=fp8", "target.kv_cache"),
        ("kv_cache_config=null", "target.kv_cache"),
        ("speculative_config.decoding_type=NGram", "speculation.method"),
        ("speculative_config=null", "speculation.method"),
        ("speculative_config.max_draft_len=2", "speculation.num_draft_tokens"),
        ("speculative_config={max_draft_len: 2}", "speculation.num_draft_tokens"),
        ("speculative_config.speculative_model=/models/other", "draft.checkpoint"),
        ("speculative_config.speculative_model_dir=/models/other", "draft.checkpoint"),
    ],
)
def test_what_specdeploy_sets_is_not_contradicted_silently(argument, key):
    """The error names the key to set instead, and the file keeps what that key says."""
    made = profile(args=[argument])
    finding = _only(made)

    assert (finding.severity, finding.code) == ("error", "llmapi.own-key")
    assert key in finding.hint
    assert made.steps(spec())[0].writes == profile().steps(spec())[0].writes


@pytest.mark.parametrize("argument", ["backend=tensorrt", "triton_config.max_batch_size=8"])
def test_what_nothing_can_change_is_to_be_left_out(argument):
    """There is one backend, and Triton must not batch for it."""
    finding = _only(profile(args=[argument]))

    assert (finding.code, finding.hint) == ("llmapi.own-key", "Leave it out.")


@pytest.mark.parametrize(
    "args",
    [
        ["stream_interval"],
        ["=4"],
        ["kv_cache_config..dtype=fp8"],
        ["stream_interval=[1"],
        ["stream_interval=2024-01-01"],
        ["kv_cache_config.max_util_for_resume=.inf"],
        ["stream_interval=!!python/name:os.system"],
        ["stream_interval=2", "stream_interval=3"],
        ["moe_config=null", "moe_config.backend=TRTLLM"],
    ],
)
def test_a_malformed_argument_is_an_error_and_not_a_crash(args):
    """No key, no value, no YAML, nothing that JSON has, or two that contradict each other."""
    made = profile(args=args)

    assert ("error", "llmapi.argument") in found(made, spec())
    assert made.steps(spec())[0].writes


def test_all_that_is_wrong_is_said_at_once():
    """One finding for each argument."""
    args = ["nonsense", "max_batchsize=1", "stream_interval=x", "dtype=float32"]
    codes = {code for _, code in found(profile(args=args), spec())}

    assert codes == {"llmapi.argument", "llmapi.unknown-key", "llmapi.bad-value", "llmapi.own-key"}


@pytest.mark.parametrize(
    ("spelling", "accepted"),
    [("DraftTarget", True), ("Draft_Target", False), ("drafttarget", False), ("Eagle3", False)],
)
def test_the_release_that_was_read_takes_one_spelling_of_draft_target(spelling, accepted):
    """`Draft_Target` came after 1.3.0rc3, which refuses it."""
    made = profile(release="1.3.0rc3", args=[f"speculative_config.decoding_type={spelling}"])

    assert (found(made, spec()) == []) is accepted


@pytest.mark.parametrize("key", ["speculative_model", "speculative_model_dir"])
def test_the_release_that_was_read_takes_either_name_of_the_drafts_folder(key):
    """The old name is an alias there, and saying it again is no second draft."""
    made = profile(release="1.3.0rc3", args=[f"speculative_config.{key}=/models/small"])

    assert found(made, spec()) == []
    assert made.steps(spec())[0].writes == profile(release="1.3.0rc3").steps(spec())[0].writes


def _with(made, engine=None):
    return made, engine or spec(made.config.speculation.method)


@pytest.mark.parametrize(
    ("case", "severity", "code", "where"),
    [
        (_with(profile(num_draft_tokens=0)), "error", "draft-length", "speculation.num_draft_tokens"),
        (_with(profile("eagle3", num_draft_tokens=0)), "error", "draft-length", "speculation.num_draft_tokens"),
        (_with(profile("ngram", ngram_size=0)), "error", "ngram-size", "speculation.ngram_size"),
        (_with(profile(max_draft_tokens=8)), "warning", "max-draft-tokens", "speculation.max_draft_tokens"),
        (_with(profile(args=["max_beam_width=2"])), "error", "beams", "llmapi.args"),
        (_with(profile(), spec(draft=None)), "error", "no-draft", "draft.checkpoint"),
        (_with(profile("eagle3"), spec("eagle3", head=None)), "error", "no-head", "draft.checkpoint"),
        (_with(profile("mtp"), spec("mtp", checkpoint=target())), "error", "mtp-architecture", "speculation.method"),
        (
            _with(profile("mtp", "1.4.0"), spec("mtp", checkpoint=target())),
            *("warning", "mtp-architecture", "speculation.method"),
        ),
        (
            _with(profile("mtp"), spec("mtp", checkpoint=deepseek(num_layers=62))),
            *("error", "mtp-layers", "target.checkpoint"),
        ),
        (_with(profile("ngram"), spec("ngram", tp_size=3)), "error", "heads", "target.tp_size"),
        (
            _with(profile(), spec(draft=draft(num_heads=9, num_kv_heads=3), tp_size=2)),
            "error",
            "heads",
            "target.tp_size",
        ),
        (_with(profile("ngram"), spec("ngram", tp_size=8, checkpoint=target(num_kv_heads=6))), "error", "kv-heads", ""),
        (_with(profile("ngram"), spec("ngram", tp_size=4, ep_size=3)), "error", "experts", "target.ep_size"),
        (_with(profile("ngram"), spec("ngram", tp_size=4, ep_size=2)), "error", "experts", "target.ep_size"),
        (_with(profile("ngram"), spec("ngram", pp_size=2)), "warning", "pipeline", "target.pp_size"),
        (_with(profile("ngram"), spec("ngram", kv_cache="int8")), "error", "kv-cache", "target.kv_cache"),
        (_with(profile(args=["disable_overlap_scheduler=false"])), "warning", "overlap", "llmapi.args"),
        (
            _with(configured(profile(), tensorrt_llm=TensorrtLlmConfig(max_num_tokens=39))),
            *("warning", "num-tokens", "tensorrt_llm.max_num_tokens"),
        ),
        (
            _with(configured(profile(), draft=DraftConfig(checkpoint="small", tp_size=4)), spec(tp_size=2)),
            *("error", "draft-ranks", "draft.tp_size"),
        ),
    ],
)
def test_a_contradiction_between_keys_is_found(case, severity, code, where):
    """And it is the only thing that is found, at the key that would have to change."""
    finding = _only(*case)

    assert (finding.severity, finding.code) == (severity, f"llmapi.{code}")
    assert finding.where == (where or "target.tp_size")


@pytest.mark.parametrize(
    "case",
    [
        _with(profile("ngram"), spec("ngram", tp_size=16)),
        _with(profile("ngram"), spec("ngram", tp_size=4, ep_size=2, checkpoint=target(num_experts=8))),
        _with(profile("mtp"), spec("mtp", checkpoint=deepseek(tensors=()))),
        _with(profile("ngram", "1.3.0rc3", args=["disable_overlap_scheduler=false"])),
        _with(configured(profile(), tensorrt_llm=TensorrtLlmConfig(max_num_tokens=40))),
        _with(configured(profile(), draft=DraftConfig(checkpoint="small", tp_size=2)), spec(tp_size=2)),
        _with(profile(max_draft_tokens=4)),
    ],
)
def test_what_only_looks_like_one_is_none(case):
    """KV heads that ranks repeat, tensors that were not listed, limits that are just met."""
    assert found(*case) == []


@pytest.mark.parametrize(
    ("argument", "severity", "code"),
    [
        ("kv_cache_config.free_gpu_memory_fraction=2.5", "error", "llmapi.bounds"),
        ("kv_cache_config.free_gpu_memory_fraction=-1", "error", "llmapi.bounds"),
        ("max_input_len=0", "error", "llmapi.bounds"),
        ("load_format=dummy", "warning", "llmapi.dummy-weights"),
        ("env_overrides={HF_TOKEN: hf_x}", "error", "llmapi.secret"),
    ],
)
def test_what_the_schema_lets_through_and_should_not(argument, severity, code):
    """Shares above all there is, limits of nothing, random weights, and secrets in a file that is passed around."""
    finding = _only(profile(args=[argument]))

    assert (finding.severity, finding.code) == (severity, code)


def test_an_ordinary_variable_may_be_set():
    """It is no secret, and a share of the memory is what people set."""
    args = ["env_overrides={NCCL_DEBUG: INFO}", "kv_cache_config.free_gpu_memory_fraction=0.8"]

    assert found(profile(args=args), spec()) == []
