"""``specdeploy load`` as its users start it, and its page: what that says of keys, metrics, fields and errors is so."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import numpy as np
import pytest
import yaml

from specdeploy.bench.arrivals import PROCESSES
from specdeploy.bench.intervals import percentile_interval
from specdeploy.bench.metrics import METRICS
from specdeploy.bench.observation import Observation
from specdeploy.bench.prompts import BUNDLED, Synthesiser, Trace, load_bundled, parse_workload
from specdeploy.bench.records import INTERRUPTED, RequestRecord, records_from_jsonl
from specdeploy.bench.stats import BOUNDED
from specdeploy.cli import cli
from specdeploy.config.load import load_config
from specdeploy.config.schema import LoadConfig
from specdeploy.pipeline import loading
from specdeploy.triton.client.failures import Label
from specdeploy.triton.protocol import Chunk
from tests.deployments import served, specdeploy
from tests.tiny import write_tiny_checkpoint
from tests.unit.bench.bench_tokenizers import WORDS
from tests.unit.openai.fake_openai import MODEL, FakeOpenAI
from tests.unit.triton.fake_triton import FakeReply, json_reply

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "load.md").read_text()
CONFIG = """\
name: tiny
target: {checkpoint: target}
draft: {checkpoint: draft}
"""


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """A deployment that was never built: only its configuration."""
    (tmp_path / "specdeploy.yaml").write_text(CONFIG)
    return tmp_path


# The page


def section(title: str) -> str:
    """Return the part of the page under a heading, up to the next one of any level."""
    (_, rest) = PAGE.split(f"\n{title}\n")
    return re.split(r"\n##+ ", rest)[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables of a text, without their heads."""
    lines = [line.strip("|") for line in text.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [
        row for row, after in zip(table, [*table[1:], None], strict=True) if not is_rule(row) and not is_rule(after)
    ]


def is_rule(row: list[str] | None) -> bool:
    """Whether a row is the line below a head."""
    return row is not None and set("".join(row)) <= set("-|")


def blocks(language: str) -> list[str]:
    """Return the examples of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def names(cell: str) -> list[str]:
    """Return what stands in a cell as code."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_has_every_key_with_its_default() -> None:
    """In the order of the schema."""
    shown = {names(row[0])[0]: yaml.safe_load(names(row[1])[0]) for row in rows(section("## Keys"))}
    defaults = {field.name: field.default for field in dataclasses.fields(LoadConfig)}

    assert list(shown) == list(defaults)
    assert shown == {key: list(value) if isinstance(value, tuple) else value for key, value in defaults.items()}


def test_the_page_has_every_metric_as_it_is_defined() -> None:
    """Key, unit, kind, formula and when it is absent: the same words as in the code."""
    shown = [(names(key)[0], *rest) for key, *rest in rows(section("## Metrics"))]

    assert shown == [
        (metric.key, metric.unit, metric.kind, metric.formula, metric.undefined) for metric in METRICS.values()
    ]
    for name, *_ in rows(section("### What others call it")):
        assert names(name)[0] in METRICS


def test_the_page_has_every_field_of_a_record() -> None:
    """In the order in which they are written."""
    (_, table) = section("## What is written").split("`load_records.jsonl` has a line")

    assert [names(row[0])[0] for row in rows(table)] == [field.name for field in dataclasses.fields(RequestRecord)]


def test_the_page_has_every_error_label() -> None:
    """Those of a request, of a stream that ends without an error, and of what we cut off ourselves, each once."""
    empty, early = Observation(), Observation()
    early.add(Chunk(text="a", ids=(1,)), 0.0)
    labels = {*get_args(Label), empty.fault()[0], early.fault()[0], INTERRUPTED}

    assert sorted(names(row[0])[0] for row in rows(section("## Errors"))) == sorted(map(str, labels))


def test_the_page_has_every_finding() -> None:
    """A code that is somewhere in the code of a load test is on the page, with its severity."""
    rooms = [ROOT / "specdeploy" / room for room in ("bench", "pipeline")]
    sources = [file.read_text() for room in rooms for file in room.rglob("*.py")]
    found = {
        (code, severity)
        for source in sources
        for severity, code in re.findall(r'severity="(\w+)",\s+code="(load\.[\w-]+)"', source)
    }

    assert len(found) >= 9
    assert {(names(row[0])[0], row[1]) for row in rows(section("## Findings"))} == found


def test_the_page_has_every_bundled_set() -> None:
    """And how many prompts it has; shapes are all there, too."""
    sizes = {names(row[0])[0]: int(row[2]) for row in rows(section("## Workloads"))}

    assert sizes == {name: len(load_bundled(name)) for name in BUNDLED}
    assert [names(line)[0] for line in section("## Shapes").splitlines() if line.startswith("* `")] == [
        *PROCESSES,
        "trace",
    ]


def test_the_workloads_of_the_page_can_be_read() -> None:
    """Each example is what the page calls it."""
    synthesiser = Synthesiser(WORDS)
    read = [
        parse_workload(text, source="page", name="page", synthesiser=synthesiser)
        for text in (*blocks("jsonl"), *blocks("json"))
    ]

    assert [isinstance(workload, Trace) for workload in read] == [False, True, True, False]
    assert [len(workload) for workload in read] == [2, 2, 2, 1]


@pytest.mark.cpu
def test_the_configurations_of_the_page_can_be_used(folder: Path) -> None:
    """A run could be planned by each of them, where the target's tokenizer is."""
    write_tiny_checkpoint(folder / "target")
    examples = [text for text in blocks("yaml") if text.startswith("load:")]

    assert len(examples) >= 3
    for text in examples:
        (folder / "specdeploy.yaml").write_text(CONFIG + text)
        loading.preflight(load_config(folder / "specdeploy.yaml", {}, {}))


def test_every_command_of_the_page_exists() -> None:
    """Behind a prompt or in an indented line: it parses."""
    lines = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    # What a shell makes of its own is not ours to look at.
    lines = [line.partition(" && ")[2] or line for line in lines if not line.startswith("export ")]
    lines += re.findall(r"^    (specdeploy .*)$", PAGE, flags=re.MULTILINE)

    assert len(lines) >= 8
    for line in lines:
        program, name, *arguments = shlex.split(line, comments=True)
        assert program == "specdeploy"
        context = cli.make_context("specdeploy", [name, *arguments])
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group) and arguments and arguments[0] in command.commands:
            command, arguments = command.commands[arguments[0]], arguments[1:]
        with command.make_context(name, arguments, parent=context) as parsed:
            assert parsed.params


