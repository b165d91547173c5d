"""The same load as specdeploy, AIPerf and guidellm see it: one table of all metrics for each server, as Markdown.

Run as ``python -m tests.bench.cross_check [ROUNDS]``, or as ``make bench ARGS=cross-check``. Two of the servers answer
when their script says (``tests/timed_server.py``), so that the truth stands beside what the tools say; one is
llama.cpp's. The tools take turns, and a number is the median of the rounds. ``docs/cross-check.md`` explains the
differences.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests import peers
from tests.llamacpp_server import MODEL as LLAMACPP_MODEL
from tests.llamacpp_server import llamacpp_server
from tests.timed_server import INPUT_TOKENS, Script, Truth, timed_server
from tests.timed_server import MODEL as TIMED_MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Numbers = dict[str, float]

ROOT: Final = Path(__file__).parents[2]
TOKENIZER: Final = ROOT / "checkpoints" / "smollm2-135m-instruct"
ROUNDS: Final = 3
_RUN_S: Final = 300

#: Rows of the tables: what they show, and how it is rounded.
ROWS: Final = {
    "TTFT p50, ms": 1,
    "TTFT p90, ms": 1,
    "ITL p50, ms": 2,
    "request latency p50, ms": 1,
    "request latency p90, ms": 1,
    "input tokens, mean": 1,
    "output tokens, mean": 1,
    "output tokens/s": 1,
    "requests/s": 2,
    "requests/s, by the server": 2,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """What every tool sends.

    Args:
        url: Where the server is, without ``/v1``.

        model: What it is asked for.

        chat: Whether by chat completions; else by completions.

        texts: What is sent, each once.

        tokens: Length of every answer.

        concurrency: Requests in flight.
    """

    url: str
    model: str
    chat: bool
    texts: list[str]
    tokens: int
    concurrency: int

    @property
    def body(self) -> dict[str, Any]:
        """Fields of every request, besides those that a tool sends by itself."""
        return {"max_tokens": self.tokens, "min_tokens": self.tokens, "ignore_eos": True, "temperature": 0}


class Tool(NamedTuple):
    """A load generator: its command line, and how its results are read."""

    name: str
    command: Callable[[Load, Path], list[str]]
    read: Callable[[Path], Numbers]


def _specdeploy(load: Load, place: Path) -> list[str]:
    (place / "specdeploy.yaml").write_text("name: other\ntarget: {checkpoint: target}\ndraft: {checkpoint: draft}\n")
    _write_lines(place / "prompts.jsonl", [{"message" if load.chat else "text": text} for text in load.texts])
    settings = {
        "prompts": "prompts.jsonl",
        "concurrency": f"[{load.concurrency}]",
        "requests": len(load.texts),
        "pairs": 1,
        "warmup_requests": 0,
        "max_tokens": load.tokens,
        "fixed_length": "true",
    }
    said = [word for key, value in settings.items() for word in ("--set", f"load.{key}={value}")]
    return [sys.executable, "-m", "specdeploy", "load", "--openai", f"{load.url}/v1", *said]


def _read_specdeploy(place: Path) -> Numbers:
    (arm,) = json.loads((place / "reports" / "load.json").read_text())["arms"]
    return _keyed(arm["metrics"])


def _aiperf(load: Load, place: Path) -> list[str]:
    _write_lines(place / "prompts.jsonl", [{"text": text} for text in load.texts])
    options = {
        "model": load.model,
        "url": load.url,
        "endpoint-type": "chat" if load.chat else "completions",
        "tokenizer": TOKENIZER,
        "input-file": place / "prompts.jsonl",
        "custom-dataset-type": "single_turn",
        "dataset-sampling-strategy": "sequential",
        "extra-inputs": json.dumps(load.body),
        "concurrency": load.concurrency,
        "request-count": len(load.texts),
        "ui": "none",
        "artifact-dir": place,
    }
    said = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    switches = ["--streaming", "--no-server-metrics", "--no-gpu-telemetry"]
    return [str(peers.program("aiperf")), "profile", *said, *switches]


def _aiperf_by_server(load: Load, place: Path) -> list[str]:
    return [*_aiperf(load, place), "--use-server-token-count"]


def _read_aiperf(place: Path) -> Numbers:
    return _keyed(json.loads((place / "profile_export_aiperf.json").read_text()))


def _keyed(metrics: dict[str, Any]) -> Numbers:
    """Read AIPerf's keys, which are ours, too."""
    wanted = {
        "TTFT p50, ms": ("time_to_first_token", "p50"),
        "TTFT p90, ms": ("time_to_first_token", "p90"),
        "ITL p50, ms": ("inter_token_latency", "p50"),
        "request latency p50, ms": ("request_latency", "p50"),
        "request latency p90, ms": ("request_latency", "p90"),
        "input tokens, mean": ("input_sequence_length", "avg"),
        "output tokens, mean": ("output_sequence_length", "avg"),
        "output tokens/s": ("output_token_throughput", "avg"),
        "requests/s": ("request_throughput", "avg"),
    }
    return {row: metrics[key][stat] for row, (key, stat) in wanted.items() if key in metrics}


