"""The smoke document of a deployment with every kind of difference, for the reports."""

from __future__ import annotations

from typing import Any

from specdeploy.smoke.report import CheckResult, SmokeReport


def difference(kind: str, **changes: Any) -> dict[str, Any]:
    """A first difference as the smoke test writes it."""
    return {
        "prompt": "cyrillic",
        "num_draft_tokens": 7,
        "company": "alone",
        "kind": kind,
        "why": "the target's two best tokens are 0.125 apart",
        "position": 12,
        "expected_id": 1042,
        "seen_id": 88,
        "expected_token": " дом",
        "seen_token": " река",
        "margin": 0.125,
        "threshold": 0.25,
        "best": [[1042, 21.5], [88, 21.375]],
        "context": "Санкт-Петербург",
        "expected": [1, 2, 1042],
        "seen": [1, 2, 88],
        "expected_text": "дом",
        "seen_text": "река",
        **changes,
    }


def comparison(position: int, adjusted: float = 0.4, **changes: Any) -> dict[str, Any]:
    """A comparison of next-token counts as the smoke test writes it."""
    return {
        "prompt": "prose",
        "position": position,
        "samples": [200, 200],
        "tokens": [4, 8, 15, 16, 23, 42, 99, 100, -1],
        "control": [80, 50, 30, 15, 10, 5, 5, 3, 2],
        "drafted": [78, 55, 28, 14, 11, 6, 4, 4, 0],
        "distance": 0.045,
        "p_value": adjusted / 2,
        "adjusted_p_value": adjusted,
        "detectable_distance": 0.21,
        **changes,
    }


def smoke_document(
    differences: list[dict[str, Any]], tests: list[dict[str, Any]], status: str = "fail"
) -> dict[str, Any]:
    """What ``smoke.json`` says with these in it."""
    kinds: dict[str, int] = {}
    for entry in differences:
        kinds[entry["kind"]] = kinds.get(entry["kind"], 0) + 1
    cases = [
        {"prompt": prompt, "num_draft_tokens": drafts, "rejected_drafts": rejected}
        for prompt in ("code", "prose")
        for drafts, rejected in ((4, 31), (1, 12))
    ]
    compared = {
        "compared": 18,
        "kinds": kinds,
        "cases": cases,
        "rejected_drafts": 143,
        "different_rejected_drafts": 62,
        "excused_share": 0.047,
    }
    sampled = {"samples_wanted": 200, "alpha": 0.01, "temperature": 0.5, "top_k": 8, "tests": tests}
    return SmokeReport(
        checks=(
            CheckResult(name="server-ready", status="pass", duration_s=0.1, reason="triton 2.51.0"),
            CheckResult(
                name="lossless-greedy",
                status=status,  # type: ignore[arg-type]
                duration_s=3.2,
                reason="18 answers of up to 32 tokens",
                details={**compared, "differences": differences},
            ),
            CheckResult(
                name="lossless-sampled",
                status="pass",
                duration_s=19.0,
                reason="400 sampled answers a prompt",
                details={**compared, "kinds": {}, "differences": [], "sampled": sampled},
            ),
        )
    ).as_dict()


EVERY_KIND = (
    difference("tie"),
    difference("divergence", margin=1.75, company="among 8 requests", why="1.75 apart, which is more than 0.25"),
    difference("unstable", margin=None, best=None, num_draft_tokens=None, seen_id=None, seen_token=""),
    difference("not judged", margin=None, threshold=0.0, expected_token="", seen_token=""),
)
EVERYTHING = smoke_document(list(EVERY_KIND), [comparison(1), comparison(2, 0.0004, detectable_distance=None)])
