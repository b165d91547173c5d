"""The `llmapi` profile: the configuration that it writes, its key, and what it says of a written one."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from specdeploy.engine.llmapi import LlmApiProfile
from specdeploy.errors import ConfigError
from tests.unit.engine.llmapi.llmapi_cases import METHODS, draft, head, profile, spec, target, text

HEADER = """\
# Written by specdeploy for the LLM API of TensorRT-LLM {release}; change specdeploy.yaml, not this file.
# Arguments of tensorrt_llm.LLM, and triton_config for Triton's model.
model: /models/big
backend: pytorch
tensor_parallel_size: 1
pipeline_parallel_size: 1
moe_expert_parallel_size: 1
max_batch_size: 8
max_seq_len: 4096
max_num_tokens: 8192
"""
SERIAL = "disable_overlap_scheduler: true\n"
KV_CACHE = """\
kv_cache_config:
  enable_block_reuse: true
"""
TRITON = """\
triton_config:
  max_batch_size: 0
  decoupled: true
"""
DRAFT_TARGET = """\
speculative_config:
  decoding_type: {decoding_type}
  max_draft_len: 4
  {draft_key}: /models/small
"""
EAGLE3 = """\
speculative_config:
  decoding_type: {decoding_type}
  max_draft_len: 4
  {draft_key}: /models/head
"""
MTP = """\
speculative_config:
  decoding_type: MTP
  {length_key}: 4
"""
NGRAM = """\
speculative_config:
  decoding_type: NGram
  max_draft_len: 4
  max_matching_ngram_size: 7
