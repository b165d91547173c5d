"""The memory of two engines on their GPUs, against figures that are worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from specdeploy.checkpoint.info import TensorInfo
from specdeploy.errors import ConfigError
from specdeploy.planning.memory import EngineMemorySpec, ModelMemory, gpu_spec, plan_memory
from tests.unit.checkpoint.folders import info

GB = 10**9
# Llama 3.1: 70B and 8B.
BIG = ModelMemory(
    name="70B",
    embedding_parameters=128256 * 8192,
    output_parameters=128256 * 8192,
    layer_parameters=80 * (8192 * (8192 + 1024) * 2 + 3 * 8192 * 28672),
    other_parameters=(2 * 80 + 1) * 8192,
    num_layers=80,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
)
SMALL = ModelMemory(
    name="8B",
    embedding_parameters=128256 * 4096,
    output_parameters=128256 * 4096,
    layer_parameters=32 * (4096 * (4096 + 1024) * 2 + 3 * 4096 * 14336),
    other_parameters=(2 * 32 + 1) * 4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
)
TARGET = EngineMemorySpec(role="target", model=BIG, precision="bf16", tp_size=4, max_draft_tokens=5)
DRAFT = EngineMemorySpec(role="draft", model=SMALL, precision="bf16")
H100, H200 = gpu_spec("NVIDIA H100 80GB HBM3"), gpu_spec("H200")


def _plan(*engines, gpu=H200, batch=8, length=4096, **changes):
    return plan_memory(engines or (TARGET, DRAFT), gpu=gpu, max_batch_size=batch, max_seq_len=length, **changes)


def _engine(plan, device=0, role="target"):
    return next(engine for engine in plan.gpus[device].engines if engine.role == role)


def _changed(spec, **changes):
    return dataclasses.replace(spec, **changes)


def test_the_kv_cache_of_llama_70b():
    """2 x 80 layers x 8 heads x 128 x 2 bytes: 320 KiB a token, a quarter of it on each of four ranks."""
    one = _engine(_plan(_changed(TARGET, tp_size=1)))
    four = _engine(_plan(TARGET))

    assert (one.kv_bytes_per_token, four.kv_bytes_per_token) == (327_680, 81_920)
    # 4096 tokens and five drafts take 129 blocks of 32.
    assert four.kv_cache_bytes == 8 * 129 * 32 * 81_920


def test_heads_that_are_fewer_than_ranks_are_copied():
    """Sixteen ranks hold one of eight heads each, as eight do."""
    eight, sixteen = (_engine(_plan(_changed(TARGET, tp_size=size))) for size in (8, 16))

    assert eight.kv_bytes_per_token == sixteen.kv_bytes_per_token == 40_960


@pytest.mark.parametrize(
    ("changes", "per_token"),
    [({"kv_cache": "fp8"}, 163_840), ({"precision": "fp32"}, 655_360), ({"precision": "fp8"}, 327_680)],
)
def test_the_type_of_the_kv_cache(changes, per_token):
    """By its own setting; left to the engine it is as the weights compute."""
    assert _engine(_plan(_changed(TARGET, tp_size=1, **changes))).kv_bytes_per_token == per_token


@pytest.mark.parametrize(
    ("precision", "gigabytes"),
    [("fp32", 282.2), ("bf16", 141.1), ("fp8", 72.7), ("int8_wo", 72.7), ("int4_awq", 39.5), ("nvfp4", 42.7)],
)
def test_the_weights_of_llama_70b(precision, gigabytes):
    """Quantisation shrinks the layers; embedding and output layer stay at 16 bits, scales are counted."""
    weights = _engine(_plan(_changed(TARGET, tp_size=1, precision=precision))).weight_bytes

    assert weights / GB == pytest.approx(gigabytes, abs=0.06)


def test_the_input_embedding_is_copied_to_every_rank_unless_told():
    """Two gigabytes a rank, which `--use_parallel_embedding` saves."""
    copied, split = (_engine(_plan(_changed(TARGET, parallel_embedding=told))) for told in (False, True))

    assert copied.weight_bytes - split.weight_bytes == 2 * 128256 * 8192 * 3 // 4


def test_stages_hold_their_own_layers():
    """The first has the embedding, the last the output layer; 80 layers over three are 27, 27 and 26."""
    plan = _plan(_changed(TARGET, tp_size=1, pp_size=3))
    first, middle, last = (_engine(plan, device) for device in range(3))

    assert (first.kv_bytes_per_token, last.kv_bytes_per_token) == (27 * 4096, 26 * 4096)
    assert first.weight_bytes - middle.weight_bytes == 2 * 128256 * 8192
    assert (first.logits_bytes, middle.logits_bytes) == (0, 0)
    assert last.logits_bytes == 2 * 8 * 6 * 128256 * 4


def test_the_parameters_come_from_the_checkpoint():
    """A tied output layer counts twice, as converters write it; norms and biases stay at 16 bits."""
    norm = TensorInfo(name="model.norm.weight", dtype="F32", shape=(8,), nbytes=32, file="model.safetensors")

    tied = ModelMemory.of(info(tensors=(norm,)))
    untied = ModelMemory.of(info(tensors=(norm,), tie_word_embeddings=False))

    assert (tied.embedding_parameters, tied.output_parameters, tied.other_parameters) == (48, 48, 8)
    assert (tied.layer_parameters, untied.layer_parameters) == (1000 - 48 - 8, 1000 - 96 - 8)


def test_what_is_only_estimated_is_labelled():
    """And the parts add up to the whole, in JSON as well."""
    document = json.loads(json.dumps(_plan().as_dict()))
    engine = document["gpus"][0]["engines"][0]

    assert engine["estimates"] == ["activation_bytes", "logits_bytes", "runtime_bytes"]
    parts = ("weight_bytes", "kv_cache_bytes", "activation_bytes", "logits_bytes", "runtime_bytes")
    assert sum(engine[part] for part in parts) == engine["total_bytes"]
    assert document["gpus"][0]["total_bytes"] == sum(each["total_bytes"] for each in document["gpus"][0]["engines"])


def test_the_draft_lies_on_one_of_the_targets_gpus():
    """The fullest GPU decides what fits: the one that holds both."""
    plan = _plan()

    assert [[engine.role for engine in gpu.engines] for gpu in plan.gpus] == [["target", "draft"], *[["target"]] * 3]
    alone = _plan(TARGET)
    assert plan.sequences_at_max_seq_len < alone.sequences_at_max_seq_len


def test_the_draft_can_have_a_gpu_of_its_own():
    """Behind the target's ranks."""
    plan = _plan(TARGET, _changed(DRAFT, device_ids=(4,)))

    assert [[engine.role for engine in gpu.engines] for gpu in plan.gpus] == [*[["target"]] * 4, ["draft"]]