def _guidellm(load: Load, place: Path) -> list[str]:
    # A length in the data makes it send max_tokens and ignore_eos; min_tokens it does not know.
    lines = [{"prompt": text, "output_tokens_count": load.tokens} for text in load.texts]
    _write_lines(place / "prompts.jsonl", lines)
    backend = {
        "kind": "openai_http",
        "target": load.url,
        "model": load.model,
        "request_format": "/v1/chat/completions" if load.chat else "/v1/completions",
        "extras": {"body": load.body},
        # It would ask for /health, which llama.cpp's server has not.
        "validate_backend": False,
    }
    options = {
        "backend": json.dumps(backend),
        "profile": f"kind=concurrent,streams={load.concurrency}",
        "constraint": f"kind=max_requests,count={len(load.texts)}",
        "tokenizer": f"kind=hf_auto,model={TOKENIZER}",
        "data": f"kind=json_file,path={place / 'prompts.jsonl'}",
        "output": f"kind=json,path={place / 'result.json'}",
    }
    said = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [str(peers.program("guidellm")), "run", *said, "--disable-console"]


def _read_guidellm(place: Path) -> Numbers:
    (benchmark,) = json.loads((place / "result.json").read_text())["benchmarks"]
    metrics = {name: told["successful"] for name, told in benchmark["metrics"].items() if _is_split(told)}

    def percentiles(name: str, scale: float = 1.0) -> tuple[float, float]:
        return tuple(scale * metrics[name]["percentiles"][key] for key in ("p50", "p90"))  # type: ignore[return-value]

    ttft, latency = percentiles("time_to_first_token_ms"), percentiles("request_latency", 1e3)
    numbers = {
        "TTFT p50, ms": ttft[0],
        "TTFT p90, ms": ttft[1],
        "ITL p50, ms": percentiles("inter_token_latency_ms")[0],
        "request latency p50, ms": latency[0],
        "request latency p90, ms": latency[1],
        "output tokens, mean": metrics["output_token_count"]["mean"],
        "output tokens/s": metrics["output_tokens_per_second"]["mean"],
        "requests/s": metrics["requests_per_second"]["mean"],
    }
    inputs = metrics["prompt_token_count"]
    return numbers | ({"input tokens, mean": inputs["mean"]} if inputs["count"] and inputs["mean"] else {})


def _is_split(told: object) -> bool:
    return isinstance(told, dict) and isinstance(told.get("successful"), dict)


SPECDEPLOY: Final = Tool("specdeploy", _specdeploy, _read_specdeploy)
AIPERF: Final = Tool("AIPerf", _aiperf, _read_aiperf)
AIPERF_BY_SERVER: Final = Tool("AIPerf, server's count", _aiperf_by_server, _read_aiperf)
GUIDELLM: Final = Tool("guidellm", _guidellm, _read_guidellm)


