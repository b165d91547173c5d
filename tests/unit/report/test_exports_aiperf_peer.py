"""AIPerf's own models and its plot reader read what we write.

Its plots of a run of the command are in ``tests/integration/test_load_peers.py``.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from specdeploy.report.exports import exports
from tests import peers
from tests.unit.report.exported import closed_loop, open_loop

pytestmark = [pytest.mark.peers, pytest.mark.timeout(300)]

# Reads every run below a folder: the models of the files, the units of the metrics that AIPerf knows, and the plots'
# loader. `input_config` is checked in parts, since AIPerf's whole configuration wants an endpoint that we have not.
READER = r"""
import json, logging, sys
from pathlib import Path
from pydantic import TypeAdapter
from aiperf.common.models.export_models import JsonExportData, JsonMetricResult
from aiperf.common.models.record_models import MetricRecordInfo
from aiperf.config.config import BenchmarkConfig
from aiperf.config.models import ModelsAdvanced
from aiperf.metrics.metric_registry import MetricRegistry
from aiperf.plot.core.data_loader import DataLoader
from aiperf.plot.core.mode_detector import ModeDetector

logging.disable(logging.CRITICAL)
known = {metric.tag: str(metric.display_unit or metric.unit) for metric in MetricRegistry.all_classes()}
phases = TypeAdapter(BenchmarkConfig.model_fields["phases"].annotation)
_, folders = ModeDetector().detect_mode([Path(sys.argv[1])])
runs, units = {}, []
for folder in folders:
    text = json.loads((folder / "profile_export_aiperf.json").read_text())
    config = text.pop("input_config")
    ModelsAdvanced.model_validate(config["models"])
    phases.validate_python(config["phases"])
    JsonExportData.model_validate(text)
    metrics = JsonMetricResult.project_summary_dict(text)
    lines = (folder / "profile_export.jsonl").read_text().splitlines()
    records = [MetricRecordInfo.model_validate_json(line) for line in lines]
    said = {tag: metric.unit for tag, metric in metrics.items()}
    said |= {tag: metric.unit for record in records for tag, metric in record.metrics.items()}
    units += [(tag, unit, known[tag]) for tag, unit in said.items() if tag in known and unit != known[tag]]
    run = DataLoader().load_run(folder)
    runs[folder.name] = {
        "model": run.metadata.model,
        "concurrency": run.metadata.concurrency,
        "requests": len(run.requests),
        "known": sorted(set(said) & set(known)),
        "acceptance": sum(record.spec_decode_acceptance is not None for record in records),
        "latency": run.aggregated["request_latency"]["p50"],
    }
print(json.dumps({"runs": runs, "units": units}))
"""


@pytest.fixture
def read(tmp_path):
    """Export a run and return what AIPerf reads of it."""

    def reader(document: dict, records: tuple) -> dict:
        for path, text in exports(document, records, ["aiperf"]).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text, encoding="utf-8")
        environment = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(
            [peers.python(), "-c", READER, str(tmp_path / "aiperf")],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            env=environment,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return reader


def test_aiperf_reads_a_closed_loop(read) -> None:
    """Every run and request, which model and load it was, and units as AIPerf's own."""
    document, records = closed_loop()
    found = read(document, records)

    assert found["units"] == []
    assert set(found["runs"]) == {
        f"{arm}-concurrency-{number}" for arm in ("control", "speculation") for number in (1, 4)
    }
    run = found["runs"]["speculation-concurrency-4"]
    (entry,) = [e for e in document["arms"] if (e["arm"], e["concurrency"]) == ("speculation", 4)]
    own = [item for item in records if item.counts and (item.arm, item.concurrency) == ("speculation", 4)]
    assert (run["model"], run["concurrency"], run["requests"]) == ("smollm2, speculation", 4, len(own))
    assert run["acceptance"] == sum(bool(item.num_spec_steps) for item in own)
    assert run["latency"] == entry["metrics"]["request_latency"]["p50"]
    assert {"request_error_rate", "spec_decode_overall_draft_acceptance_rate", "spec_decode_steps"} <= set(run["known"])


def test_aiperf_reads_an_open_loop(read) -> None:
    """A run by rate has no concurrency."""
    found = read(*open_loop())

    assert found["units"] == []
    assert {run["concurrency"] for run in found["runs"].values()} == {None}
