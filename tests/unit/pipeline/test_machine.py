"""The machine that engines are for: named in the configuration, or what nvidia-smi shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from specdeploy.config.load import LoadedConfig
from specdeploy.config.schema import (
    BuildConfig,
    ContainerConfig,
    DeployConfig,
    DraftConfig,
    GpuConfig,
    ModelConfig,
    SlurmConfig,
    TensorrtLlmConfig,
)
from specdeploy.errors import ConfigError
from specdeploy.pipeline import machine
from specdeploy.system.container import ContainerJobs
from specdeploy.system.host import GpuInfo
from specdeploy.system.jobs import Job, LocalJobs
from specdeploy.system.slurm import SlurmJobs

H100 = GpuInfo(name="NVIDIA H100 80GB HBM3", memory_bytes=85_520_809_984, driver="590.44.01", compute_capability="9.0")


def config(**changes) -> DeployConfig:
    """A deployment of the profile tensorrt_llm."""
    values = {
        "name": "x",
        "profile": "tensorrt_llm",
        "target": ModelConfig(checkpoint="a"),
        "draft": DraftConfig(checkpoint="b"),
    }
    return DeployConfig(**(values | changes))


@pytest.fixture
def visible(monkeypatch):
    """Return a function that decides what nvidia-smi shows."""

    def show(*gpus: GpuInfo) -> None:
        monkeypatch.setattr(machine, "_visible", lambda: gpus)

    show()
    return show


def test_the_gpus_of_this_machine_are_taken_when_none_are_named(visible):
    """Kind, number and driver."""
    visible(H100, H100)

    gpus = machine.find_gpus(config())

    assert (gpus.capability, gpus.count, gpus.driver) == ((9, 0), 2, "590.44.01")
    assert gpus.spec.memory_bytes == H100.memory_bytes


@pytest.mark.parametrize(
    ("name", "capability"), [("H100-80GB", (9, 0)), ("L40S", (8, 9)), ("10.0", (10, 0)), ("Voodoo2", None)]
)
def test_a_named_gpu_needs_none_here(visible, name, capability):
    """A plan for a cluster is made on a laptop; a name that is not known leaves the capability open."""
    visible()

    gpus = machine.find_gpus(config(gpu=GpuConfig(name=name, count=8)))

    assert (gpus.capability, gpus.count) == (capability, 8)


def test_nothing_named_and_nothing_here_is_unknown(visible):
    """And not some default."""
    visible()

    gpus = machine.find_gpus(config())

    assert (gpus.capability, gpus.count, gpus.spec.memory_bytes) == (None, None, None)


def test_the_memory_may_be_given(visible):
    """In decimal gigabytes, over whatever the name says."""
    visible()

    assert machine.find_gpus(config(gpu=GpuConfig(name="H100", memory_gb=94.0))).spec.memory_bytes == 94 * 10**9


def test_calibration_texts_are_told_apart_by_their_content(tmp_path):
    """A copy elsewhere is the same, another text is not, and a missing folder is an error that names it."""
    for folder, text in (("one", "hello"), ("two/one", "hello"), ("three", "other")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.txt").write_text(text)

    def fingerprint(name: str) -> str:
        wanted = config(tensorrt_llm=TensorrtLlmConfig(calib_dataset=name))
        loaded = LoadedConfig(config=wanted, base_dir=tmp_path, origin={})
        return machine.machine(loaded, machine.NO_GPUS).calibration_fingerprint

    assert fingerprint("one") == fingerprint("two/one") != fingerprint("three")
    with pytest.raises(ConfigError, match=r"there is no .*gone"):
        fingerprint("gone")


@pytest.mark.parametrize(("runner", "kind"), [("local", LocalJobs), ("container", ContainerJobs), ("slurm", SlurmJobs)])
def test_the_configuration_says_who_runs_the_steps(runner, kind):
    """By build.runner."""
    assert isinstance(machine.job_runner(config(build=BuildConfig(runner=runner))), kind)


@pytest.mark.parametrize(
    ("release", "image"), [("1.2.1", "26.07"), ("1.2.0", "26.03"), ("0.21.0", "25.08"), ("0.17.0.post1", "25.02")]
)
def test_the_image_follows_the_release_unless_one_is_named(release, image):
    """The newest of NVIDIA's that has exactly the release."""
    assert machine.image_name(config(release=release)) == f"nvcr.io/nvidia/tritonserver:{image}-trtllm-python-py3"
    assert machine.image_name(config(container=ContainerConfig(image="mine@sha256:00"))) == "mine@sha256:00"