def test_sequences_are_counted_at_full_and_at_usual_length():
    """What is left on the fullest GPU, over what a sequence takes there in both engines."""
    plan = _plan(mean_seq_len=1000)
    gpu = plan.gpus[0]
    left = gpu.usable_bytes - sum(engine.fixed_bytes for engine in gpu.engines)

    assert plan.sequences_at_max_seq_len == left // (129 * 32 * 81_920 + 128 * 32 * 131_072)
    assert plan.sequences_at_mean_seq_len == left // (32 * 32 * 81_920 + 32 * 32 * 131_072)
    assert plan.fits is True
    assert [found.code for found in plan.findings] == ["memory.fits"]


def test_the_advised_fractions_let_both_engines_hold_the_same():
    """Loaded in order, each takes its share of what is still free, and both hold what the plan promises."""
    plan = _plan()
    used = 0
    for engine, share in zip(plan.gpus[0].engines, plan.kv_shares, strict=True):
        used += engine.fixed_bytes
        pool = share.fraction * (H200.memory_bytes - used)
        used += pool
        assert share.advised
        assert pool / engine.kv_bytes_per_token == pytest.approx(share.tokens, abs=32)
        assert share.tokens / 4128 == pytest.approx(plan.sequences_at_max_seq_len, rel=0.02)
    assert used <= plan.gpus[0].usable_bytes


def test_a_first_engine_that_takes_it_all_is_an_error():
    """0.9 twice is what templates say; the draft then does not load, and the cure names the fractions that work."""
    target = _changed(TARGET, tp_size=1, precision="fp8", kv_fraction=0.9)

    plan = _plan(target, _changed(DRAFT, kv_fraction=0.9))

    found = next(found for found in plan.findings if found.code == "memory.kv-fraction")
    assert (found.severity, "gives the draft no room to load" in found.message) == ("error", True)
    fractions = [float(number) for number in re.findall(r"0\.\d+", found.hint)]
    mended = _plan(_changed(target, kv_fraction=fractions[0]), _changed(DRAFT, kv_fraction=fractions[1]))
    assert [found.code for found in mended.findings] == ["memory.fits"]


def test_what_does_not_fit_names_cures_that_work():
    """Each of the named changes, made, makes it fit; one step further does not."""
    target = _changed(TARGET, tp_size=2)
    plan = _plan(target, DRAFT, batch=32, length=8192)
    (found,) = plan.findings

    assert (found.severity, found.code, plan.fits) == ("warning", "memory.batch-does-not-fit", False)
    assert re.search(r"needs 169\.\d GB on GPU 0 \(target 71\.6 weights", found.message)
    batch = int(re.search(r"max_batch_size (\d+)", found.hint)[1])
    length = int(re.search(r"max_seq_len (\d+)", found.hint)[1])
    assert _plan(target, DRAFT, batch=batch, length=8192).fits
    assert not _plan(target, DRAFT, batch=batch + 1, length=8192).fits
    assert _plan(target, DRAFT, batch=32, length=length).fits
    assert not _plan(target, DRAFT, batch=32, length=length + 64).fits
    assert "target tp_size 4" in found.hint
    assert _plan(_changed(target, tp_size=4), DRAFT, batch=32, length=8192).fits
    assert "target precision fp8" in found.hint
    assert _plan(_changed(target, precision="fp8"), DRAFT, batch=32, length=8192).fits


