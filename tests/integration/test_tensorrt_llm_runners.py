"""Engines built elsewhere: in a container, by a stand-in for its engine, and on a real Slurm cluster of one node."""

from __future__ import annotations

import dataclasses
import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.gpu_deployments import (
    BUILDER,
    CONVERTER,
    eventually,
    is_running,
    write_gpu_deployment,
)
from tests.slurm_cluster import Cluster
from tests.unit.system.test_system_container import Engines

IMAGE_OF_1_2_1 = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
SETTINGS = {"gpu.name": "H100-80GB", "gpu.count": 1}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    """Without the caller's own GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@dataclasses.dataclass(frozen=True)
class Docker:
    """A stand-in for docker, in whose containers alone there is a toolchain."""

    engines: Engines
    env: dict[str, str]

    @property
    def image(self) -> str:
        """The image of the last container."""
        return self.engines.last["image"]

    @property
    def mounts(self) -> dict[str, bool]:
        """Of the last container: path to whether it may be written to."""
        return {source: writable for source, _, writable in self.engines.last["mounts"]}


def _with_docker(deployment, folder: Path) -> tuple[Docker, object]:
    """Return a docker whose containers have the toolchain, and the deployment on a machine that has not."""
    engines = Engines(folder / "engines")
    front = folder / "bin" / "docker"
    front.parent.mkdir()
    front.write_text(
        f'#!/bin/sh\nPATH={deployment.toolchain.bin}:{os.environ["PATH"]} exec {engines.folder}/docker "$@"\n'
    )
    front.chmod(0o755)
    env = {"PATH": str(front.parent)}
    return Docker(engines, env), dataclasses.replace(deployment, env=env)


@pytest.fixture(name="contained")
def _contained(tmp_path):
    """Return a docker, and a deployment that is built in its containers."""
    settings = {**SETTINGS, "build.runner": "container"}
    return _with_docker(write_gpu_deployment(tmp_path / "d", settings=settings), tmp_path / "docker")


def test_an_engine_is_built_in_containers(contained, tmp_path):
    """A container for each step, of NVIDIA's image of the release, that sees what it reads and may write no more."""
    docker, deployment = contained

    planned = deployment.run("plan")
    built = deployment.run_json("build")["target"]

    assert "docker run --rm" in planned.stdout
    assert [call["tool"] for call in deployment.calls()] == [CONVERTER, BUILDER]
    assert docker.image == IMAGE_OF_1_2_1
    assert built["host"]["runner"] == "container"
    assert built["host"]["image"] == IMAGE_OF_1_2_1
    assert docker.engines.last["options"]["--gpus"] == ["all"]
    assert all(deployment.store in Path(path).parents for path in docker.mounts)
    assert [Path(path).parent.name for path, writable in docker.mounts.items() if not writable] == [".steps"]
    (engine,) = deployment.engines()
    assert {path.name for path in engine.iterdir()} == {"config.json", "rank0.engine", "manifest.json"}
    assert docker.engines.running == []
    assert engine.owner() == tmp_path.owner()


def test_an_image_of_the_users_own(contained):
    """It is taken as it is named, when it has the release; NVIDIA's own images are known to have another."""
    _, deployment = contained
    wrong = "container.image=nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3"

    own = deployment.run_json("build", "--set", "container.image=registry.local/trtllm@sha256:" + "0" * 64)
    refused = deployment.run("build", "--set", wrong)

    assert own["target"]["host"]["image"].startswith("registry.local/trtllm@sha256:")
    assert refused.returncode == 2
    assert "has TensorRT-LLM 1.2.0, the release is 1.2.1" in refused.stderr


def test_an_image_that_cannot_be_had(contained):
    """Docker's own words and what to do, exit code 4; nothing is published."""
    _, deployment = contained

    failed = deployment.run("build", "--set", "container.image=absent:1")

    assert failed.returncode == 4
    assert "pull access denied for absent" in failed.stderr
    assert "hint:" in failed.stderr
    assert (deployment.engines(), deployment.leftovers()) == ([], [])


def test_a_step_that_fails_in_its_container(contained):
    """As on this machine: the cause, the log's end, and only what is left the next time."""
    _, deployment = contained
    deployment.fail(builder="out_of_memory")

    failed = deployment.run("build")

    assert failed.returncode == 4
    assert "CUDA out of memory" in failed.stderr
    assert (deployment.engines(), deployment.leftovers()) == ([], [])
    deployment.fail()
    assert deployment.run("build").returncode == 0
    assert [call["tool"] for call in deployment.calls()] == [CONVERTER, BUILDER, BUILDER]


def test_an_interrupted_build_leaves_no_container(contained):
    """The daemon would keep it running when its client is ended, and with it a GPU in use."""
    docker, deployment = contained
    with deployment.held(), deployment.start("build") as started:
        eventually(lambda: deployment.calls(BUILDER), "the builder")

        started.process.send_signal(signal.SIGTERM)

        assert started.ends() == 143
        eventually(lambda: not is_running(deployment.calls(BUILDER)[0]["pid"]), "the builder's end")
    assert docker.engines.running == []
    assert docker.engines.was_removed
    assert (deployment.engines(), deployment.leftovers()) == ([], [])


