"""What each precision means to TensorRT-LLM, and which GPUs run it."""

from __future__ import annotations

import pytest

from specdeploy.config import rules
from specdeploy.engine.tensorrt_llm.precisions import PRECISIONS, check_precision, compute_dtype, resolve_precision
from tests.unit.engine.tensorrt_llm.trtllm_cases import CALIBRATION, codes, spec

AMPERE, ADA, HOPPER, BLACKWELL, CONSUMER_BLACKWELL = (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)
EVERYWHERE = {"fp32", "fp16", "bf16"}
INTEGERS = {"int8_sq", "int8_wo", "int4_wo", "int4_awq"}


def _check(engine, capability=None, calibration=CALIBRATION, reuses=True):
    return tuple(check_precision(engine, capability=capability, calibration=calibration, reuses=reuses))


def test_the_precisions_are_those_of_the_configuration():
    """Each that the profile takes has an entry, and no other."""
    assert set(PRECISIONS) == set(rules.PRECISIONS["tensorrt_llm"]) - {"auto"}


@pytest.mark.parametrize(
    ("stored", "precision", "dtype"),
    [
        ("bfloat16", "bf16", "bfloat16"),
        ("float16", "fp16", "float16"),
        # As upstream's converters do.
        ("float32", "fp16", "float16"),
        ("float8_e4m3fn", "fp16", "float16"),
    ],
)
def test_auto_is_as_stored(stored, precision, dtype):
    """What is computed in follows from it, quantised weights or not."""
    assert resolve_precision("auto", stored) == precision
    assert resolve_precision("fp8", stored) == "fp8"
    assert compute_dtype("fp8", stored) == dtype
    assert compute_dtype("fp32", stored) == "float32"


@pytest.mark.parametrize(
    ("capability", "runs"),
    [
        (AMPERE, EVERYWHERE | INTEGERS),
        ((8, 6), EVERYWHERE | INTEGERS),
        (ADA, EVERYWHERE | INTEGERS | {"fp8", "w4a8_awq"}),
        (HOPPER, EVERYWHERE | INTEGERS | {"fp8", "w4a8_awq"}),
        # Upstream's builder refuses whatever it takes for weight-only there, AWQ included.
        (BLACKWELL, EVERYWHERE | {"fp8", "nvfp4"}),
        ((10, 3), EVERYWHERE | {"fp8", "nvfp4"}),
        (CONSUMER_BLACKWELL, set(PRECISIONS)),
        (None, set(PRECISIONS)),
    ],
)
def test_a_gpu_runs_what_it_has_kernels_for(capability, runs):
    """And nothing is said about one that is not known."""
    assert {name for name in PRECISIONS if not _check(spec(precision=name), capability)} == runs


def test_an_int8_kv_cache_does_not_run_on_blackwell():
    """Whatever the weights are."""
    engine = spec(precision="bf16", kv_cache="int8")

    assert codes(_check(engine, BLACKWELL, reuses=False)) == ["precision.gpu-without-integers"]
    assert codes(_check(engine, HOPPER, reuses=False)) == []


def test_a_gpu_that_is_too_old_is_named_with_what_is_needed():
    """The user has to find another."""
    (finding,) = _check(spec(precision="fp8"), AMPERE)

    assert (finding.code, finding.where) == ("precision.gpu-too-old", "target.precision")
    assert "8.9" in finding.message
    assert "8.0" in finding.message


@pytest.mark.parametrize(
    ("precision", "kv_cache", "needs"),
    [
        *((name, "auto", precision.calibrated) for name, precision in PRECISIONS.items()),
        ("bf16", "int8", True),
        ("int8_wo", "fp8", True),
        ("fp8", "fp8", True),
    ],
)
def test_texts_are_needed_where_something_is_calibrated(precision, kv_cache, needs):
    """Otherwise upstream's script would download them while it runs."""
    found = codes(_check(spec(precision=precision, kv_cache=kv_cache), calibration="", reuses=False))

    assert ("precision.no-calibration" in found) is needs
    assert codes(_check(spec(precision=precision, kv_cache=kv_cache), reuses=False)) == []


@pytest.mark.parametrize(
    ("precision", "kv_cache", "keeps"),
    [
        ("fp8", "auto", True),
        ("fp8", "fp8", True),
        ("nvfp4", "fp8", True),
        ("w4a8_awq", "fp8", True),
        ("bf16", "auto", True),
        ("bf16", "fp8", False),
        ("int4_awq", "fp8", False),
        ("fp8", "int8", False),
        ("bf16", "int8", False),
    ],
)
@pytest.mark.parametrize(("reuses", "severity"), [(True, "error"), (False, "warning")])
def test_a_kv_cache_that_turns_paged_attention_off_is_noticed(precision, kv_cache, keeps, reuses, severity):
    """An error for methods that send the text again each round, a warning for the others."""
    findings = _check(spec(precision=precision, kv_cache=kv_cache), reuses=reuses)

    expected = [] if keeps else [(severity, "precision.no-reuse", "target.kv_cache")]
    assert [(finding.severity, finding.code, finding.where) for finding in findings] == expected
