"""Load tests of servers that fail: each failure is counted under its label, the run ends, and a report tells of it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.bench.driver import run_load
from specdeploy.bench.load_report import RunContext, build_load_report
from specdeploy.bench.records import records_from_jsonl, records_to_jsonl
from specdeploy.bench.schedule import LoadSettings, plan_load
from specdeploy.bench.wire.codec import OpenAICodec, TritonCodec
from specdeploy.bench.wire.grpc import GrpcCodec, GrpcWire
from specdeploy.bench.wire.http import HttpWire
from specdeploy.openai import Dialect, ServerAddress
from specdeploy.system.clock import SystemClock
from specdeploy.system.files import free_port
from specdeploy.triton.client import RequestFailed
from tests.deployments import finish, specdeploy, start, write_deployment
from tests.timed_server import MODEL, Script, prompts, timed_server

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from specdeploy.bench.records import LoadRun, RequestRecord
    from specdeploy.bench.schedule import LoadPlan

pytestmark = pytest.mark.timeout(120)

#: Longer than anything here takes on a busy machine.
PATIENCE_S = 60.0
CONTEXT = RunContext(created="2026-01-31T09:30:00+00:00", deployment={"name": "timed"}, environment={})
STREAM = Script(name="", gaps_ms=(2.0, 2.0, 2.0), tokens=((1,), (2,), (1,)))
CLOSED: dict[str, Any] = {"concurrency": (4,)}
OPEN: dict[str, Any] = {"shape": "constant", "rates": (100.0,)}


def triton(url: str) -> tuple[Any, Any]:
    """Triton's ``generate_stream``."""
    return HttpWire(url), TritonCodec(url, model="ensemble")


def openai(url: str) -> tuple[Any, Any]:
    """OpenAI's chat completions."""
    address = ServerAddress(host=url, tls=False)
    return HttpWire(url), OpenAICodec(address, model=MODEL, dialect=Dialect(chat=True, counts=True))


def over_grpc(url: str) -> tuple[Any, Any]:
    """Triton's ``ModelStreamInfer``."""
    return GrpcWire(url), GrpcCodec(model="ensemble")


def plan(scripts: Sequence[Script], **settings: Any) -> LoadPlan:
    """Send every script once; a server that seems dead does not end the run unless a test says so."""
    limits: dict[str, Any] = {"requests": len(scripts), "pairs": 1, "warmup_requests": 0, "compare": False}
    limits |= {"request_timeout_s": PATIENCE_S, "max_connection_failures": 1000}
    return plan_load(LoadSettings(**{**limits, **settings}), prompts(scripts))


def run(
    scripts: Sequence[Script], line: Callable[[str], tuple[Any, Any]] = triton, *, url: str = "", **settings: Any
) -> tuple[LoadRun, dict[str, Any]]:
    """Run against a server, or one of its own; return the run and the one arm of its report."""
    wanted = plan(scripts, **settings)
    if url:
        result = run_load(wanted, *line(url), SystemClock())
        return result, arm_of(result, wanted)
    with timed_server(grpc=line is over_grpc) as server:
        own = server.grpc_url if line is over_grpc else server.url
        result = run_load(wanted, *line(own), SystemClock())
    return result, arm_of(result, wanted)


@pytest.fixture(name="url", scope="module")
def _url() -> Iterator[str]:
    """A server that survives what it is asked for."""
    with timed_server() as server:
        yield server.url


def arm_of(result: LoadRun, wanted: LoadPlan) -> dict[str, Any]:
    """Build the report, as JSON and back, and return its arm; the records survive their file as well."""
    assert records_from_jsonl(records_to_jsonl(result.records)) == result.records
    document = json.loads(json.dumps(build_load_report(result, wanted, CONTEXT), allow_nan=False))
    assert (document["partial"], document["stop_reason"]) == (result.partial, result.stop_reason)
    (arm,) = document["arms"]
    return arm


def by_name(result: LoadRun) -> dict[str, RequestRecord]:
    """Return the records by the names of their scripts."""
    return {record.prompt_id: record for record in result.records}


def failing(fault: str, *, after: int = 0, of: int = 12, every: int = 3) -> list[Script]:
    """Return scripts every third of which fails, ``after`` so many writes."""
    return [
        dataclasses.replace(
            STREAM, name=f"r{number}", **({} if number % every else {"fault": fault, "fault_after": after})
        )
        for number in range(of)
    ]


