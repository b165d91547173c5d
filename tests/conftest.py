"""Guards and shared fixtures: what a test may touch is decided here, by tier.

A test that needs something this machine lacks is skipped and says so. ``SPECDEPLOY_REQUIRE=cpu,triton,model``
turns such a skip into a failure, so that CI never reports a tier as green that did not run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

from specdeploy.triton import runtime as triton_runtime_module
from tests import llamacpp_server, peers, slurm_cluster

# A shell that starts us in the background has Ctrl-C ignored, and nohup a hang-up, which what we start would inherit;
# tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

ROOT = Path(__file__).parents[1]
# No deadline for an example, since a busy machine is no failure, and always the same ones: CI judges the change.
hypothesis.settings.register_profile("specdeploy", deadline=None, derandomize=True)
hypothesis.settings.load_profile("specdeploy")

TIERS = ("cpu", "triton", "model", "chromium", "slurm", "modelopt", "reference", "openai", "peers", "otava")
CHECKPOINT = ROOT / "checkpoints" / "smollm2-135m-instruct"


def _missing(tier: str) -> str | None:
    """Say what this machine lacks for *tier*, or None when it can run."""
    lacks: dict[str, tuple[bool, str]] = {
        "cpu": (
            importlib.util.find_spec("onnxruntime_genai") is None,
            "ONNX Runtime GenAI is not installed; `pip install -e .[cpu]`",
        ),
        "triton": (
            triton_runtime_module.find_runtime() is None,
            "the embedded Triton runtime is not installed; `specdeploy runtime install`",
        ),
        "model": (
            not (CHECKPOINT / "config.json").is_file(),
            "the SmolLM2 checkpoint is not here; `make checkpoint`",
        ),
        "chromium": (shutil.which("chromium") is None, "no chromium on PATH"),
        "slurm": (slurm_cluster.missing() is not None, slurm_cluster.missing() or ""),
        "modelopt": (not _has_modelopt(), "nvidia-modelopt is not installed; `.ci/install-modelopt`"),
        "reference": (not _has_modelopt(), "transformers is not installed; `.ci/install-modelopt`"),
        "openai": (llamacpp_server.missing() is not None, llamacpp_server.missing() or ""),
        "peers": (peers.missing() is not None, peers.missing() or ""),
        "otava": (not otava_python().is_file(), "apache-otava is not installed; `.ci/install-otava`"),
    }
    absent, reason = lacks[tier]
    return reason if absent else None


def modelopt_python() -> Path:
    """Return the interpreter that has ModelOpt, whether or not it is there."""
    return Path(os.environ.get("SPECDEPLOY_MODELOPT_PYTHON", ROOT / ".venv" / "modelopt" / "bin" / "python"))


def otava_python() -> Path:
    """Return the interpreter that has Otava, whether or not it is there: this one, or that of an environment apart."""
    if importlib.util.find_spec("otava") is not None:
        return Path(sys.executable)
    return Path(os.environ.get("SPECDEPLOY_OTAVA_PYTHON", ROOT / ".venv" / "otava" / "bin" / "python"))


def _has_modelopt() -> bool:
    """Say whether it is there as a whole: the installation leaves a file behind when it is done."""
    named = "SPECDEPLOY_MODELOPT_PYTHON" in os.environ
    return modelopt_python().is_file() and (named or (modelopt_python().parents[1] / ".installed").is_file())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tiers that this machine cannot run; fail instead where the caller requires them."""
    required = set(filter(None, os.environ.get("SPECDEPLOY_REQUIRE", "").split(",")))
    reasons = {tier: _missing(tier) for tier in TIERS}
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
