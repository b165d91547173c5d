"""Guards and shared fixtures: what a test may touch is decided here, by tier.

A test that needs something this machine lacks is skipped and says so. ``SPECDEPLOY_REQUIRE=cpu,triton,model,chromium``
turns such a skip into a failure, so that CI never reports a tier as green that did not run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from specdeploy.triton import runtime as triton_runtime_module

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "checkpoints" / "smollm2-135m-instruct"


def _missing(tier: str) -> str | None:
    """Say what this machine lacks for *tier*, or None when it can run."""
    if tier == "cpu" and importlib.util.find_spec("onnxruntime_genai") is None:
        return "ONNX Runtime GenAI is not installed; `pip install -e .[cpu]`"
    if tier == "triton" and triton_runtime_module.find_runtime() is None:
        return "the embedded Triton runtime is not installed; `specdeploy runtime install`"
    if tier == "model" and not (CHECKPOINT / "config.json").is_file():
        return "the SmolLM2 checkpoint is not here; `make checkpoint`"
    if tier == "chromium" and shutil.which("chromium") is None:
        return "no chromium on PATH"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tiers that this machine cannot run; fail instead where the caller requires them."""
    required = set(filter(None, os.environ.get("SPECDEPLOY_REQUIRE", "").split(",")))
    reasons = {tier: _missing(tier) for tier in ("cpu", "triton", "model", "chromium")}
    broken = [f"{tier}: {reasons[tier]}" for tier in sorted(required) if reasons.get(tier)]
    if broken:
        raise pytest.UsageError("a required test tier cannot run here; " + "; ".join(broken))
    for item in items:
        for tier, reason in reasons.items():
            if reason and item.get_closest_marker(tier):
                item.add_marker(pytest.mark.skip(reason=f"{tier} tier: {reason}"))


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the caller's configuration overrides out of every test."""
    for name in list(os.environ):
        if name.startswith("SPECDEPLOY__"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def triton_runtime() -> triton_runtime_module.Runtime:
    """The embedded Triton runtime; tests that ask for it carry the ``triton`` marker."""
    runtime = triton_runtime_module.find_runtime()
    assert runtime is not None
    return runtime


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The SmolLM2 checkpoint folder; tests that ask for it carry the ``model`` marker."""
    return CHECKPOINT
