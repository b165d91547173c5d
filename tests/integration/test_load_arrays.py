"""Load tests from job arrays, as docs/load.md writes them: a real one under Slurm, and the manifest for Kubernetes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from specdeploy.bench.shards import Shard, parse_shard
from specdeploy.cli.load import command
from tests.deployments import specdeploy
from tests.slurm_cluster import Cluster
from tests.timed_server import ROOT, Script, prompts, timed_server

SECTION = (ROOT / "docs" / "load.md").read_text().partition("\n## Several generators\n")[2]
CONFIG = """\
name: tiny
target: {checkpoint: target}
draft: {checkpoint: draft}
load:
  {protocol: http, prompts: prompts.jsonl, compare: false, warmup_requests: 0, pairs: 2, requests: 30, concurrency: [4]}
"""


def block(kind: str, beginning: str) -> str:
    """Return the code of the section that begins so."""
    (text,) = [
        code
        for code in re.findall(rf"^```{kind}\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
        if code.startswith(beginning)
    ]
    return text


def command_lines(script: str, env: dict[str, str], folder: Path) -> list[list[str]]:
    """Run a shell script with a specdeploy that notes its arguments, and return them."""
    (folder / "bin").mkdir(exist_ok=True)
    notes, program = folder / "notes", folder / "bin" / "specdeploy"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nopen({str(notes)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
    )
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-c", script], env={"PATH": path, **env}, check=True, timeout=60)
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    notes.unlink()
    return lines


def parsed(line: list[str]) -> dict[str, Any]:
    """Return the options of a `specdeploy load`, as Click reads them."""
    assert line[0] == "load"
    return command.make_context("load", line[1:]).params


def test_the_manifest_runs_every_shard(tmp_path: Path) -> None:
    """Each index is another shard of as many as there are pods, with the same start; Click takes the command line."""
    manifest = yaml.safe_load(block("yaml", "apiVersion: batch/v1").replace('$START_AT"', '1769852100"'))
    spec = manifest["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (manifest["kind"], spec["completionMode"]) == ("Job", "Indexed")
    assert spec["completions"] == spec["parallelism"] == 8
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["command"] == ["sh", "-c"]
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert all(isinstance(value, str) for value in env.values())
    options = [
        parsed(line)
        for index in range(spec["completions"])
        for line in command_lines(container["args"][0], {**env, "JOB_COMPLETION_INDEX": str(index)}, tmp_path)
    ]

    assert [parse_shard(option["shard"]) for option in options] == [Shard(number=n + 1, of=8) for n in range(8)]
    assert {option["start_at"] for option in options} == {"1769852100"}
    assert {(option["http"], option["grpc"]) for option in options} == {("triton:8000", "triton:8001")}
    assert options[0]["config_path"].startswith("/deployment/")
    assert options[0]["overrides"] == ("report.path=/reports",)


def test_the_start_is_written_into_the_manifest() -> None:
    """`envsubst` replaces the start alone: the other variables are for the shell in the pod."""
    text = block("yaml", "apiVersion: batch/v1")

    assert "envsubst '$START_AT'" in SECTION
    assert '{name: START_AT, value: "$START_AT"}' in text
    assert '--start-at "$START_AT"' in text


def test_the_batch_script_runs_every_shard(tmp_path: Path) -> None:
    """By what Slurm says of a task of an array."""
    env = {"HTTP": "gpu:8000", "GRPC": "gpu:8001", "START_AT": "1769852100", "SLURM_ARRAY_TASK_COUNT": "8"}
    lines = command_lines(block("bash", "#!/bin/bash"), {**env, "SLURM_ARRAY_TASK_ID": "3"}, tmp_path)

    assert [parsed(line)["shard"] for line in lines] == ["3/8"]


@pytest.mark.slurm
@pytest.mark.timeout(240)
def test_an_array_of_two_tasks_is_one_load_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented script on a real cluster: both tasks begin together, and what they measured becomes one."""
    scripts = [Script(name=f"r{n}", gaps_ms=(20.0, 5.0), tokens=((1,), (2,)), histogram=(1, 2)) for n in range(60)]
    (tmp_path / "specdeploy.yaml").write_text(CONFIG)
    lines = [json.dumps({"id": prompt.id, "text": prompt.text}) for prompt in prompts(scripts).prompts]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    (tmp_path / "load.sbatch").write_text(block("bash", "#!/bin/bash").replace("--block-every 60", "--block-every 3"))
    program = tmp_path / "bin" / "specdeploy"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\nexec "{sys.executable}" -m specdeploy "$@"\n')
    program.chmod(0o755)
    start_s = int(time.time()) + 25
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        Cluster(Path(folder)) as cluster,
        timed_server() as server,
    ):
        for name, value in (
            ("HTTP", server.url),
            ("GRPC", server.url),
            ("START_AT", str(start_s)),
            ("PATH", f"{program.parent}:{os.environ['PATH']}"),
            ("PYTHONPATH", str(ROOT)),
        ):
            monkeypatch.setenv(name, value)
        done = cluster.run("sbatch", "--wait", "--array=1-2", f"--chdir={tmp_path}", str(tmp_path / "load.sbatch"))
        logs = "\n".join(path.read_text() for path in sorted(tmp_path.glob("load-*.log")))
        assert done.returncode == 0, done.stderr + logs
        truth = server.truth()
    merged = specdeploy("report", "merge", cwd=tmp_path)
    assert merged.returncode == 0, merged.stderr
    document = json.loads((tmp_path / "reports" / "load.json").read_text())

    assert len(truth) == 60
    assert document["shards"]["present"] == [1, 2]
    assert document["shards"]["start_skew_s"] < 0.5
    assert [shard["requests"] for shard in document["shards"]["shards"]] == [30, 30]
    (arm,) = document["arms"]
    assert (arm["metrics"]["request_count"]["avg"], arm["errors"]) == (60, {})
    assert arm["metrics"]["request_latency"]["min"] >= 25