def test_manifests_keep_what_matters_of_the_environment_and_no_secrets(monkeypatch):
    """NCCL's settings explain an engine, a token must not be in a file that people pass around."""
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("TRTLLM_API_KEY", "alsosecret")
    monkeypatch.setenv("EDITOR", "vi")

    kept = machine.surroundings(config(), machine.NO_GPUS).environment

    assert kept["NCCL_P2P_DISABLE"] == "1"
    assert (kept["HF_TOKEN"], kept["TRTLLM_API_KEY"]) == ("***", "***")
    assert "EDITOR" not in kept


def test_who_logs_in_where_is_no_ones_business(monkeypatch):
    """Addresses keep their host and lose the user; names that sound like secrets lose everything."""
    monkeypatch.setenv("HF_ENDPOINT", "https://user:password@hub.example/path")
    for name in ("HF_AUTH", "HF_COOKIE", "TLLM_BEARER", "HF_APIKEY"):
        monkeypatch.setenv(name, "secret")

    kept = machine.surroundings(config(), machine.NO_GPUS).environment

    assert kept["HF_ENDPOINT"] == "https://***@hub.example/path"
    assert {kept[name] for name in ("HF_AUTH", "HF_COOKIE", "TLLM_BEARER")} == {"***"}
    assert "secret" not in str(kept)


def test_a_container_has_an_environment_of_its_own(monkeypatch):
    """Ours did not make the engine, so it is not in the manifest."""
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")

    assert machine.surroundings(config(build=BuildConfig(runner="container")), machine.NO_GPUS).environment == {}


@pytest.mark.parametrize(
    ("engine", "gpus", "devices"),
    [
        ("docker", "all", ("0", "1", "2", "3")),
        ("docker", "2", ("0", "1")),
        ("docker", "device=2,3", ("0", "1")),
        ("apptainer", "device=2,3", ("2", "3")),
    ],
)
def test_a_container_numbers_its_gpus(visible, engine, gpus, devices):
    """Docker from 0 on, whichever they are outside; apptainer shows all under their own numbers."""
    visible(*[H100] * 4)
    wanted = config(build=BuildConfig(runner="container"), container=ContainerConfig(engine=engine, gpus=gpus))

    assert machine.build_devices(wanted, machine.find_gpus(wanted)) == devices
    few = machine.check_container_gpus(wanted, 3)
    assert [finding.code for finding in few] == ([] if gpus == "all" else ["container.gpus"])


def test_only_granted_gpus_are_used_here(visible, monkeypatch):
    """As the scheduler of a shared machine says."""
    visible(*[H100] * 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")

    assert machine.build_devices(config(), machine.find_gpus(config())) == ("6", "7")


def test_programs_of_a_container_or_a_node_are_not_looked_for_here():
    """They are in the image."""
    here = machine.surroundings(config(), machine.NO_GPUS).tools
    there = machine.surroundings(config(build=BuildConfig(runner="slurm")), machine.NO_GPUS).tools

    assert list(here.missing(["no-such-program"])) == ["no-such-program"]
    assert list(there.missing(["no-such-program"])) == []


def test_a_plan_shows_how_jobs_are_handed_over():
    """The whole command line of the container, the whole script of the queue, nothing for this machine."""
    job = Job(name="target: build", argv=("trtllm-build",), env={}, log=Path("/l/build.log"), timeout_s=60, gpus=2)
    slurm = config(build=BuildConfig(runner="slurm"), slurm=SlurmConfig(partition="gpu", account="ml"))

    (docker,) = machine.shown_commands(config(build=BuildConfig(runner="container")), [job])
    (script, *_) = machine.shown_commands(slurm, [job])

    assert docker.startswith("docker run --rm")
    assert "--gpus=all" in docker
    assert {"#SBATCH --partition=gpu", "#SBATCH --account=ml", "#SBATCH --gres=gpu:2"} <= set(script.splitlines())
    assert machine.shown_commands(config(), [job]) == ()


def test_slurms_keys_are_those_of_its_settings():
    """No key of the section is lost on the way."""
    settings = {field.name for field in dataclasses.fields(machine.slurm_settings(config()))}

    assert {field.name for field in dataclasses.fields(SlurmConfig)} <= settings
