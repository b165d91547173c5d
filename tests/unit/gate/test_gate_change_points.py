"""``gate baseline history --change-points``: what changed, and since when."""

from __future__ import annotations

import csv
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from specdeploy.cli import run as run_command
from specdeploy.gate.baseline import Baseline, Run, Series, render_baseline
from specdeploy.pipeline.change_points import change_table, find_change_points
from tests.conftest import ROOT, otava_python

CHANGED_AT = 10
RANDOM = random.Random(1)


def noisy(value: float, factor: float = 1.0) -> tuple[float, ...]:
    """Values of 16 days, by some factor more from the eleventh on."""
    return tuple(value * RANDOM.lognormvariate(0, 0.01) * (factor if day >= CHANGED_AT else 1.0) for day in range(16))


BASELINE = Baseline(
    fingerprint={"profile": "cpu"},
    runs=tuple(Run(created=f"2026-03-{day + 1:02}T09:30:00+00:00", label=f"commit-{day}") for day in range(16)),
    series={
        "request_latency.p99@1#speculation": Series(unit="ms", values=noisy(100.0, 1.2)),
        "output_token_throughput@4#speculation": Series(unit="tokens/sec", values=noisy(50.0, 1.2)),
        "spec_decode_acceptance_length[a, b]@1#speculation": Series(unit="tokens", values=noisy(3.0, 0.8)),
        "engine_size[target]": Series(unit="B", values=(0.0,) * CHANGED_AT + (2.0**30,) * 6),
        "speedup@1": Series(unit="x", values=noisy(1.5)),
        "time_to_first_token@1#speculation": Series(unit="ms", values=(None, *noisy(5.0, 2.0)[1:])),
    },
)
CONFIG = "name: tiny\ntarget: {checkpoint: target}\ndraft: {checkpoint: draft}\n"


@pytest.fixture(name="folder", autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment with a baseline."""
    monkeypatch.chdir(tmp_path)
    Path("specdeploy.yaml").write_text(CONFIG)
    Path("gate-baseline.json").write_text(render_baseline(BASELINE))
    return tmp_path


@pytest.mark.otava
def test_otava_finds_what_changed(folder: Path) -> None:
    """In all numbers that every run has, since the run that it changed with; and nothing in what only scatters."""
    command = [otava_python(), "-m", "specdeploy", "gate", "baseline", "history", "--change-points"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=240, check=False)
    found = {row["metric"]: row for row in csv.DictReader(done.stdout.splitlines())}

    assert (done.returncode, done.stderr) == (0, "4 change point(s) in 16 run(s)\n")
    assert {key: row["direction"] for key, row in found.items()} == {
        "request_latency.p99@1#speculation": "worse",
        "output_token_throughput@4#speculation": "better",
        "spec_decode_acceptance_length[a, b]@1#speculation": "worse",
        "engine_size[target]": "worse",
    }
    assert {(row["time"], row["commit"]) for row in found.values()} == {("2026-03-11 09:30:00 +0000", "commit-10")}
    latency = found["request_latency.p99@1#speculation"]
    assert float(latency["change_percent"]) == pytest.approx(20, abs=2)
    assert (float(latency["before"]), float(latency["after"])) == (
        pytest.approx(100, rel=0.02),
        pytest.approx(120, rel=0.02),
    )
    assert float(latency["p_value"]) <= 0.001
    assert (found["engine_size[target]"]["change_percent"], latency["unit"]) == ("", "ms")


def test_without_otava_it_is_said_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 4; and the history is there all the same."""
    monkeypatch.setitem(sys.modules, "otava", None)

    assert run_command(["gate", "baseline", "history", "--change-points"]) == 4
    assert "pip install 'specdeploy[otava]'" in capsys.readouterr().err
    assert run_command(["gate", "baseline", "history"]) == 0


def test_a_baseline_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Without one nothing can have changed, whatever is installed."""
    Path("gate-baseline.json").unlink()

    assert run_command(["gate", "baseline", "history", "--change-points"]) == 3
    assert "there is no baseline" in capsys.readouterr().err


class FakeSeries:
    """Says that everything changed with the eleventh run, in Otava's words."""

    def __init__(self, name, branch, time, metrics, data, attributes) -> None:
        assert {len(values) for values in data.values()} == {len(time)}
        self.change_points = {key: [self._point(values)] for key, values in data.items()}
        self.directions = {key: metric.direction for key, metric in metrics.items()}

    @staticmethod
    def _point(values):
        return SimpleNamespace(
            index=CHANGED_AT,
            mean_before=lambda: values[0],
            mean_after=lambda: values[-1],
            pvalue=lambda: 1e-9,
        )

    def analyze(self, options):
        """Return what is known already."""
        return self


def test_what_it_says_is_told_as_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of numbers that every run has; with names that have commas, and without a share of 0."""
    fake = SimpleNamespace(Series=FakeSeries, Metric=lambda direction: SimpleNamespace(direction=direction))
    monkeypatch.setitem(sys.modules, "otava", SimpleNamespace(series=fake))
    monkeypatch.setitem(sys.modules, "otava.series", SimpleNamespace(**vars(fake), AnalysisOptions=SimpleNamespace))
    points = find_change_points(BASELINE)
    rows = list(csv.DictReader(change_table(BASELINE, points).splitlines()))

    assert {row["metric"] for row in rows} == set(BASELINE.series) - {"time_to_first_token@1#speculation"}
    assert {row["commit"] for row in rows} == {"commit-10"}
    assert change_table(BASELINE, ()).splitlines() == [
        "time,commit,metric,unit,before,after,change_percent,p_value,direction"
    ]
