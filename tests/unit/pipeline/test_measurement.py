"""What a load test leaves when it ends otherwise than planned: results of one run, or those of the run before."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from specdeploy.bench.records import records_from_jsonl
from specdeploy.config.load import load_config
from specdeploy.errors import ConfigError
from specdeploy.gate.fingerprint import take_fingerprint
from specdeploy.pipeline.measurement import Line, Lines, Measurement, plan_of
from specdeploy.pipeline.shards import ALONE
from tests.unit.bench.fakes import HANG, FakeClock, FakeServer, answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)
CONFIG = """\
name: tiny
target: {checkpoint: target}
draft: {checkpoint: draft}
load: {compare: false, pairs: 1, requests: 4, warmup_requests: 0, concurrency: [1]}
"""


class Terminated(BaseException):
    """What the command's handler of SIGTERM raises."""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Handle SIGTERM as the command does."""

    def handler(_number: int, _frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, handler)
    yield
    assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGTERM, before)


def measure(folder: Path, script=lambda request, number: answer(1, 2), in_summary: Callable[[], object] = int):
    """Measure a fake; ``in_summary`` is called when all is measured and nothing is written yet."""

    def findings():
        in_summary()
        yield from ()

    (folder / "specdeploy.yaml").write_text(CONFIG)
    loaded = load_config(folder / "specdeploy.yaml", {}, {})
    server = FakeServer(FakeClock(time.monotonic()), script)
    run = Measurement(loaded, lambda: Lines(Line(server, server)), None, {"name": "fake"}, None, ALONE)
    return run.once(plan_of(loaded), findings())


def kept(folder: Path):
    """Return the document, and how many records there are; nothing else may be left."""
    reports = folder / "reports"
    assert {path.name for path in reports.iterdir()} == {"load.json", "load_records.jsonl"}
    document = json.loads((reports / "load.json").read_text())
    return document, len(records_from_jsonl((reports / "load_records.jsonl").read_text()))


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_while_the_report_is_made_waits_until_it_is_written(
    tmp_path: Path, number: signal.Signals, raised: type[BaseException]
) -> None:
    """The run is whole, and kept as what it is; then the signal acts, and says where the results are."""
    with pytest.raises(raised) as ending:
        measure(tmp_path, in_summary=lambda: os.kill(os.getpid(), number))
    document, records = kept(tmp_path)

    assert (document["partial"], records) == (False, 4)
    assert str(tmp_path / "reports" / "load.json") in ending.value.__notes__[0]


def test_a_run_keeps_what_it_was_measured_with(tmp_path: Path) -> None:
    """As the gate would take it from the document, the schedule of what was sent included."""
    measure(tmp_path)
    document, _ = kept(tmp_path)

    assert document["fingerprint"] == take_fingerprint(document)
    assert document["fingerprint"]["load.schedule"] == document["plan"]["schedule"]


def test_the_third_signal_does_not_wait_for_the_report(tmp_path: Path) -> None:
    """Nothing of the run is kept, and what the run before left stays."""
    measure(tmp_path)
    before = (tmp_path / "reports" / "load.json").read_bytes()

    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, in_summary=lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(3)])
    kept(tmp_path)
    assert (tmp_path / "reports" / "load.json").read_bytes() == before


def test_a_second_signal_while_requests_hang_keeps_what_was_measured(tmp_path: Path) -> None:
    """As the first one does."""

    def script(_request, number: int):
        if number == 2:
            for _ in range(2):
                asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        return answer(1) if number < 2 else [HANG]

    measure(tmp_path, script)
    document, records = kept(tmp_path)

    assert (document["stop_reason"], records) == ("interrupted from the keyboard", 3)


def test_ctrl_c_before_anything_is_sent_leaves_the_results_of_the_last_run(tmp_path: Path) -> None:
    """There is nothing that could take their place."""
    measure(tmp_path)

    class Struck(FakeServer):
        async def open(self, connections: int, timeout_s: float = 30.0) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(timeout_s)

    server = Struck(FakeClock(time.monotonic()))
    loaded = load_config(tmp_path / "specdeploy.yaml", {}, {})
    run = Measurement(loaded, lambda: Lines(Line(server, server)), None, {"name": "fake"}, None, ALONE)
    with pytest.raises(KeyboardInterrupt):
        run.once(plan_of(loaded), ())

    assert (server.sent, server.closed) == ([], 1)
    assert kept(tmp_path)[1] == 4


def test_a_report_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    """Nothing can be kept, and the error names the place."""
    with pytest.raises(ConfigError, match=r"load_records\.jsonl cannot be written: No such file"):
        measure(tmp_path, in_summary=lambda: shutil.rmtree(tmp_path / "reports"))


def test_a_document_that_does_not_fit_leaves_no_mix(tmp_path: Path) -> None:
    """The results of the run before are left as they are, records and document."""
    measure(tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "reports").iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before["load_records.jsonl"]) + 100, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"load\.json cannot be written: File too large"):
            measure(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert {path.name: path.read_bytes() for path in (tmp_path / "reports").iterdir()} == before
