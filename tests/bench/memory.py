"""The memory of the load generator after many requests, by that after few: records go to the disk as requests end."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.load_generator import null_server

REQUESTS = 30_000
TOKENS = 32
INTERVAL_MS = 1.0
CONCURRENCY = 32
_DONE = re.compile(r"(\d+)/\d+ requests")
_ANONYMOUS = re.compile(r"RssAnon:\s+(\d+) kB")
CONFIGURATION = f"""\
name: memory
profile: cpu
target: {{checkpoint: none}}
draft: {{checkpoint: none}}
load:
  concurrency: [{CONCURRENCY}]
  requests: {REQUESTS}
  pairs: 1
  compare: false
"""


def rows() -> list[tuple[str, float]]:
    """Return the ratio: of the last look at the memory while requests were sent, and of the first."""
    with null_server(TOKENS, INTERVAL_MS) as port, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "specdeploy.yaml").write_text(CONFIGURATION)
        looks = _looks(["load", "--openai", f"http://127.0.0.1:{port}/v1"], folder)
    return [(f"memory of the load generator, request {looks[-1][0]} / {looks[0][0]}", looks[-1][1] / looks[0][1])]


def _looks(arguments: list[str], folder: str) -> list[tuple[int, int]]:
    """Run a load test, and return the requests done and the memory (kB) whenever it says how far it is."""
    looks = []
    with subprocess.Popen(
        [sys.executable, "-m", "specdeploy", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            status = Path(f"/proc/{process.pid}/status")
            if (done := _DONE.search(line)) and (found := _ANONYMOUS.search(status.read_text())):
                looks.append((int(done[1]), int(found[1])))
    if process.returncode or len(looks) < 2:
        raise RuntimeError(f"the load test ended with {process.returncode}, after {len(looks)} lines")
    return looks


if __name__ == "__main__":
    for name, value in rows():
        sys.stdout.write(f"{name}  {value:.3f}\n")