def test_a_batch_that_fits_at_the_usual_length_is_no_warning():
    """Sequences of full length wait for each other then, which is what a paged cache is for."""
    plan = _plan(_changed(TARGET, tp_size=2), DRAFT, batch=32, length=8192, mean_seq_len=1000)

    assert [(found.severity, found.code) for found in plan.findings] == [("info", "memory.batch-does-not-fit")]


def test_weights_that_do_not_fit_are_an_error():
    """Not even one sequence has room."""
    plan = _plan(_changed(TARGET, tp_size=1), gpu=H100)

    assert (plan.findings[0].severity, plan.findings[0].code) == ("error", "memory.does-not-fit")
    assert (plan.sequences_at_max_seq_len, plan.kv_shares[0].tokens) == (0, 0)
    assert plan.findings[0].hint == "target tp_size 2 or target precision int4_awq would fit."


def test_only_precisions_that_the_gpu_runs_are_named():
    """No FP8 on an A100."""
    hints = [
        plan_memory(
            (_changed(TARGET, tp_size=2),), gpu=gpu_spec(name), max_batch_size=32, max_seq_len=4096, gpu_count=2
        )
        .findings[0]
        .hint
        for name in ("A100-80GB", "H100-80GB")
    ]

    assert "precision int8_wo" in hints[0]
    assert "fp8" not in hints[0]
    assert "precision fp8" in hints[1]
    assert "tp_size" not in hints[1]


def test_ranks_and_precision_together_when_nothing_alone_is_enough():
    """A 70B on small GPUs needs both."""
    plan = _plan(_changed(TARGET, tp_size=1), DRAFT, gpu=gpu_spec("A100-40GB"), batch=32, length=8192)

    assert "tp_size 8 for all engines with target precision int8_wo would fit." in plan.findings[0].hint


def test_a_gpu_of_unknown_memory_is_not_checked():
    """Absent is not zero: nothing fits and nothing fails, and the sizes are still there."""
    plan = _plan(gpu=gpu_spec("A100"))

    assert (plan.fits, plan.sequences_at_max_seq_len, plan.gpus[0].fits) == (None, None, None)
    assert [(found.severity, found.code) for found in plan.findings] == [("info", "memory.not-checked")]
    assert [share.fraction for share in plan.kv_shares] == [None, None]
    assert plan.gpus[0].total_bytes > 50 * GB


def test_more_ranks_than_gpus_are_an_error():
    """Four ranks on a machine with two."""
    assert ("error", "memory.too-few-gpus") in [(f.severity, f.code) for f in _plan(gpu_count=2).findings]
    assert "memory.too-few-gpus" not in [found.code for found in _plan(gpu_count=4).findings]


def test_unknown_types_are_refused():
    """Rather than counted as something."""
    with pytest.raises(ConfigError, match="no KV cache of the type 'fp4'"):
        _plan(_changed(TARGET, kv_cache="fp4"))


@pytest.mark.parametrize(
    ("name", "mib", "capability"),
    [
        ("NVIDIA A10", 23028, "8.6"),
        ("NVIDIA A100-SXM4-80GB", 81920, "8.0"),
        ("NVIDIA A100-PCIE-40GB", 40960, "8.0"),
        ("NVIDIA L4", 23034, "8.9"),
        ("NVIDIA L40S", 46068, "8.9"),
        ("NVIDIA H100 PCIe", 81559, "9.0"),
        ("NVIDIA H100 NVL", 95830, "9.0"),
        ("NVIDIA H200", 143771, "9.0"),
        ("NVIDIA GH200 480GB", 97871, "9.0"),
        ("NVIDIA B200", 183359, "10.0"),
        ("NVIDIA GeForce RTX 4090", 24564, "8.9"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "8.9"),
        ("H100-80GB", 81559, "9.0"),
        ("9.0", None, None),
    ],
)
def test_gpus_by_their_names(name, mib, capability):
    """As nvidia-smi prints them and as people write them."""
    gpu = gpu_spec(name)

    assert (gpu.memory_bytes, gpu.compute_capability) == (mib and mib * 1024**2, capability)


def test_what_is_given_goes_before_the_table():
    """A machine that was measured knows better."""
    assert gpu_spec("H200", memory_bytes=7).memory_bytes == 7