FAILURES = [
    ("400", 0, "invalid_argument", "invalid_argument"),
    ("404", 0, "invalid_argument", "invalid_argument"),
    ("429", 0, "unavailable", "unavailable"),
    ("500", 0, "internal", "internal"),
    ("503", 0, "unavailable", "unavailable"),
    ("garbage", 0, "protocol", "protocol"),
    ("garbage", 1, "protocol", "protocol"),
    ("error", 0, "model_error", "model_error"),
    ("error", 2, "model_error", "model_error"),
    ("not-json", 1, "protocol", "protocol"),
    ("cut", 1, "connection", "connection"),
    ("ended", 0, "empty_stream", "stream_ended_early"),
    ("ended", 2, "stream_ended_early", "stream_ended_early"),
    ("close", 0, "connection", "connection"),
    ("close", 2, "connection", "connection"),
    ("reset", 0, "connection", "connection"),
    ("reset", 2, "connection", "connection"),
]


class TestOneOfThree:
    """A server that fails at some of its requests."""

    @pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
    @pytest.mark.parametrize("line", [triton, openai])
    @pytest.mark.parametrize(("fault", "after", "of_triton", "of_openai"), FAILURES)
    def test_failures_have_their_label(
        self, url: str, line: Any, load: dict[str, Any], fault: str, after: int, of_triton: str, of_openai: str
    ) -> None:
        """It is the same whatever the load; the other requests are answered, and the error rate is exact."""
        label = of_triton if line is triton else of_openai
        result, arm = run(failing(fault, after=after), line, url=url, **load)
        records = by_name(result)

        assert {name: record.error for name, record in records.items()} == {
            f"r{number}": None if number % 3 else label for number in range(12)
        }
        assert all(record.error_message for record in records.values() if record.error)
        # What came before the failure is kept, but for what came in one piece with bytes that are not HTTP.
        least = 0 if fault == "garbage" else after
        assert all(least <= len(record.chunk_s) <= after for record in records.values() if record.error)
        assert not result.partial
        assert arm["errors"] == {label: 4}
        metrics = arm["metrics"]
        assert (metrics["error_rate"]["avg"], metrics["error_request_count"]["avg"]) == (pytest.approx(4 / 12), 4)
        assert metrics["request_count"]["avg"] == metrics["request_latency"]["count"] == 8
        assert metrics["output_sequence_length"]["sum"] == 8 * STREAM.output_tokens

    @pytest.mark.parametrize(
        ("line", "fault"), [(triton, "500"), (triton, "error"), (openai, "error"), (over_grpc, "error")]
    )
    def test_what_the_server_said_is_kept(self, line: Any, fault: str) -> None:
        """The message of an error is its own, whether it came with a status, or in a stream whose status is fine."""
        result, arm = run(failing(fault, of=6), line, **CLOSED)

        assert arm["metrics"]["error_rate"]["avg"] == pytest.approx(2 / 6)
        assert all(f"scripted {fault}" in by_name(result)[name].error_message for name in ("r0", "r3"))

    @pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
    def test_a_stream_that_stalls_times_out(self, url: str, load: dict[str, Any]) -> None:
        """At its time-out and not before, with the tokens that came; its connection is not used again."""
        result, arm = run(failing("hang", after=2), url=url, request_timeout_s=2.0, **load)
        records = by_name(result)
        stalled = [records[f"r{number}"] for number in range(0, 12, 3)]

        assert arm["errors"] == {"timeout": 4}
        assert arm["metrics"]["error_rate"]["avg"] == pytest.approx(4 / 12)
        assert not result.partial
        for record in stalled:
            assert (record.error, record.chunk_tokens) == ("timeout", (1, 2))
            assert 2.0 <= record.ended_s - record.sent_s < 2.0 + PATIENCE_S / 4


