"""A load test says beforehand what a deployment cannot be measured by, and what it will refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdeploy.config.load import load_config
from specdeploy.pipeline.load_findings import deployment_findings
from specdeploy.pipeline.measurement import plan_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("repo", "concurrency", "codes"),
    [
        ("{}", 64, []),
        ("{decoupled: false}", 4, ["load.not-streamed"]),
        ("{}", 160, ["load.queue-too-short"]),
        ("{max_queue_size: 0}", 160, []),
        ("{max_queue_size: 7}", 16, ["load.queue-too-short"]),
        ("{max_queue_size: 7}", 15, []),
    ],
)
def test_what_a_deployment_cannot_give_is_said(tmp_path: Path, repo: str, concurrency: int, codes: list[str]) -> None:
    """By default no usual load is refused; with a short queue the finding has the numbers."""
    path = tmp_path / "specdeploy.yaml"
    path.write_text(
        f"name: n\ntarget: {{checkpoint: t}}\ndraft: {{checkpoint: d}}\nbuild: {{max_batch_size: 8}}\nrepo: {repo}\n"
        f"load: {{concurrency: [1, {concurrency}], requests: 200}}\n"
    )
    loaded = load_config(path, {}, {})
    findings = deployment_findings(loaded.config, plan_of(loaded))

    assert [finding.code for finding in findings] == codes
    if concurrency == 160 and codes:
        assert "160 requests at once are more than the 8 that are decoded and the 128" in findings[0].message
