"""Streamed tokens per second of CPU time: `specdeploy load` against AIPerf and guidellm; how late it sends; its memory.

All three ask the same server, which answers every chat with 128 tokens at 10 ms each, for the same number of answers,
32 at a time, and write their records and reports. What a tool burns in all its processes is counted; what starting and
ending it takes is not: the CPU time of a run with few requests is taken off. The peers take the server's word for the
number of tokens, as ours does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tests import peers
from tests.bench.null_server import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Command = Callable[[int, int, Path], list[str]]

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "checkpoints" / "smollm2-135m-instruct"
ROUNDS = 3
CONCURRENCY = 32
FEW, MANY = 32, 352
TOKENS = 128
INTERVAL_MS = 10.0
RATE, SECONDS = 200, 10
#: Tokens of an answer while requests are sent at a rate: with 128 the server would be the busier of the two.
SHORT = 16
#: Requests of a run that is long enough to show what grows.
LONG = 30_000
_DONE = re.compile(r"(\d+)/\d+ requests")
_ANONYMOUS = re.compile(r"RssAnon:\s+(\d+) kB")
_HERE = {**os.environ, "PYTHONPATH": str(ROOT)}


def rows() -> list[tuple[str, float]]:
    """Return the ratios; the three tools take turns."""
    peers.install()
    tools: dict[str, Command] = {"ours": _ours, "AIPerf": _aiperf, "guidellm": _guidellm}
    taken: dict[str, list[float]] = {name: [] for name in tools}
    with _null_server(TOKENS, INTERVAL_MS) as port:
        for number in range(ROUNDS):
            # Another order each time: none is always the one that finds the caches cold.
            for name in (*list(tools)[number:], *list(tools)[:number]):
                taken[name].append(_cpu_s(tools[name], port, MANY) - _cpu_s(tools[name], port, FEW))
    seconds = {name: median(values) for name, values in taken.items()}
    tokens = (MANY - FEW) * TOKENS
    return [
        ("streamed tokens per CPU second, ours / AIPerf", seconds["AIPerf"] / seconds["ours"]),
        ("streamed tokens per CPU second, ours / guidellm", seconds["guidellm"] / seconds["ours"]),
        ("CPU time per streamed token, us", 1e6 * seconds["ours"] / tokens),
        (f"sent late at {RATE} requests/s, p99, ms", _late_ms()),
        _memory(),
    ]


def _late_ms() -> float:
    """Return the 99th percentile of how late requests are sent that are due at random times."""
    wanted = {"shape": "poisson", "rates": [RATE], "requests": RATE * SECONDS, "max_tokens": SHORT}
    with _null_server(SHORT, INTERVAL_MS) as port, tempfile.TemporaryDirectory() as folder:
        command = _load(port, Path(folder), wanted)
        done = subprocess.run(command, cwd=folder, env=_HERE, check=True, capture_output=True, text=True, timeout=300)
    return float(json.loads(done.stdout)["arms"][0]["metrics"]["dispatch_lag"]["p99"])


def _memory() -> tuple[str, float]:
    """Return the memory (what no file backs) late in a long run, by that early in it."""
    looks = []
    with _null_server(SHORT, 1.0) as port, tempfile.TemporaryDirectory() as folder:
        command = _load(port, Path(folder), {"concurrency": [CONCURRENCY], "requests": LONG, "max_tokens": SHORT})
        with subprocess.Popen(
            command, cwd=folder, env=_HERE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                status = Path(f"/proc/{process.pid}/status").read_text()
                if (done := _DONE.search(line)) and (found := _ANONYMOUS.search(status)):
                    looks.append((int(done[1]), int(found[1])))
    if process.returncode or len(looks) < 2:
        raise RuntimeError(f"the load test ended with {process.returncode}, and told {len(looks)} times how far it is")
    return f"memory at request {looks[-1][0]} / at request {looks[0][0]}", looks[-1][1] / looks[0][1]


def _cpu_s(tool: Command, port: int, requests: int) -> float:
    """Return the CPU time of a tool and of all its processes for so many requests."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        command = [sys.executable, "-m", "tests.bench.cpu_time", folder + "/cpu", *tool(port, requests, place)]
        subprocess.run(command, cwd=place, env=_HERE, check=True, capture_output=True, timeout=600)
        return float((place / "cpu").read_text())


def _load(port: int, place: Path, wanted: Mapping[str, object]) -> list[str]:
    """Return our command for a load, whose configuration is written."""
    nothing = {"checkpoint": "none"}
    load = {"compare": False, "pairs": 1, "warmup_requests": 0, **wanted}
    configuration = {"name": "null", "profile": "cpu", "target": nothing, "draft": nothing, "load": load}
    # JSON is YAML.
    (place / "specdeploy.yaml").write_text(json.dumps(configuration))
    return [sys.executable, "-m", "specdeploy", "load", "--openai", f"http://127.0.0.1:{port}/v1", "--json"]


def _ours(port: int, requests: int, place: Path) -> list[str]:
    return _load(port, place, {"concurrency": [CONCURRENCY], "requests": requests, "max_tokens": TOKENS})


def _aiperf(port: int, requests: int, place: Path) -> list[str]:
    options = {
        "model": MODEL,
        "url": f"http://127.0.0.1:{port}",
        "endpoint-type": "chat",
        "tokenizer": TOKENIZER,
        "concurrency": CONCURRENCY,
        "request-count": requests,
        "synthetic-input-tokens-mean": 50,
        "output-tokens-mean": TOKENS,
        "ui": "none",
        "artifact-dir": place,
    }
    # Whatever it can leave out, it leaves out.
    switches = ["--streaming", "--use-server-token-count", "--no-server-metrics", "--no-gpu-telemetry"]
    said = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [str(peers.program("aiperf")), "profile", *said, *switches]


def _guidellm(port: int, requests: int, place: Path) -> list[str]:
    options = {
        "backend": f"kind=openai_http,target=http://127.0.0.1:{port},model={MODEL}",
        "profile": f"kind=concurrent,streams={CONCURRENCY}",
        "constraint": f"kind=max_requests,count={requests}",
        "tokenizer": f"kind=hf_auto,model={TOKENIZER}",
        "data": f"kind=synthetic_text,prompt_tokens=50,output_tokens={TOKENS}",
        "output": f"kind=json,path={place / 'result.json'}",
    }
    said = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [str(peers.program("guidellm")), "run", *said, "--disable-console"]


@contextlib.contextmanager
def _null_server(tokens: int, interval_ms: float) -> Iterator[int]:
    """Run the server for the time of the block, and give its port."""
    command = [sys.executable, "-m", "tests.bench.null_server", str(tokens), str(interval_ms)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()