class TestServerThatIsGone:
    """A server that is not there, or no longer."""

    @pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
    @pytest.mark.parametrize("line", [triton, openai])
    def test_nobody_listens(self, line: Any, load: dict[str, Any]) -> None:
        """There is no run and no record: the failure says where nobody is, at once."""
        url = f"127.0.0.1:{free_port('127.0.0.1')}"
        begun_s = time.monotonic()
        with pytest.raises(RequestFailed, match=url) as failed:
            run_load(plan([STREAM], **load), *line(url), SystemClock())

        assert failed.value.label == "connection"
        assert time.monotonic() - begun_s < PATIENCE_S / 4

    @pytest.mark.parametrize(
        ("fault", "load", "line"),
        [
            ("die", CLOSED, triton),
            ("die", OPEN, triton),
            ("deaf", {"concurrency": (1,)}, triton),
            ("die", CLOSED, over_grpc),
            ("die", OPEN, over_grpc),
        ],
        ids=["killed-closed", "killed-open", "deaf-closed", "killed-closed-grpc", "killed-open-grpc"],
    )
    def test_the_run_ends_soon_after_the_server(self, fault: str, load: dict[str, Any], line: Any) -> None:
        """Killed, or deaf to new connections: five failures in a row end the run, and say why; the rest is not sent."""
        scripts = [dataclasses.replace(STREAM, name=f"r{number}") for number in range(200)]
        order = [prompt.id for prompt in prompts(scripts).shuffled(0).prompts]
        guilty = order[20]
        faults = {"fault": fault, "fault_after": 1}
        scripts = [dataclasses.replace(told, **faults) if told.name == guilty else told for told in scripts]
        result, arm = run(scripts, line, max_connection_failures=5, **load)
        records = by_name(result)
        failed = [record for record in result.records if record.error == "connection"]

        assert result.partial
        assert "5 requests in a row did not reach the server" in result.stop_reason
        assert len(result.records) < 200
        assert (records[guilty].error, len(records[guilty].chunk_s)) == ("connection", 1)
        # On a busy machine requests that were sent before are still in flight when the server goes, and go with it.
        fine = [record for record in result.records if record.ended_s < records[guilty].sent_s]
        assert all(record.error is None for record in fine)
        assert len(failed) >= 5
        assert arm["errors"]["connection"] == len(failed)
        counted = [record for record in result.records if record.counts]
        assert arm["metrics"]["error_rate"]["avg"] == pytest.approx(
            sum(not record.ok for record in counted) / len(counted)
        )

    def test_a_dead_server_fails_every_request_that_is_left(self) -> None:
        """Where a run is told to go on, an open loop sends all it has, and each failure counts."""
        scripts = [dataclasses.replace(STREAM, name=f"r{number}") for number in range(60)]
        order = [prompt.id for prompt in prompts(scripts).shuffled(0).prompts]
        guilty = order[20]
        scripts = [dataclasses.replace(told, fault="die") if told.name == guilty else told for told in scripts]
        result, arm = run(scripts, **OPEN)
        errors = sum(record.error == "connection" for record in result.records)

        assert (len(result.records), result.partial) == (60, False)
        # On a busy machine some are answered although they were due after the one that kills the server.
        assert {by_name(result)[name].error for name in (guilty, *order[-10:])} == {"connection"}
        assert by_name(result)[order[0]].error is None
        assert arm["errors"] == {"connection": errors}
        assert arm["metrics"]["error_rate"]["avg"] == pytest.approx(errors / 60)
        assert arm["metrics"]["request_count"]["avg"] == 60 - errors

    def test_a_server_that_answers_nobody(self, url: str) -> None:
        """Every request times out: the report has no latency, an error rate of 1, and no invented number."""
        scripts = [dataclasses.replace(STREAM, name=f"r{number}", fault="hang") for number in range(4)]
        result, arm = run(scripts, url=url, request_timeout_s=0.3, **CLOSED)

        assert [record.error for record in result.records] == ["timeout"] * 4
        assert (arm["errors"], arm["metrics"]["error_rate"]["avg"]) == ({"timeout": 4}, 1.0)
        assert "request_latency" not in arm["metrics"]
        assert "output_token_throughput" not in arm["metrics"]


CONFIG = """\
name: tiny
target: {checkpoint: target}
draft: {checkpoint: draft}
load: {protocol: http, prompts: prompts.jsonl, compare: false, warmup_requests: 0, pairs: 1, request_timeout_s: 60}
"""
MANY = 1000


def deployment(folder: Path, scripts: Sequence[Script]) -> None:
    """Write a configuration whose load test asks for these answers."""
    (folder / "specdeploy.yaml").write_text(CONFIG)
    lines = [json.dumps({"id": prompt.id, "text": prompt.text}) for prompt in prompts(scripts).prompts]
    (folder / "prompts.jsonl").write_text("\n".join(lines))


def start_load(folder: Path, url: str, settings: dict[str, str]) -> subprocess.Popen[str]:
    """Start ``specdeploy load`` against a server."""
    arguments = [word for key, value in settings.items() for word in ("--set", f"load.{key}={value}")]
    return start(folder, ["load", "--http", url, "--grpc", url, *arguments])


class TestEnding:
    """Runs that are ended from our side."""

    def test_sigterm_ends_a_run_wherever_it_arrives(self) -> None:
        """In a callback of the event loop as well, where what its handler raises, and a request, would be lost."""
        scripts = [dataclasses.replace(STREAM, name=f"r{number}") for number in range(4)]

        class Struck(TritonCodec):
            def decode(self, reply: Any, request: Any) -> Any:
                os.kill(os.getpid(), signal.SIGTERM)
                return super().decode(reply, request)

        def handler(_number: int, _frame: object) -> None:
            raise AssertionError("the run is told instead")

        before = signal.signal(signal.SIGTERM, handler)
        try:
            with timed_server() as server:
                line = HttpWire(server.url), Struck(server.url, model="ensemble")
                result = run_load(plan(scripts, concurrency=(4,)), *line, SystemClock())
            assert signal.getsignal(signal.SIGTERM) is handler
        finally:
            signal.signal(signal.SIGTERM, before)
        assert (result.partial, result.stop_reason) == (True, "terminated")
        assert result.records

    def test_a_deadline_that_passes_while_connections_are_opened(self) -> None:
        """Nothing is sent, and the run ends."""

        class Slow(HttpWire):
            async def open(self, connections: int, timeout_s: float = 30.0) -> None:
                await super().open(connections, timeout_s)
                await asyncio.sleep(0.2)

        wanted = plan([dataclasses.replace(STREAM, name="r0")], deadline_s=0.05)
        with timed_server() as server:
            result = run_load(wanted, Slow(server.url), TritonCodec(server.url, model="ensemble"), SystemClock())

        assert (result.records, result.stop_reason) == ((), "the deadline of 0.05 s passed")


