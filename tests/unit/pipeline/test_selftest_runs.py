"""The gate's selftest, between its two runs; nothing is measured for real."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from specdeploy.config.load import load_config
from specdeploy.gate.outcome import RuleVerdict
from specdeploy.gate.rules import parse_rules
from specdeploy.gate.selftest import DEFAULT_RULE, Trial
from specdeploy.pipeline import selftest
from specdeploy.pipeline.serving import Addresses
from specdeploy.triton.client.failures import RequestFailed

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CONFIG = """\
name: tiny
target: {checkpoint: target}
draft: {checkpoint: draft}
load: {pairs: 5, requests: 3, concurrency: [1]}
"""


def test_a_server_that_has_gone_between_the_runs_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome is kept (3), with why."""
    (rule,) = parse_rules([DEFAULT_RULE])
    verdict = RuleVerdict(rule=rule, status="pass", value=1.0, limit=0.95, point=None, reason="It is.")

    def measure(_runs: object, slowdown: float) -> Trial:
        if slowdown:
            raise RequestFailed("connection", "nobody is there")
        return Trial(slowdown=slowdown, verdict=verdict, grew=0.0)

    monkeypatch.setattr(selftest._Runs, "measure", measure)
    monkeypatch.setattr(selftest, "_time_of_one", lambda *_: None)
    (tmp_path / "specdeploy.yaml").write_text(CONFIG)
    loaded = load_config(tmp_path / "specdeploy.yaml", {}, {})
    found = selftest.selftest(loaded, Addresses(http_url="127.0.0.1:1", grpc_url="127.0.0.1:2"))

    assert (found["status"], found["exit_code"]) == ("undecided", 3)
    assert found["reason"] == "the second run did not begin: connection: nobody is there"
    kept = json.loads((tmp_path / "reports/gate-selftest.json").read_text())
    assert (kept["status"], kept["reason"]) == (found["status"], found["reason"])