def _write_lines(path: Path, values: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def _measured(tool: Tool, load: Load) -> Numbers:
    """Run a tool in a folder of its own, and read its results."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        command = tool.command(load, place)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": folder}
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=_RUN_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{tool.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return tool.read(place)


# Servers whose truth is known

KNOWN_REQUESTS: Final = 32
KNOWN_CONCURRENCY: Final = 4
#: A token at a time, as without drafts; the reason comes with the last one.
ONE_BY_ONE: Final = {"gaps_ms": (200.0, *[20.0] * 31), "tokens": ((1,),) * 32}
#: Four tokens at a time, as with drafts; an event with the reason alone comes 50 ms after the last of them.
BY_FOUR: Final = {"gaps_ms": (200.0, *[60.0] * 7), "tokens": ((4,),) * 8, "tail_ms": 50.0}


def _known(shape: dict[str, Any], tools: list[Tool]) -> Iterator[tuple[str, Numbers]]:
    """Measure a server that answers by a script, with each tool; and what the server did meanwhile."""
    scripts = [Script(name=f"r{number}", **shape) for number in range(KNOWN_REQUESTS)]
    for tool in tools:
        with timed_server() as server:
            load = Load(
                url=f"http://{server.url}",
                model=TIMED_MODEL,
                chat=True,
                texts=[script.prompt().text for script in scripts],
                tokens=scripts[0].output_tokens,
                concurrency=KNOWN_CONCURRENCY,
            )
            measured, true = _measured(tool, load), _true(list(server.truth().values()))
            # How soon a tool sends the next request is its own doing, so that the true rate differs by the tool.
            yield tool.name, measured | {"requests/s, by the server": true["requests/s"]}
            yield "truth", {row: value for row, value in true.items() if not row.endswith("/s")}


def _true(requests: list[Truth]) -> Numbers:
    """Return the metrics from the server's own notes."""
    first = [1e3 * (request.event_s[0] - request.received_s) for request in requests]
    whole = [1e3 * (request.event_s[-1] - request.received_s) for request in requests]
    tokens = [sum(request.tokens) for request in requests]
    waited = [number - request.tokens[0] for number, request in zip(tokens, requests, strict=True)]
    took_s = max(request.event_s[-1] for request in requests) - min(request.received_s for request in requests)
    return {
        "TTFT p50, ms": median(first),
        "TTFT p90, ms": quantiles(first, n=10, method="inclusive")[8],
        "ITL p50, ms": median((last - one) / n for last, one, n in zip(whole, first, waited, strict=True)),
        "request latency p50, ms": median(whole),
        "request latency p90, ms": quantiles(whole, n=10, method="inclusive")[8],
        "input tokens, mean": INPUT_TOKENS,
        "output tokens, mean": fmean(tokens),
        "output tokens/s": sum(tokens) / took_s,
        "requests/s": len(requests) / took_s,
    }


# llama.cpp

LLAMACPP_TOKENS: Final = 16
SUBJECTS: Final = ("the sea", "a clock", "old maps", "bread", "the moon", "trains", "glass", "bees", "snow", "a bridge")


def _llamacpp(url: str, concurrency: int) -> Iterator[tuple[str, Numbers]]:
    """Measure llama.cpp's server, which answers one request at a time and counts no tokens of a stream."""
    texts = [f"{subject.capitalize()}: how they came about, and what people have made of it is" for subject in SUBJECTS]
    load = Load(
        url=url.removesuffix("/v1"),
        model=LLAMACPP_MODEL,
        chat=False,
        texts=texts,
        tokens=LLAMACPP_TOKENS,
        concurrency=concurrency,
    )
    for tool in (SPECDEPLOY, AIPERF, GUIDELLM):
        yield tool.name, _measured(tool, load)
    whole = [_usage(load, text) for text in texts]
    yield (
        "server, not streamed",
        {
            "input tokens, mean": fmean(usage["prompt_tokens"] for usage in whole),
            "output tokens, mean": fmean(usage["completion_tokens"] for usage in whole),
        },
    )


def _usage(load: Load, text: str) -> dict[str, int]:
    """Ask for the whole answer, which the server counts."""
    body = json.dumps({"model": load.model, "prompt": text, **load.body}).encode()
    request = urllib.request.Request(f"{load.url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_RUN_S) as answer:
        usage: dict[str, int] = json.load(answer)["usage"]
    return usage


# The tables


def table(title: str, taken: list[tuple[str, Numbers]]) -> str:
    """Return the medians of what was measured, a column for each who measured, as Markdown."""
    names = sorted(dict.fromkeys(name for name, _ in taken), key=lambda name: name != "truth")
    lines = [f"**{title}**", "", f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row, digits in ROWS.items():
        values = [[numbers[row] for who, numbers in taken if who == name and row in numbers] for name in names]
        if not any(values):
            continue
        cells = [f"{median(several):,.{digits}f}" if several else "-" for several in values]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(rounds: int = ROUNDS) -> None:
    """Measure, and print the tables."""
    peers.install()
    tools = [SPECDEPLOY, AIPERF, AIPERF_BY_SERVER, GUIDELLM]
    with llamacpp_server("--interrupt_requests", "False") as url:
        loads: dict[str, Callable[[], Iterator[tuple[str, Numbers]]]] = {
            "A token in each event, 4 in flight": lambda: _known(ONE_BY_ONE, tools),
            "Four tokens in each event, 4 in flight": lambda: _known(BY_FOUR, tools),
            "llama.cpp, 1 in flight": lambda: _llamacpp(url, 1),
            "llama.cpp, 4 in flight": lambda: _llamacpp(url, 4),
        }
        taken: dict[str, list[tuple[str, Numbers]]] = {title: [] for title in loads}
        for number in range(rounds):
            for title, measure in loads.items():
                print(f"round {number + 1} of {rounds}: {title}", file=sys.stderr, flush=True)
                taken[title] += measure()
    print("\n\n".join(table(title, several) for title, several in taken.items()))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
