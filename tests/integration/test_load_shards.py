"""A load test from several processes, against one server whose answers have known times."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from specdeploy.bench.records import records_from_jsonl
from specdeploy.pipeline.generators import run_generators
from specdeploy.system.files import free_port
from tests.deployments import finish, specdeploy, start
from tests.timed_server import Script, prompts, timed_server

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(180)

PATIENCE_S = 60.0
REQUESTS = 24
CONFIG = """\
name: tiny
target: {checkpoint: target}
draft: {checkpoint: draft}
load: {protocol: http, prompts: prompts.jsonl, compare: false, warmup_requests: 2, pairs: 2, request_timeout_s: 60}
"""
OPEN = {"shape": "poisson", "rates": "[20]"}
CLOSED = {"shape": "closed", "concurrency": "[5]"}


def deployment(folder: Path) -> dict[str, Script]:
    """Write a configuration, and prompts whose answers take 20 ms to 89 ms; return the scripts by name."""
    scripts = [
        Script(name=f"r{n}", gaps_ms=(10.0 + n, 5.0, 5.0), tokens=((1,), (2,), (1,)), histogram=(1, 2))
        for n in range(70)
    ]
    (folder / "specdeploy.yaml").write_text(CONFIG)
    lines = [json.dumps({"id": prompt.id, "text": prompt.text}) for prompt in prompts(scripts).prompts]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    return {script.name: script for script in scripts}


def arguments(url: str, settings: dict[str, str], *more: str) -> list[str]:
    """A load test against a server."""
    changed = {"requests": str(REQUESTS), **settings}
    words = [word for key, value in changed.items() for word in ("--set", f"load.{key}={value}")]
    return ["load", "--http", url, "--grpc", url, *words, *more]


def document_of(folder: Path, name: str = "load.json") -> dict[str, Any]:
    """Read a document of the report folder."""
    read: dict[str, Any] = json.loads((folder / "reports" / name).read_text())
    return read


def records_of(folder: Path, name: str = "load_records.jsonl") -> tuple[Any, ...]:
    """Read records of the report folder."""
    return records_from_jsonl((folder / "reports" / name).read_text())


@pytest.fixture(name="url", scope="module")
def _url() -> Iterator[str]:
    with timed_server() as server:
        yield server.url


@pytest.mark.parametrize("load", [OPEN, CLOSED], ids=["open", "closed"])
def test_two_processes_are_one_load_test(tmp_path: Path, load: dict[str, str]) -> None:
    """Together they send what one sends, from one moment on; their results become one, which is what happened."""
    scripts = deployment(tmp_path)
    whole = tmp_path / "whole"
    with timed_server() as server:
        done = specdeploy(*arguments(server.url, load, "--set", f"report.path={whole}"), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    start_s = time.time() + 8
    common = ("--start-at", str(start_s), "--block-every", "4")
    with timed_server() as server:
        shards = [start(tmp_path, arguments(server.url, load, "--shard", f"{n}/2", *common)) for n in (1, 2)]
        printed = [finish(shard) for shard in shards]
        truth = server.truth()
    assert [shard.returncode for shard in shards] == [0, 0], printed
    done = specdeploy("report", "merge", "reports", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document, records = document_of(tmp_path), records_of(tmp_path)
    alone = records_from_jsonl((whole / "load_records.jsonl").read_text())
    place = lambda record: (record.pair, record.index, record.prompt_id, record.concurrency, record.rate)  # noqa: E731

    assert sorted(map(place, records)) == sorted(map(place, alone))
    assert len(truth) == len(records) == 2 * REQUESTS + 2
    counts = [len(records_of(tmp_path, f"load-shard-{n}-of-2_records.jsonl")) for n in (1, 2)]
    assert sum(counts) == len(records)
    assert min(counts) >= 18
    # One machine has one clock, on which the server noted, too; the merge put all onto it.
    late_s = max(late for told in truth.values() for late in told.late_s)
    for record in records:
        told = truth[record.prompt_id]
        assert record.sent_s <= told.received_s + 0.001
        assert np.abs(np.array(record.chunk_s) - told.event_s).max() < 0.5 + late_s
        assert record.output_tokens == scripts[record.prompt_id].output_tokens
    assert len(document["blocks"]) == 2
    latencies = [1e3 * (record.last_s - record.sent_s) for record in records if record.counts]
    arm = document["arms"][0]["metrics"]
    assert arm["request_latency"]["count"] == 2 * REQUESTS
    assert arm["request_latency"]["p90"] == pytest.approx(float(np.percentile(latencies, 90)))
    # The wall clock says when it began.
    assert document["shards"]["start_skew_s"] < 0.5
    assert document["client"]["processes"] == 2
    offset_s = document_of(tmp_path, "load-shard-1-of-2.json")["shard"]["epoch_offset_s"]
    assert min(record.sent_s for record in records) + offset_s - start_s < 0.5
    first_s = min(record.intended_s for record in records if record.pair == 0) + offset_s - start_s
    assert 3.99 <= first_s < 5.5


class TestCommand:
    """What the commands say, and how they end."""

    def test_a_shard_is_missing(self, tmp_path: Path, url: str) -> None:
        """Exit code 3, unless it does not matter: then, too, since the run is partial, but there is one."""
        deployment(tmp_path)
        done = specdeploy(*arguments(url, CLOSED, "--shard", "2/2"), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "reports" / "load.json").exists()
        refused = specdeploy("report", "merge", cwd=tmp_path)
        merged = specdeploy("report", "merge", "--partial", cwd=tmp_path)

        assert (refused.returncode, "of 2 shards 1 is missing" in refused.stderr) == (3, True)
        assert merged.returncode == 3
        assert "partial: of 2 shards 1 is missing" in merged.stdout
        assert document_of(tmp_path)["partial"]

    def test_the_report_has_what_was_merged(self, tmp_path: Path, url: str) -> None:
        """`specdeploy report` still is a command of its own; a single shard is a whole; so are its exports."""
        deployment(tmp_path)
        done = specdeploy(*arguments(url, CLOSED, "--shard", "1/1"), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        merged = specdeploy("report", "merge", "--json", "--export", "csv", cwd=tmp_path)
        report = specdeploy("report", cwd=tmp_path)

        assert json.loads(merged.stdout) == document_of(tmp_path)
        assert "output_token_throughput" in (tmp_path / "reports" / "load.csv").read_text()
        assert (report.returncode, report.stdout.strip()) == (0, f"wrote {tmp_path / 'reports' / 'report.html'}")
        misplaced = specdeploy("report", "--set", "load.pairs=1", "merge", cwd=tmp_path)
        assert (misplaced.returncode, "come after it" in misplaced.stderr) == (2, True)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--shard", "3/2"), "there is no shard 3/2"),
            (("--shard", "x"), "cannot read the shard 'x'"),
            (("--shard", "1/2", "--start-at", "2026-01-31T09:30:00Z"), "has passed"),
            (("--shard", "1/2", "--start-at", "noon"), "cannot read --start-at 'noon'"),
            (("--shard", "1/2", "--block-every", "5"), "--start-at"),
            (("--shard", "1/2", "--export", "csv"), "specdeploy report merge"),
        ],
    )
    def test_what_cannot_be_done(self, tmp_path: Path, url: str, options: tuple[str, ...], said: str) -> None:
        """Exit code 2 before anything is sent."""
        deployment(tmp_path)
        done = specdeploy(*arguments(url, CLOSED, *options), cwd=tmp_path)

        assert done.returncode == 2
        assert said in done.stderr
        assert not list(tmp_path.glob("reports/*"))

    @pytest.mark.parametrize(("ahead_s", "number", "code"), [(600.0, signal.SIGINT, 130), (600.0, signal.SIGTERM, 143)])
    def test_a_signal_while_it_waits(self, tmp_path: Path, url: str, ahead_s: float, number: int, code: int) -> None:
        """It ends at once; nothing was measured, and nothing is written."""
        deployment(tmp_path)
        process = start(tmp_path, arguments(url, CLOSED, "--shard", "1/2", "--start-at", str(time.time() + ahead_s)))
        assert process.stderr is not None
        assert "shard 1/2" in process.stderr.readline()
        process.send_signal(number)
        _, err = finish(process)

        assert process.returncode == code
        assert "Traceback" not in err
        assert not list(tmp_path.glob("reports/*"))

    def test_ctrl_c_keeps_a_partial_shard(self, tmp_path: Path) -> None:
        """It is merged as what it is."""
        deployment(tmp_path)
        with timed_server() as server:
            process = start(tmp_path, arguments(server.url, {**CLOSED, "requests": "5000"}, "--shard", "1/1"))
            server.wait(30)
            process.send_signal(signal.SIGINT)
            _, err = finish(process)
        assert process.returncode == 130, err
        merged = specdeploy("report", "merge", cwd=tmp_path)

        assert merged.returncode == 3
        assert document_of(tmp_path)["stop_reason"] == "shard 1/1: interrupted from the keyboard"
        assert len(records_of(tmp_path)) >= 30


def generators(url: str) -> list[int]:
    """Return the processes that send to a server for another one."""
    lines = {path: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()}
    found = [path for path, line in lines.items() if b"--in-step" in line and url.encode() in line]
    return [int(path.parent.name) for path in found]


class TestProcesses:
    """``--processes``: the generators are processes of one command."""

    @pytest.mark.parametrize("load", [OPEN, CLOSED], ids=["open", "closed"])
    def test_two_processes_of_one_command(self, tmp_path: Path, load: dict[str, str]) -> None:
        """One result of the whole load, each request sent once; the blocks begin together, and nothing else is left."""
        scripts = deployment(tmp_path)
        with timed_server() as server:
            done = specdeploy(*arguments(server.url, load, "--processes", "2", "--export", "csv"), cwd=tmp_path)
            truth = server.truth()
        assert done.returncode == 0, done.stderr
        document, records = document_of(tmp_path), records_of(tmp_path)

        assert len(truth) == len(records) == 2 * REQUESTS + 2
        assert {record.prompt_id: record.output_tokens for record in records} == {
            name: scripts[name].output_tokens for name in truth
        }
        assert {(record.pair, record.index) for record in records if record.pair >= 0} == {
            (pair, index) for pair in (0, 1) for index in range(REQUESTS)
        }
        assert document["client"]["processes"] == 2
        assert [shard["requests"] for shard in document["shards"]["shards"]] in ([24, 24], [28, 20])
        assert document["shards"]["largest_skew_s"] < 0.5
        assert "load.shards-apart" not in {finding["code"] for finding in document["findings"]}
        assert {path.name for path in (tmp_path / "reports").iterdir()} == {
            "load.json",
            "load_records.jsonl",
            "load.csv",
        }
        assert "concurrency 5" in done.stdout or "20 requests/s" in done.stdout

    def ended(self, folder: Path, number: int) -> tuple[int, str, str]:
        """End the command by a signal; return its exit code and what it printed."""
        deployment(folder)
        with timed_server() as server:
            command = arguments(server.url, {**CLOSED, "requests": "5000"}, "--processes", "2")
            process = start(folder, command)
            server.wait(40)
            process.send_signal(number)
            out, err = finish(process)
        assert "Traceback" not in err
        return process.returncode, out, err

    def test_ctrl_c_keeps_what_all_of_them_measured(self, tmp_path: Path) -> None:
        """As it does with one process."""
        code, out, _ = self.ended(tmp_path, signal.SIGINT)
        document = document_of(tmp_path)

        assert code == 130
        assert "partial: interrupted from the keyboard" in out
        assert (document["partial"], document["stop_reason"]) == (True, "interrupted from the keyboard")
        assert document["shards"]["present"] == [1, 2]
        assert min(shard["requests"] for shard in document["shards"]["shards"]) > 5
        assert [arm["errors"] for arm in document["arms"]] == [{}]

    def test_sigterm_keeps_it_too(self, tmp_path: Path) -> None:
        """With the exit code of SIGTERM."""
        code, _, err = self.ended(tmp_path, signal.SIGTERM)

        assert (code, "terminated" in err) == (143, True)
        assert document_of(tmp_path)["stop_reason"] == "terminated"
        assert len(records_of(tmp_path)) >= 35

    def test_they_do_not_outlive_who_started_them(self, tmp_path: Path) -> None:
        """Killed in a way that nobody can act on, it leaves no process behind that goes on sending."""
        deployment(tmp_path)

        def left() -> list[int]:
            return generators(server.url)

        with timed_server() as server:
            process = start(tmp_path, arguments(server.url, {**CLOSED, "requests": "50000"}, "--processes", "2"))
            server.wait(40)
            assert len(left()) == 2
            process.kill()
            finish(process)
            deadline = time.monotonic() + PATIENCE_S
            while left() and time.monotonic() < deadline:
                time.sleep(0.2)
            assert left() == []

    def test_a_generator_that_is_killed(self, tmp_path: Path) -> None:
        """As by a machine that is out of memory: it is said which, the others' results are kept, and decide nothing."""
        deployment(tmp_path)
        with timed_server() as server:
            process = start(tmp_path, arguments(server.url, {**CLOSED, "requests": "50000"}, "--processes", "2"))
            server.wait(40)
            os.kill(min(generators(server.url)), signal.SIGKILL)
            _, err = finish(process)
        document = document_of(tmp_path)

        killed = re.search(r"^generator ([12]) of 2 was killed by signal 9$", err, re.MULTILINE)
        assert (process.returncode, killed is not None) == (3, True), err
        assert killed is not None
        assert (document["partial"], document["stop_reason"]) == (True, killed[0])
        assert document["shards"]["present"] == [3 - int(killed[1])]
        assert len(records_of(tmp_path)) > 5

    def test_the_second_signal_lets_them_cut_off_what_is_in_flight(self) -> None:
        """They still end by themselves, with what they have: each hears of it, and is not killed."""
        told = {"block": 1, "blocks": 1, "done": 0, "total": 0, "errors": 0, "in_flight": 1, "left_s": None, "pace": {}}
        line = json.dumps(told)
        script = (
            "import signal, sys\n"
            "signal.signal(signal.SIGINT, lambda *_: sys.exit(7))\n"
            f"print({line!r}, flush=True)\n"
            "sys.stdin.read()\n"
            f"print({line!r}, flush=True)\n"
            "signal.pause()\n"
        )

        def on_progress(_together: object) -> None:
            # Each stands for a signal: what they raise is handled alike.
            raise KeyboardInterrupt

        outcome = run_generators([[sys.executable, "-c", script]], on_progress)

        assert outcome.exit_codes == (7,)
        assert isinstance(outcome.stopped_by, KeyboardInterrupt)

    def test_a_server_that_dies(self, tmp_path: Path) -> None:
        """Exit code 3; what was measured is kept, with the reason."""
        deployment(tmp_path)
        with timed_server() as server:
            process = start(tmp_path, arguments(server.url, {**CLOSED, "requests": "50000"}, "--processes", "2"))
            server.wait(40)
        _, err = finish(process)
        document = document_of(tmp_path)

        assert process.returncode == 3, err
        assert "requests in a row did not reach the server" in document["stop_reason"]
        assert document["arms"][0]["errors"]["connection"] >= 5

    def test_a_server_that_is_not_there(self, tmp_path: Path) -> None:
        """Exit code 4, and the words of one process."""
        deployment(tmp_path)
        url = f"127.0.0.1:{free_port('127.0.0.1')}"
        done = specdeploy(*arguments(url, CLOSED, "--processes", "2"), cwd=tmp_path)

        assert done.returncode == 4
        assert done.stderr.count("error:") == 1
        assert url in done.stderr
        assert not list(tmp_path.glob("reports/*"))

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--processes", "2", "--shard", "1/2"), "--processes makes shards of its own"),
            (("--processes", "2", "--set", "load.prompts=absent.jsonl"), "load.prompts is 'absent.jsonl'"),
            (("--processes", "0"), "0 is not in the range"),
        ],
    )
    def test_what_cannot_be_done(self, tmp_path: Path, url: str, options: tuple[str, ...], said: str) -> None:
        """Exit code 2, said once, before any process is started."""
        deployment(tmp_path)
        done = specdeploy(*arguments(url, CLOSED, *options), cwd=tmp_path)

        assert (done.returncode, done.stderr.count(said)) == (2, 1), done.stderr