def test_how_many_values_an_interval_needs() -> None:
    """Both bounds exist from so many values on as the page says."""
    told = re.search(r"of p50 need (\d+) values, of p90 (\d+), of p95 (\d+), of p99 (\d+)", " ".join(PAGE.split()))
    assert told is not None

    for percentile, needed in zip(BOUNDED, map(int, told.groups()), strict=True):
        assert None not in percentile_interval(np.arange(needed, dtype=float), percentile)
        assert None in percentile_interval(np.arange(needed - 1, dtype=float), percentile)


# Without a server


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "load.rates=[5]"), "load.rates is given, and load.shape is closed"),
        (
            ("--set", "load.shape=gamma", "--set", "load.rates=[5]", "--set", "load.burstiness=0"),
            "load.burstiness is 0",
        ),
        (("--set", "load.slo=[ttft]"), "cannot read the objective 'ttft'"),
        (("--set", "load.prompts=synthetic"), "load.prompts is synthetic, and load.input_tokens_mean is 0"),
        (("--set", "load.recorded_length=true"), "load.recorded_length is true, and load.prompts is 'code'"),
        (("--set", "load.prefix_count=2"), "load.prefix_count is 2, and load.prefix_tokens is 0"),
        (("--set", "load.prefix_tokens=8"), "load.prefix_tokens needs the target's tokenizer"),
        (("--set", "report.path=specdeploy.yaml"), "report.path: "),
        (("--control", "http://h/v1"), "are for --openai"),
    ],
)
def test_what_cannot_be_run_is_refused(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    """Before anything is asked (2), and the results of an earlier run stay."""
    (folder / "reports").mkdir()
    (folder / "reports" / "load.json").write_text("{}")
    with answering(FakeOpenAI()) as url:
        server = () if "--control" in arguments else ("--openai", url)
        done = specdeploy("load", *server, *arguments, cwd=folder)

    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert (folder / "reports" / "load.json").read_text() == "{}"


@pytest.mark.parametrize("name", ["load.json", "load_records.jsonl"])
def test_results_that_could_not_be_kept_are_not_measured(folder: Path, name: str) -> None:
    """Exit code 2 and the name of the file, before any server is asked."""
    (folder / "reports" / name).mkdir(parents=True)
    done = specdeploy("load", "--openai", "http://127.0.0.1:9/v1", cwd=folder)

    assert done.returncode == 2
    assert f"{name} cannot be written: it is no file" in done.stderr


@pytest.mark.parametrize(
    ("form", "place", "said"),
    [
        ("csv", "load.csv/", "load.csv cannot be written: it is no file"),
        ("parquet", "load_records.parquet/", "load_records.parquet cannot be written: it is no file"),
        ("aiperf", "aiperf", "aiperf is no folder"),
        ("aiperf", "", "two of load.rates would be 50/s"),
    ],
)
def test_exports_that_could_not_be_written_are_not_measured(folder: Path, form: str, place: str, said: str) -> None:
    """Exit code 2, before any server is asked."""
    path = folder / "reports" / place
    path.mkdir(parents=True) if place.endswith("/") else path.parent.mkdir(exist_ok=True)
    if place == "aiperf":
        path.touch()
    rates = ("--set", "load.shape=constant", "--set", "load.rates=[50, 50.0000001]")
    done = specdeploy("load", "--openai", "http://127.0.0.1:9/v1", *rates, "--export", form, cwd=folder)

    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


# Against an OpenAI-compatible server


class answering:  # noqa: N801 - used as a context manager
    """Serve a fake over a socket; its URL, while it lasts."""

    def __init__(self, fake: FakeOpenAI) -> None:
        self.keys: set[str | None] = set()
        keys = self.keys

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                keys.add(self.headers["Authorization"])
                reply = fake.handle(self.command, self.path, body)
                data = b"".join(iter(reply.read_some, b""))
                self.send_response(reply.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


SMALL = ("--set", "load.pairs=2", "--set", "load.requests=3", "--set", "load.max_tokens=8")


def test_two_servers_are_compared(folder: Path) -> None:
    """In pairs; the key goes to both, and is in nothing that is kept or shown."""
    fast, slow = answering(FakeOpenAI()), answering(FakeOpenAI(counts=False))
    with fast as url, slow as control:
        done = specdeploy(
            "load",
            *("--openai", url, "--control", control, "--api-model", MODEL, "--api-key-env", "THE_KEY", *SMALL),
            cwd=folder,
            env={"THE_KEY": "s3cret-key"},
        )
    document = json.loads((folder / "reports" / "load.json").read_text())

    assert done.returncode == 0, done.stderr
    assert fast.keys == slow.keys == {"Bearer s3cret-key"}
    kept = "".join(file.read_text() for file in (folder / "reports").iterdir())
    assert "s3cret" not in done.stdout + done.stderr + kept
    assert document["speedup"]["1"]["pairs"] == 2
    assert [arm["arm"] for arm in document["arms"]] == ["control", "speculation"]
    assert "spec_decode_draft_acceptance_rate" in document["arms"][1]["metrics"]


class Named(FakeOpenAI):
    """A fake whose model may have any name."""

    def handle(self, method: str, path: str, body: Any) -> FakeReply:
        """Answer whatever model is asked for."""
        return super().handle(method, path, body if body is None else {**body, "model": MODEL})


def test_a_server_that_repeats_the_key_everywhere(folder: Path) -> None:
    """As the name of the model and as the reason of an end, it is in nothing that is kept or shown."""

    class Telling(Named):
        def _answers(self, body: Any, *, chat: bool) -> list[dict[str, Any]]:
            events = super()._answers(body, chat=chat)
            events[-2]["choices"][0]["finish_reason"] = "s3cret-key"
            return events

    with answering(Telling(about={"id": "toy of s3cret-key"})) as url:
        named = ("--openai", url, "--api-model", "toy", "--api-key-env", "THE_KEY", *SMALL)
        only = ("--openai", url, "--api-key-env", "THE_KEY", *SMALL)
        done = [specdeploy("load", *words, cwd=folder, env={"THE_KEY": "s3cret-key"}) for words in (named, only)]
    kept = "".join(file.read_text() for file in (folder / "reports").iterdir())

    assert [one.returncode for one in done] == [0, 0], done[0].stderr + done[1].stderr
    assert '"finish_reason":"***"' in kept
    assert '"name": "toy of ***"' in kept
    assert "s3cret" not in "".join(one.stdout + one.stderr for one in done) + kept


def test_a_server_moves_no_cursor(folder: Path) -> None:
    """Its escape sequences and line ends are shown as text, in whatever it says them."""
    evil = "\x1b[31mred\x07\nerror: faked"
    with answering(Named(about={"id": f"{evil} one"})) as url:
        one = specdeploy("load", "--openai", url, *SMALL, cwd=folder)

    class Several(FakeOpenAI):
        def handle(self, method: str, path: str, body: Any) -> FakeReply:
            if path.endswith("/models"):
                return json_reply({"data": [{"id": evil}, {"id": "other"}]})
            return json_reply({"error": {"message": evil}}, 500)

    with answering(Several()) as url:
        several = specdeploy("load", "--openai", url, *SMALL, cwd=folder)
        failing = specdeploy("load", "--openai", url, "--api-model", MODEL, *SMALL, cwd=folder)

    assert [run.returncode for run in (one, several, failing)] == [0, 2, 4], one.stderr + failing.stderr
    said = "".join(run.stdout + run.stderr for run in (one, several, failing))
    assert not set(said) & {"\x1b", "\x07"}
    assert "red" in several.stderr
    assert "error: faked" not in said.splitlines()


def test_a_server_alone_is_measured_alone(folder: Path) -> None:
    """Without ``--control`` nothing is compared, whatever ``load.compare`` is."""
    with answering(FakeOpenAI()) as url:
        done = specdeploy("load", "--openai", url, "--json", *SMALL, cwd=folder)
    document = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert [arm["arm"] for arm in document["arms"]] == ["speculation"]
    assert document == json.loads((folder / "reports" / "load.json").read_text())


def test_a_run_in_which_nothing_succeeded_decides_nothing(folder: Path) -> None:
    """Every request is refused: the outcome is kept, and the exit code is 3."""
    (folder / "long.jsonl").write_text(json.dumps({"text": "word " * 100}))
    with answering(FakeOpenAI()) as url:
        done = specdeploy("load", "--openai", url, "--set", "load.prompts=long.jsonl", *SMALL, cwd=folder)
    (arm,) = json.loads((folder / "reports" / "load.json").read_text())["arms"]

    assert done.returncode == 3, done.stdout
    assert list(arm["errors"]) == ["invalid_argument"]


# Against the real server


@pytest.fixture(name="served", scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A built deployment of tiny checkpoints with its server running."""
    with served(tmp_path_factory.mktemp("served")) as folder:
        yield folder


@pytest.mark.cpu
@pytest.mark.triton
class TestAgainstTriton:
    """With the real tritonserver."""

    def test_the_commands_of_the_page_work_in_their_order(self, served: Path) -> None:
        """Those of its first section: each ends with 0, and what they write has every metric and key told of."""
        (block,) = re.findall(r"```console\n(.*?)```", section("## In short"), flags=re.DOTALL)
        (keys, _) = section("## What is written").split("Entries of a load")
        told = [name for row in rows(keys) for name in names(row[0])]
        seen: set[str] = set()

        for line in block.splitlines():
            done = specdeploy(*shlex.split(line.removeprefix("$ "))[1:], cwd=served)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            document = json.loads((served / "reports" / "load.json").read_text())
            assert sorted(document) == sorted(told)
            seen |= {key for arm in document["arms"] for key in arm["metrics"]}
            seen |= {"speedup"} if document["speedup"] else set()
            records = records_from_jsonl((served / "reports" / "load_records.jsonl").read_text())
            assert all(record.ok for record in records), line

        assert seen == set(METRICS)
        assert (served / "reports" / "load.csv").is_file()

    def test_a_search_finds_the_limit_of_each_arm(self, served: Path) -> None:
        """A promise that is always kept ends where more load means nothing; one that never is, at the least load."""
        few = ("--set", "load.requests=2", "--set", "load.pairs=1", "--set", "load.max_tokens=4")
        kept = specdeploy("load", "--search", *few, "--set", "load.slo=request_latency <= 90s", cwd=served)
        document = json.loads((served / "reports" / "load.json").read_text())
        never = specdeploy("load", "--search", *few, "--set", "load.slo=request_latency <= 0.001ms", cwd=served)

        assert (kept.returncode, never.returncode) == (0, 0), kept.stderr + never.stderr
        for found in document["search"]["arms"].values():
            assert [trial["load"] for trial in found["trials"]] == [1, 2]
            assert (found["highest_kept"], found["lowest_broken"]) == (2, None)
        assert sorted({(arm["arm"], arm["concurrency"]) for arm in document["arms"]}) == [
            *(("control", load) for load in (1, 2)),
            *(("speculation", load) for load in (1, 2)),
        ]
        assert "search: speculation keeps request_latency <= 90000ms for 99% of requests at 2" in kept.stdout
        assert "at no load that was tried, down to 1 requests in flight" in never.stdout
        assert "speculation at 1: 0 of 2 requests good: too much" in never.stderr

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--search",), "there are none"),
            (("--search", "--processes", "2"), "--search changes the load"),
            (("--search", "--set", "load.slo=ttft:1s", "--set", "load.shape=poisson"), "load.rates"),
        ],
    )
    def test_a_search_that_cannot_be(self, served: Path, options: tuple[str, ...], said: str) -> None:
        """Exit code 2, and the reason."""
        done = specdeploy("load", *options, cwd=served)

        assert (done.returncode, said in done.stderr) == (2, True), done.stderr

    def test_halves_by_time_are_compared(self, served: Path) -> None:
        """The faster arm sends more requests in the same time, and there is a speed-up all the same."""
        settings = ("load.duration_s=0.6", "load.pairs=2", "load.distinct=true")
        done = specdeploy("load", *(word for key in settings for word in ("--set", key)), cwd=served)
        document = json.loads((served / "reports" / "load.json").read_text())

        assert done.returncode == 0, done.stderr
        assert document["speedup"]["1"]["pairs"] + document["speedup"]["1"]["excluded"] == 2

    def test_a_trace_of_lengths_is_sent_as_long_as_it_says(self, served: Path) -> None:
        """Prompts are counted by the target's tokenizer, as the server counts them; answers are exactly so long."""
        lines = [{"timestamp": 50 * n, "input_length": 30 + 10 * n, "output_length": 3 + n} for n in range(6)]
        (served / "lengths.jsonl").write_text("\n".join(map(json.dumps, lines)))
        settings = ("load.shape=trace", "load.prompts=lengths.jsonl", "load.pairs=1", "load.warmup_requests=0")
        done = specdeploy("load", *(word for key in settings for word in ("--set", key)), cwd=served)
        records = records_from_jsonl((served / "reports" / "load_records.jsonl").read_text())

        assert done.returncode == 0, done.stderr
        assert len(records) == 12
        for record in records:
            assert record.input_tokens == lines[record.index]["input_length"]
            assert record.output_tokens == lines[record.index]["output_length"]

    def test_synthetic_prompts_behind_prefixes_are_as_long_as_drawn(self, served: Path) -> None:
        """By the server's count, in both arms alike; the plan, the report's text and a finding say what is shared."""
        asked = {
            "input_tokens_mean": 60,
            "input_tokens_stddev": 8.0,
            "output_tokens_mean": 6,
            "output_tokens_stddev": 2.0,
        }
        shared = {"prefix_tokens": 24, "prefix_count": 2, "prefix_share": 0.5}
        settings = {"prompts": "synthetic", "pairs": 2, "requests": 6, "warmup_requests": 0, **asked, **shared}
        done = specdeploy(
            "load", *(word for key in settings for word in ("--set", f"load.{key}={settings[key]}")), cwd=served
        )
        document = json.loads((served / "reports" / "load.json").read_text())
        records = records_from_jsonl((served / "reports" / "load_records.jsonl").read_text())
        lengths = {
            arm: {(r.pair, r.index): (r.prompt_id, r.input_tokens, r.output_tokens) for r in records if r.arm == arm}
            for arm in ("control", "speculation")
        }

        assert done.returncode == 0, done.stderr
        assert all(record.ok for record in records)
        assert lengths["control"] == lengths["speculation"]
        assert len({inputs for _, inputs, _ in lengths["control"].values()}) > 3
        assert len({outputs for *_, outputs in lengths["control"].values()}) > 1
        assert (asked | shared).items() <= document["plan"].items()
        assert "load.prefix-shared" in {finding["code"] for finding in document["findings"]}
        assert "info: 6 of 12 requests of an arm begin with one of 2 common prefixes of 24 tokens" in done.stdout

    def test_answers_are_as_long_as_recorded(self, served: Path) -> None:
        """Those of a ShareGPT file, where it is asked for; several generators send what one would."""
        answers = ["a", "a b c d", "a b c d e f g h"]
        turns = [({"from": "human", "value": f"Say {text}"}, {"from": "gpt", "value": text}) for text in answers]
        (served / "talks.json").write_text(json.dumps([{"conversations": pair} for pair in turns]))
        wanted = ("prompts=talks.json", "recorded_length=true", "fixed_length=true", "pairs=1", "requests=3")
        words = [word for key in wanted for word in ("--set", f"load.{key}")]
        done = specdeploy("load", *words, "--processes", "2", cwd=served)
        records = records_from_jsonl((served / "reports" / "load_records.jsonl").read_text())

        assert done.returncode == 0, done.stderr
        lengths = {record.prompt_id: record.output_tokens for record in records}
        assert lengths["entry-1"] == 1
        assert lengths["entry-1"] < lengths["entry-2"] < lengths["entry-3"]
        assert all(record.output_tokens == lengths[record.prompt_id] for record in records)

    def test_the_gate_measures_on_until_it_can_decide(self, served: Path) -> None:
        """From nothing: a load test, too few requests for a p75, more of them, and a verdict of both as one run."""
        for path in (served / "reports").glob("load*"):
            path.unlink()
        rule = "request_latency.p75 <= 60s"
        done = specdeploy("gate", "--repeat-until", "2min", "--rule", rule, "--json", cwd=served)
        assert done.returncode == 0, done.stdout + done.stderr
        document = json.loads((served / "reports" / "load.json").read_text())
        records = records_from_jsonl((served / "reports" / "load_records.jsonl").read_text())
        again = specdeploy("gate", "--repeat-until", "2min", "--rule", rule, "--json", cwd=served)

        verdict = json.loads(done.stdout)
        assert [(look["pairs"], look["status"]) for look in verdict["repeats"]["looks"]] == [
            (2, "undecided"),
            (5, "pass"),
        ]
        assert "look 1: undecided after 2 pair(s)" in done.stderr
        assert [(part["pairs"], part["seed"]) for part in document["repeats"]] == [(3, 1)]
        assert document["speedup"]["1"]["control_first"] == [True, False, True, False, True]
        assert sum(record.counts for record in records) == 2 * 5 * 5
        assert document["plan"]["pairs"] == 2
        # Nothing is open any more, so nothing is measured.
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["rules"] == verdict["rules"]
        assert json.loads((served / "reports" / "load.json").read_text()) == document
