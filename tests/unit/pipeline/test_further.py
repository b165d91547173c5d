"""A load test that goes on: its parts are one run, on one clock, that compares with others."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.bench.further import Earlier
from specdeploy.bench.records import records_from_jsonl
from specdeploy.config.load import load_config
from specdeploy.errors import ConfigError
from specdeploy.gate.fingerprint import fingerprint_of
from specdeploy.pipeline.measurement import Line, Lines, Measurement, plan_of
from specdeploy.pipeline.record_files import reading_records
from specdeploy.pipeline.shards import ALONE
from specdeploy.system.files import sha256_file
from tests.unit.bench.fakes import FakeClock, FakeServer, answer, refused

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)
CONFIG = """\
name: tiny
target: {checkpoint: target}
draft: {checkpoint: draft}
load: {pairs: 2, requests: 3, warmup_requests: 2, concurrency: [1]}
"""


def answers(request, _number: int):
    """Two tokens; where no drafts are asked for none are told."""
    none = {"num_spec_steps": 0, "total_draft_tokens": 0, "total_accepted_draft_tokens": 0, "histogram": ()}
    return answer(1, 2, **(none if request.num_draft_tokens == 0 else {}))


class Deployment:
    """A fake that is measured again and again, and what lies in its report folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "specdeploy.yaml").write_text(CONFIG)
        self.loaded = load_config(folder / "specdeploy.yaml", {}, {})
        self.reports = folder / "reports"
        self.script = answers
        self.sent: list[Any] = []

    def measurement(self) -> Measurement:
        """Return what measures it."""
        server = FakeServer(FakeClock(time.monotonic()), self.script)
        self.sent = server.sent
        return Measurement(self.loaded, lambda: Lines(Line(server, server)), None, {"name": "fake"}, None, ALONE)

    def begin(self) -> dict:
        """Measure a first run."""
        return self.measurement().once(plan_of(self.loaded), ())

    def digest_holds(self) -> bool:
        """Whether the document names the records that lie beside it."""
        return self.document["records_sha256"] == sha256_file(self.reports / "load_records.jsonl")

    def go_on(self, pairs: int, **changes) -> str:
        """Add pairs to the run, whose document says something else."""
        with reading_records(self.reports / "load_records.jsonl") as records:
            offset_s = time.time() - time.monotonic()
            earlier = Earlier(document=self.document | changes, records=records, epoch_offset_s=offset_s)
            seed = len(earlier.document.get("repeats", ())) + 1
            plan = plan_of(self.loaded, first_pair=earlier.pairs, pairs=pairs, seed=seed)
            return self.measurement().further(earlier, plan, ())

    @property
    def document(self) -> dict:
        """What is kept; nothing else may be left."""
        assert {path.name for path in self.reports.iterdir()} == {"load.json", "load_records.jsonl"}
        return json.loads((self.reports / "load.json").read_text())

    @property
    def records(self) -> list:
        """All that were kept."""
        return list(records_from_jsonl((self.reports / "load_records.jsonl").read_text()))


@pytest.fixture(name="deployment")
def _deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def test_parts_are_one_run(deployment: Deployment) -> None:
    """Pairs are numbered on, in turns; all records are there; and the run compares with one that did not go on."""
    first = deployment.begin()
    assert deployment.digest_holds()
    sent = [request.prompt for request in deployment.sent]
    assert deployment.go_on(3) == ""
    again = [request.prompt for request in deployment.sent]
    assert deployment.go_on(5) == ""
    assert deployment.digest_holds()
    document, records = deployment.document, deployment.records

    blocks = [(block["concurrency"], block["pair"], block["arm"]) for block in document["blocks"]]
    assert sorted(blocks) == [(1, pair, arm) for pair in range(10) for arm in ("control", "speculation")]
    assert document["speedup"]["1"]["control_first"] == [True, False] * 5
    assert len(records) == 3 * 2 + 10 * 2 * 3
    assert [(part["pairs"], part["seed"]) for part in document["repeats"]] == [(3, 1), (5, 2)]
    assert len({part["schedule"] for part in (first["plan"], *document["repeats"])}) == 3
    assert sent[: len(sent) // 2] != again[: len(sent) // 2]
    assert fingerprint_of(document) == fingerprint_of(first)
    assert (document["created"], document["plan"]) == (first["created"], first["plan"])
    assert document["client"]["cpu_s"] > first["client"]["cpu_s"]
    assert not document["partial"]


def test_a_part_that_ends_early_changes_nothing(deployment: Deployment) -> None:
    """The server died: why is said, and what was measured before stays, to the byte."""
    deployment.begin()
    before = (deployment.reports / "load.json").read_bytes(), deployment.records

    def dies(request, number: int):
        return answers(request, number) if number < 5 else [refused("connection")]

    deployment.script = dies
    assert "did not reach the server" in deployment.go_on(2)
    assert ((deployment.reports / "load.json").read_bytes(), deployment.records) == before
    assert deployment.document


def test_ctrl_c_keeps_what_is_there(deployment: Deployment) -> None:
    """The run before the part, whole; and the signal acts as ever."""
    deployment.begin()
    before = (deployment.reports / "load.json").read_bytes()

    def interrupts(request, number: int):
        if number == 3:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        return answers(request, number)

    deployment.script = interrupts
    with pytest.raises(KeyboardInterrupt):
        deployment.go_on(20)
    assert (deployment.reports / "load.json").read_bytes() == before
    assert deployment.document["partial"] is False
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_of_another_clock_is_moved_onto_this_one(deployment: Deployment) -> None:
    """As after a reboot: what was measured on another day lies before what is measured now, and latencies stay."""
    deployment.begin()
    times = [(record.sent_s, record.ended_s) for record in deployment.records]
    day = dt.datetime.fromisoformat(deployment.document["created"]) - dt.timedelta(days=1)
    assert deployment.go_on(2, created=day.isoformat()) == ""
    moved = [(record.sent_s, record.ended_s) for record in deployment.records[: len(times)]]

    assert {round(new[0] - old[0], -2) for new, old in zip(moved, times, strict=True)} == {-86400}
    assert [e - s for s, e in moved] == pytest.approx([e - s for s, e in times], abs=1e-6)
    assert deployment.document["speedup"]["1"]["control_first"] == [True, False, True, False]
    assert deployment.document["created"] == day.isoformat()


@pytest.mark.parametrize(
    "changes", [{"created": "yesterday"}, {"started_s": None}, {"client": {}}, {"blocks": [{}]}, {"plan": 3}]
)
def test_a_damaged_document_does_not_go_on(deployment: Deployment, changes: dict) -> None:
    """That is the user's to mend, and no bug of ours."""
    deployment.begin()
    with pytest.raises(ConfigError, match="load report"):
        deployment.go_on(1, **changes)


def test_records_of_another_run_do_not_go_on(deployment: Deployment) -> None:
    """The document tells how many requests it is of."""
    deployment.begin()
    path = deployment.reports / "load_records.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))

    with pytest.raises(ConfigError, match="the records beside it are"):
        deployment.go_on(1)