@pytest.mark.parametrize(("runner", "program"), [("container", "docker"), ("slurm", "sbatch")])
def test_a_runner_that_is_not_here(tmp_path, runner, program):
    """The program that is missing is named: exit code 4, and nothing is left behind."""
    deployment = write_gpu_deployment(tmp_path, settings={**SETTINGS, "build.runner": runner})
    (tmp_path / "nothing").mkdir()

    failed = deployment.run("build", env={"PATH": str(tmp_path / "nothing")})

    assert failed.returncode == 4
    assert program in failed.stderr
    assert "hint:" in failed.stderr
    assert deployment.calls() == []
    assert (deployment.engines(), deployment.leftovers()) == ([], [])


@pytest.fixture(name="cluster", scope="module")
def _cluster():
    """A cluster for the tests of this file."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, Cluster(Path(folder)) as running:
        yield running


def _on_cluster(cluster, folder: Path, method: str = "ngram"):
    settings = {**SETTINGS, "build.runner": "slurm", "slurm.poll_s": 0.2}
    deployment = write_gpu_deployment(folder, method=method, settings=settings)
    return dataclasses.replace(deployment, env={"SLURM_CONF": str(cluster.config)})


@pytest.fixture(name="queued")
def _queued(cluster, tmp_path):
    """A deployment that is built on the cluster."""
    return _on_cluster(cluster, tmp_path)


@pytest.mark.slurm
def test_an_engine_is_built_by_two_jobs(cluster, queued):
    """Each step is a job of its own with a GPU, as TensorRT-LLM needs to be imported; the engine is published here."""
    built = queued.run_json("build")["target"]

    convert, build = queued.calls()
    jobs = [call["env"]["SLURM_JOB_ID"] for call in (convert, build)]
    assert (convert["tool"], build["tool"]) == (CONVERTER, BUILDER)
    assert int(jobs[0]) < int(jobs[1])
    asked = [
        "TresPerNode=gres:gpu:1" in cluster.run("scontrol", "--oneliner", "show", "job", job).stdout for job in jobs
    ]
    assert asked == [True, True]
    assert built["host"]["runner"] == "slurm"
    assert set(built["steps"]) == {"convert", "build"}
    (engine,) = queued.engines()
    assert {path.name for path in engine.iterdir()} == {"config.json", "rank0.engine", "manifest.json"}
    assert (cluster.queue(), queued.leftovers()) == ([], [])


@pytest.mark.slurm
def test_the_queue_gives_each_engine_its_gpus(cluster, tmp_path):
    """Target and draft are built at the same time, and no number of ours stands against the queue's choice."""
    queued = _on_cluster(cluster, tmp_path, "draft_target")
    planned = queued.run("plan")
    with queued.held() as release, queued.start("build") as started:
        eventually(lambda: len(queued.calls(BUILDER)) == 2, f"both builders; {cluster.queue()}")
        release()

        assert started.ends() == 0, started.text
    assert "on the GPUs that the queue gives it" in planned.stdout
    assert "#SBATCH --gres=gpu:1" in planned.stdout
    assert len(queued.engines()) == 2
    assert cluster.queue() == []


@pytest.mark.slurm
def test_a_job_that_fails_keeps_the_next_from_running(cluster, queued):
    """The converter's own words, exit code 4, and nothing waits in the queue for what will not come."""
    queued.fail(converter="out_of_memory")

    failed = queued.run("build")

    assert failed.returncode == 4
    assert "step `convert` ended with exit code 1" in failed.stderr
    assert "CUDA out of memory" in failed.stderr
    assert queued.calls(BUILDER) == []
    assert (queued.engines(), queued.leftovers(), cluster.queue()) == ([], [], [])


@pytest.mark.slurm
def test_after_a_failed_job_only_what_is_left_is_submitted(cluster, queued):
    """The conversion that a job did well is there for the next run."""
    queued.fail(builder="success_without_file")
    failed = queued.run("build")
    queued.fail()
    healed = queued.run("build")

    assert failed.returncode == 4
    assert "rank0.engine" in failed.stderr
    assert healed.returncode == 0, healed.stderr
    assert [call["tool"] for call in queued.calls()] == [CONVERTER, BUILDER, BUILDER]
    assert cluster.queue() == []


@pytest.mark.slurm
def test_a_job_that_somebody_cancels(cluster, queued):
    """The job and its state are named; it is no failure of the program."""
    with queued.held(), queued.start("build") as started:
        eventually(lambda: queued.calls(BUILDER), "the builder")

        cluster.run("scancel", queued.calls(BUILDER)[0]["env"]["SLURM_JOB_ID"])

        assert started.ends() == 4
    assert "ended in the state CANCELLED" in started.text
    assert (queued.engines(), queued.leftovers(), cluster.queue()) == ([], [], [])


@pytest.mark.slurm
def test_ctrl_c_empties_the_queue(cluster, queued):
    """The running job is cancelled, and what it ran is gone."""
    with queued.held(), queued.start("build") as started:
        eventually(lambda: queued.calls(BUILDER), "the builder")

        started.process.send_signal(signal.SIGINT)

        assert started.ends() == 130
        assert cluster.queue() == []
        eventually(lambda: not is_running(queued.calls(BUILDER)[0]["pid"]), "the builder's end")
    assert (queued.engines(), queued.leftovers()) == ([], [])