"""
OLD = {"draft_key": "speculative_model_dir", "length_key": "num_nextn_predict_layers"}
NEW = {"draft_key": "speculative_model", "length_key": "num_nextn_predict_layers"}
# (method, release) -> row, whether the scheduler must not overlap, speculation, and what differs in it
GOLDEN = {
    ("draft_target", "1.0.0"): ("1.0", SERIAL, DRAFT_TARGET, OLD | {"decoding_type": "DraftTarget"}),
    ("draft_target", "1.2.1"): ("1.2", SERIAL, DRAFT_TARGET, OLD | {"decoding_type": "DraftTarget"}),
    ("draft_target", "1.3.0rc3"): ("1.3.0rc3", "", DRAFT_TARGET, NEW | {"decoding_type": "DraftTarget"}),
    ("draft_target", "1.3.0rc15"): ("1.3", "", DRAFT_TARGET, NEW | {"decoding_type": "Draft_Target"}),
    ("eagle3", "1.0.0"): ("1.0", "", EAGLE3, OLD | {"decoding_type": "Eagle"}),
    ("eagle3", "1.2.1"): ("1.2", "", EAGLE3, OLD | {"decoding_type": "Eagle"}),
    ("eagle3", "1.3.0rc3"): ("1.3.0rc3", "", EAGLE3, NEW | {"decoding_type": "Eagle3"}),
    ("eagle3", "1.3.0rc15"): ("1.3", "", EAGLE3, NEW | {"decoding_type": "Eagle3"}),
    ("mtp", "1.0.0"): ("1.0", "", MTP, OLD),
    ("mtp", "1.2.1"): ("1.2", "", MTP, OLD),
    ("mtp", "1.3.0rc15"): ("1.3", "", MTP, NEW),
    ("mtp", "1.4.0rc1"): ("1.4", "", MTP, NEW | {"length_key": "max_draft_len"}),
    ("ngram", "1.0.0"): ("1.0", SERIAL, NGRAM, OLD),
    ("ngram", "1.2.1"): ("1.2", SERIAL, NGRAM, OLD),
    ("ngram", "1.3.0rc15"): ("1.3", "", NGRAM, NEW),
}


@pytest.mark.parametrize(("method", "release"), GOLDEN)
def test_the_written_configuration_is_the_releases(method, release):
    """The whole file, for each method, in the spelling of each release."""
    row, serial, speculation, differs = GOLDEN[method, release]

    expected = HEADER.format(release=row) + serial + KV_CACHE + speculation.format(**differs) + TRITON
    assert text(profile(method, release), spec(method)) == expected


def test_building_writes_one_file_and_runs_nothing():
    """No command, no package and no GPU; both folders must be there."""
    (step,) = profile().steps(spec())

    assert (step.argv, step.requires, step.gpus) == ((), (), 0)
    assert (step.outputs, set(step.writes)) == (("model.yaml",), {"model.yaml"})
    assert step.inputs == ("/models/big", "/models/small")


def test_serving_needs_tensorrt_llm():
    """Which is what the doctor looks for."""
    assert profile().requirements() == ("tensorrt_llm",)


def test_an_eagle3_deployment_of_two_gpus():
    """Ranks, an FP8 KV cache, another type than the checkpoint's, and the user's own keys, all in one file."""
    args = ("kv_cache_config.free_gpu_memory_fraction=0.8", "enable_chunked_prefill=true", "cuda_graph_config={}")
    made = profile("eagle3", "1.2.1", args, num_draft_tokens=3)
    engine = spec("eagle3", tp_size=2, kv_cache="fp8", precision="fp16", max_batch_size=16)

    assert [finding.severity for finding in made.check(engine)] == ["info"]
    assert yaml.safe_load(text(made, engine)) == {
        "model": "/models/big",
        "backend": "pytorch",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "moe_expert_parallel_size": 1,
        "dtype": "float16",
        "max_batch_size": 16,
        "max_seq_len": 4096,
        "max_num_tokens": 8192,
        "kv_cache_config": {"enable_block_reuse": True, "dtype": "fp8", "free_gpu_memory_fraction": 0.8},
        "speculative_config": {
            "decoding_type": "Eagle",
            "max_draft_len": 3,
            "speculative_model_dir": "/models/head",
        },
        "triton_config": {"max_batch_size": 0, "decoupled": True},
        "enable_chunked_prefill": True,
        "cuda_graph_config": {},
    }
    assert made.facts(engine) == {
        "release": "1.2.1",
        "method": "eagle3",
        "decoding_type": "Eagle",
        "max_draft_len": 3,
        "world_size": 2,
        "schema_provenance": "derived",
    }


def _key(made=None, engine=None):
    return (made or profile()).steps(engine or spec())[0].key


@pytest.mark.parametrize(
    "engine",
    [
        spec(checkpoint=target(name="copy")),
        spec(checkpoint=target(stat_fingerprint="0" * 64)),
        spec(name="other"),
        spec(role="draft"),
    ],
)
def test_names_and_times_are_not_part_of_the_key(engine):
    """They are not what the deployment is made of."""
    assert _key(engine=engine) == _key()


def test_the_order_of_the_users_arguments_means_nothing():
    """Neither to the key nor to the file."""
    args = ("stream_interval=4", "kv_cache_config.max_tokens=4096", "kv_cache_config.host_cache_size=0")
    one, other = profile(args=args), profile(args=args[::-1])

    assert _key(one) == _key(other) != _key()
    assert text(one, spec()) == text(other, spec())


@pytest.mark.parametrize(
    ("made", "engine"),
    [
        (profile(release="1.1.0"), spec()),
        (profile(num_draft_tokens=5), spec()),
        (profile("ngram"), spec("ngram")),
        (profile(args=["stream_interval=4"]), spec()),
        (profile(), spec(checkpoint=target(fingerprint="0" * 64))),
        (profile(), spec(draft=draft(fingerprint="0" * 64))),
        # The file names the folders: one that was moved needs another file.
        (profile(), spec(checkpoint=target(path="/elsewhere/big"))),
        (profile(), spec(draft=draft(path="/elsewhere/small"))),
        (profile(), spec(max_seq_len=2048)),
        (profile(), spec(max_batch_size=4)),
        (profile(), spec(tp_size=2)),
        (profile(), spec(kv_cache="fp8")),
        (profile(), spec(precision="fp16")),
    ],
)
def test_what_is_served_otherwise_has_another_key(made, engine):
    """Release, method, lengths, arguments, content of either checkpoint, limits, ranks and types."""
    assert _key(made, engine) != _key()


def test_another_head_gives_another_key():
    """The head is part of what is served."""
    made = profile("eagle3")

    assert _key(made, spec("eagle3", head=head(fingerprint="0" * 64))) != _key(made, spec("eagle3"))
    assert _key(made, spec("eagle3", head=head(path="/elsewhere"))) != _key(made, spec("eagle3"))


@pytest.mark.parametrize("method", METHODS)
def test_what_was_written_is_what_was_planned(method):
    """A file as the step writes it verifies; so does one whose comments were taken out."""
    made, engine = profile(method), spec(method)
    written = text(made, engine)
    bare = yaml.safe_dump(yaml.safe_load(written))

    assert made.verify(engine, {"model.yaml": written.encode()}, {}) == ()
    assert made.verify(engine, {"model.yaml": bare.encode()}, {}) == ()


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({}, "llmapi.no-file"),
        ({"model.yaml": b"model: ["}, "llmapi.no-yaml"),
        ({"model.yaml": b"\xff\xfe\xfa"}, "llmapi.no-yaml"),
        ({"model.yaml": b"model: 2024-99-99"}, "llmapi.no-yaml"),
        ({"model.yaml": b"hello"}, "llmapi.differs"),
    ],
)
def test_a_file_that_is_no_configuration_is_an_error(files, code):
    """Absent, broken, or something else."""
    findings = profile().verify(spec(), files, {})

    assert {(finding.severity, finding.code) for finding in findings} >= {("error", code)}


def test_a_changed_value_is_named_with_both_values():
    """What is there, and what was planned."""
    written = text(profile(), spec()).replace("max_draft_len: 4", "max_draft_len: 9").replace("backend: pytorch\n", "")
    findings = profile().verify(spec(), {"model.yaml": written.encode()}, {})

    assert [finding.message for finding in findings] == [
        "backend is 'absent', planned 'pytorch'",
        "speculative_config.max_draft_len is 9, planned 4",
    ]


def test_another_copy_of_the_checkpoint_is_a_warning():
    """The key is of the content, so a store may hold the file that was made from another copy."""
    moved = spec(checkpoint=target(path="/elsewhere"), draft=draft(path="/other"))
    findings = profile().verify(spec(), {"model.yaml": text(profile(), moved).encode()}, {})

    assert [finding.severity for finding in findings] == ["warning", "warning"]


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")])
def test_auto_is_the_type_of_the_checkpoint(dtype, precision):
    """And a type that was asked for stays."""
    assert profile().precision("auto", target(dtype=dtype)) == precision
    assert profile().precision("fp16", target(dtype=dtype)) == "fp16"


def test_a_type_that_nothing_is_computed_in_has_to_be_resolved_by_the_user():
    """Such as FP8 weights without a word on the activations."""
    with pytest.raises(ConfigError, match="float8_e4m3fn") as caught:
        profile().precision("auto", target(dtype="float8_e4m3fn"))

    assert "bf16" in caught.value.hint


def test_sizes_are_those_of_a_configuration():
    """The limit is what is wanted, and the engine is as large as its text."""
    made, engine = profile(), spec()

    assert made.limit(engine) == 4096
    assert made.estimated_bytes(engine) == len(text(made, engine).encode())


def test_the_profile_is_a_value():
    """Frozen, under its name, equal for equal configurations."""
    assert profile() == profile()
    assert profile().name == "llmapi"
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile().name = "other"
    assert isinstance(profile(), LlmApiProfile)
