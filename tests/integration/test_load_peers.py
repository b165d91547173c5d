"""AIPerf draws what ``specdeploy load --export aiperf`` has written, and reads the same numbers in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import peers
from tests.deployments import specdeploy
from tests.timed_server import Script, timed_server

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs" / "load.md").read_text()
PLOT_S = 240
REQUESTS = 6
TOKENS = 5
#: Reads a run as the plots do.
READER = """
import json, logging, sys
from pathlib import Path
from aiperf.plot.core.data_loader import DataLoader

logging.disable(logging.CRITICAL)
run = DataLoader().load_run(Path(sys.argv[1]))
columns = {name: run.requests[name].tolist() for name in ("time_to_first_token", "output_sequence_length")}
print(json.dumps({"model": run.metadata.model, "concurrency": run.metadata.concurrency, **columns}))
"""


@pytest.fixture(name="reports", scope="module")
def _reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report folder of a load test at two concurrencies, exported."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "specdeploy.yaml").write_text("name: other\ntarget: {checkpoint: target}\ndraft: {checkpoint: draft}\n")
    scripts = [
        Script(name=f"r{number}", gaps_ms=(10.0, 5.0, 5.0), tokens=((1,), (2,), (2,)), histogram=(0, 2))
        for number in range(REQUESTS)
    ]
    lines = [json.dumps({"message": script.prompt().text, "id": script.name}) for script in scripts]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    loads = ("load.prompts=prompts.jsonl", "load.concurrency=[1, 2]", f"load.requests={REQUESTS}", "load.pairs=1")
    with timed_server() as server:
        done = specdeploy(
            *("load", "--openai", f"http://{server.url}/v1", "--export", "aiperf", "--set", "load.warmup_requests=0"),
            *(word for load in loads for word in ("--set", load)),
            cwd=folder,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "reports"


def run(reports: Path, *command: str | Path) -> str:
    """Run a program of AIPerf's environment, with a home of its own, and return what it printed."""
    done = subprocess.run(
        command,
        cwd=reports,
        env={**os.environ, "HOME": str(reports), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=PLOT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_its_plots_read_the_records(reports: Path) -> None:
    """Each request with its latency and its tokens, and which load it was."""
    written = reports / "aiperf" / "speculation-concurrency-2"
    read = json.loads(run(reports, peers.python(), "-c", READER, written).splitlines()[-1])
    records = [json.loads(line) for line in (reports / "load_records.jsonl").read_text().splitlines()]
    own = [record for record in records if record["concurrency"] == 2]

    assert (read["model"], read["concurrency"]) == ("timed, speculation", 2)
    assert read["output_sequence_length"] == [TOKENS] * REQUESTS
    waited_ms = sorted(1e3 * (record["first_s"] - record["sent_s"]) for record in own)
    assert sorted(read["time_to_first_token"]) == pytest.approx(waited_ms, abs=0.01)


@pytest.mark.chromium
def test_it_draws_the_plot_of_the_page(reports: Path) -> None:
    """With the configuration that the page shows: all loads of the folder in one picture, and nothing is left out."""
    (config,) = re.findall(r"```yaml\n(visualization:.*?)```", PAGE, flags=re.DOTALL)
    (reports / "plots.yaml").write_text(config)

    said = run(reports, peers.program("aiperf"), "plot", "aiperf", "--config", "plots.yaml")

    assert "Saved 1 plot" in said
    assert "Skipping" not in said
    picture = reports / "aiperf" / "plots" / "throughput_by_latency.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.chromium
def test_it_draws_one_load_over_time(reports: Path) -> None:
    """Those of its default plots that need neither GPUs nor slices of time."""
    load = Path("aiperf") / "speculation-concurrency-1"

    run(reports, peers.program("aiperf"), "plot", load)

    assert {path.name for path in (reports / load / "plots").glob("*.png")} >= {"ttft_over_time.png"}