class TestCommand:
    """``specdeploy load``, ended by a signal while requests are in flight."""

    LOADS = pytest.mark.parametrize(
        "load", [{"concurrency": "[3]"}, {"shape": "poisson", "rates": "[50]"}], ids=["closed", "open"]
    )

    def ended(self, folder: Path, load: dict[str, str], number: int) -> tuple[int, str, str]:
        """Run it against a server of its own, and end it; return its exit code and what it printed."""
        deployment(folder, [dataclasses.replace(STREAM, name=f"r{n}", gaps_ms=(30.0,) * 3) for n in range(MANY)])
        with timed_server() as server:
            process = start_load(folder, server.url, {**load, "requests": str(MANY)})
            server.wait(30)
            process.send_signal(number)
            out, err = finish(process)
        assert "Traceback" not in err
        return process.returncode, out, err

    @LOADS
    def test_ctrl_c_keeps_what_was_measured(self, tmp_path: Path, load: dict[str, str]) -> None:
        """The report says that it is partial; what was in flight had a moment to end, and nothing is an error."""
        _, out, _ = self.ended(tmp_path, load, signal.SIGINT)
        document = json.loads((tmp_path / "reports" / "load.json").read_text())
        records = records_from_jsonl((tmp_path / "reports" / "load_records.jsonl").read_text())

        assert "partial: interrupted from the keyboard" in out
        assert (document["partial"], document["stop_reason"]) == (True, "interrupted from the keyboard")
        assert 30 <= len(records) < MANY
        (arm,) = document["arms"]
        assert (arm["errors"], arm["metrics"]["error_rate"]["avg"]) == ({}, 0.0)
        assert arm["metrics"]["request_count"]["avg"] == sum(record.counts for record in records)

    def test_ctrl_c_ends_it_with_130(self, tmp_path: Path) -> None:
        """As it ends every other command."""
        assert self.ended(tmp_path, {"concurrency": "[3]"}, signal.SIGINT)[0] == 130

    @LOADS
    def test_sigterm_ends_it_with_143(self, tmp_path: Path, load: dict[str, str]) -> None:
        """Soon, and says so; what was measured is kept."""
        code, _, err = self.ended(tmp_path, load, signal.SIGTERM)
        document = json.loads((tmp_path / "reports" / "load.json").read_text())

        assert code == 143
        assert "terminated" in err
        assert f"what was measured is kept in {tmp_path / 'reports' / 'load.json'}" in err
        assert (document["partial"], document["stop_reason"]) == (True, "terminated")
        assert len(records_from_jsonl((tmp_path / "reports" / "load_records.jsonl").read_text())) >= 30


@pytest.mark.cpu
@pytest.mark.triton
@pytest.mark.timeout(600)
class TestDeployment:
    """The same with a server that the command has started itself: tiny engines, the real Triton, gRPC."""

    def test_ctrl_c(self, tmp_path: Path) -> None:
        """What was measured is kept, marked partial, and the server is stopped."""
        write_deployment(tmp_path)
        for command in ("build", "repo"):
            done = specdeploy(command, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        process = start(tmp_path, ["load", "--serve", "--set", "load.pairs=2000"])
        try:
            assert process.stderr is not None
            # Until a line says that it is past the warm-up and the first pair.
            far = (re.search(r"(\d+)/\d+ requests", line) for line in process.stderr)
            assert any(done is not None and int(done[1]) > 20 for done in far)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.communicate()
        document = json.loads((tmp_path / "reports" / "load.json").read_text())

        assert "Traceback" not in err
        assert "partial: interrupted from the keyboard" in out
        assert (document["partial"], document["stop_reason"]) == (True, "interrupted from the keyboard")
        assert {arm["arm"] for arm in document["arms"]} == {"control", "speculation"}
        assert [arm["errors"] for arm in document["arms"]] == [{}, {}]
        done = specdeploy("smoke", cwd=tmp_path)
        assert (done.returncode, "specdeploy serve" in done.stderr) == (4, True)
