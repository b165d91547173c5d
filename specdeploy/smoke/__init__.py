"""The smoke test of a deployment: named checks, each isolated and within a time limit, and one report."""

from __future__ import annotations

from specdeploy.smoke.checks import CHECKS, Check
from specdeploy.smoke.expectations import PROMPTS, Expectations, SmokePrompt
from specdeploy.smoke.report import CheckResult, SmokeReport
from specdeploy.smoke.runner import run_smoke, select

__all__ = [
    "CHECKS",
    "PROMPTS",
    "Check",
    "CheckResult",
    "Expectations",
    "SmokePrompt",
    "SmokeReport",
    "run_smoke",
    "select",
]
