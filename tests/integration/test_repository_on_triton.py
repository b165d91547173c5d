"""Repositories of GPU deployments, from the command line to NVIDIA's tritonserver.

The engines are built by the stand-in toolchain. The real tritonserver reads every configuration, and stops only at the
backend that it does not have.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from specdeploy.errors import ServerFault
from specdeploy.triton.pbtxt import parse
from specdeploy.triton.server import TritonServer
from tests.gpu_deployments import DRAFT, TARGET, write_gpu_deployment
from tests.tiny import perturb_checkpoint

if TYPE_CHECKING:
    from tests.gpu_deployments import GpuDeployment

GPU = {"gpu.name": "H100-80GB", "gpu.count": 4}
# Method, release, and what its engine models' parameters must say.
CASES = [
    ("draft_target", "1.2.1", {"enable_kv_cache_reuse": "true", "gpu_device_ids": "0"}),
    ("draft_target", "0.17.0", {"enable_kv_cache_reuse": "true"}),
    ("ngram", "1.0.0", {"enable_kv_cache_reuse": "true"}),
    ("lookahead", "0.19.0", {"decoding_mode": "lookahead", "lookahead_window_size": "7"}),
    ("medusa", "1.2.1", {"decoding_mode": "medusa"}),
    ("eagle", "1.2.1", {"decoding_mode": "eagle"}),
    ("redrafter", "0.21.0", {"decoding_mode": "redrafter"}),
]


def built(folder: Path, method: str, release: str = "1.2.1", **settings: Any) -> GpuDeployment:
    """Return a deployment whose engines are built."""
    deployment = write_gpu_deployment(folder, method=method, release=release, gpus=4, settings={**GPU, **settings})
    done = deployment.run("build")
    assert done.returncode == 0, done.stderr
    return deployment


def repository(deployment: GpuDeployment) -> Path:
    """Return where the repository is written."""
    return deployment.folder / "triton_repo" / "models"


def parameters(deployment: GpuDeployment, model: str = "tensorrt_llm") -> dict[str, str]:
    """Return the parameters of one model."""
    text = (repository(deployment) / model / "config.pbtxt").read_text(encoding="utf-8")
    return dict(parse(text).parameters)


def triton_says(runtime, models: Path, folder: Path) -> str:
    """Start the real tritonserver on a repository that it cannot serve; return its log."""
    with pytest.raises(ServerFault, match="needs the backend 'tensorrtllm', which this server does not have"):
        TritonServer(runtime, models, run_dir=folder, backends={}).start()
    return (folder / "server.log").read_text(encoding="utf-8")


@pytest.mark.triton
@pytest.mark.parametrize(("method", "release", "expected"), CASES)
def test_triton_reads_everything_and_lacks_only_the_backend(
    triton_runtime, tmp_path, method: str, release: str, expected: dict[str, str]
) -> None:
    """What NVIDIA's image would load is complete but for what only the image has."""
    deployment = built(tmp_path, method, release)
    done = deployment.run("repo")
    assert done.returncode == 0, done.stderr

    log = triton_says(triton_runtime, repository(deployment), tmp_path / "run")

    assert expected.items() <= parameters(deployment).items()
    failed = {line.split("'")[1] for line in log.splitlines() if "failed to load '" in line}
    engines = {"tensorrt_llm", "tensorrt_llm_draft"} if method == "draft_target" else {"tensorrt_llm"}
    assert failed == engines, log
    assert "unable to find backend library for backend 'tensorrtllm'" in log
    assert "Poll failed" not in log
    for model in ("preprocessing", "speculative_decoder"):
        assert f"successfully loaded '{model}'" in log


def test_memory_and_places_come_from_the_plan(tmp_path) -> None:
    """Two engines that share no GPU, orchestrated: fractions and tokens as planned, each on its own GPUs."""
    deployment = built(
        tmp_path,
        "draft_target",
        target={"checkpoint": TARGET, "tp_size": 2},
        draft={"checkpoint": DRAFT, "gpu_ids": [2]},
    )
    shares = {share["role"]: share for share in deployment.run_json("plan")["memory"]["kv_shares"]}
    assert deployment.run("repo").returncode == 0
    manifest = json.loads((repository(deployment) / "specdeploy.json").read_text())

    assert manifest["serving"] == {"mode": "orchestrator", "spawn": True, "processes": 1}
    for role, model, gpus in (("target", "tensorrt_llm", "0,1"), ("draft", "tensorrt_llm_draft", "2")):
        seen = parameters(deployment, model)
        assert seen["gpu_device_ids"] == gpus
        assert float(seen["kv_cache_free_gpu_mem_fraction"]) == pytest.approx(shares[role]["fraction"])
        assert seen["max_tokens_in_paged_kv_cache"] == str(shares[role]["tokens"])


def test_the_repository_names_no_folder_of_the_machine(tmp_path) -> None:
    """Engines are named relative to it; with --engine-root they are where that says."""
    deployment = built(tmp_path, "ngram")
    assert deployment.run("repo").returncode == 0
    relative = parameters(deployment)["gpt_model_path"]
    assert (repository(deployment) / relative / "rank0.engine").is_file()
    files = (file for file in repository(deployment).rglob("*") if file.suffix in {".pbtxt", ".json"})
    assert not [file for file in files if str(tmp_path) in file.read_text()]

    assert deployment.run("repo", "--engine-root", "/mnt/engines").returncode == 0
    assert parameters(deployment)["gpt_model_path"] == f"/mnt/engines/{Path(relative).name}"


def _half(engine: Path) -> None:
    (engine / "rank0.engine").unlink()


def _rewritten(engine: Path) -> None:
    (engine / "rank0.engine").write_bytes(b"another engine")


@pytest.mark.parametrize("damage", [_half, _rewritten, shutil.rmtree])
def test_engines_that_are_not_there_as_built_are_refused(tmp_path, damage) -> None:
    """Missing, half written or changed since: exit code 2, the engine's name, what to do, and no repository."""
    deployment = built(tmp_path, "ngram")
    (engine,) = deployment.engines()
    damage(engine)

    done = deployment.run("repo")

    assert done.returncode == 2
    assert "specdeploy build" in done.stderr
    assert not repository(deployment).exists()


def test_engines_of_another_release_are_not_taken(tmp_path) -> None:
    """The configuration says another release than the one that built: its engines are not there."""
    deployment = built(tmp_path, "ngram", "1.2.1")

    done = deployment.run("repo", "--set", "release=1.0.0")

    assert done.returncode == 2
    assert "no engine" in done.stderr
    assert not repository(deployment).exists()


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path) -> None:
    """Not a file in it is touched."""
    deployment = built(tmp_path, "ngram")
    repository(deployment).mkdir(parents=True)
    (repository(deployment) / "theirs.txt").write_text("keep")

    done = deployment.run("repo")

    assert done.returncode == 2
    assert "was not written by specdeploy" in done.stderr
    assert [file.name for file in repository(deployment).iterdir()] == ["theirs.txt"]


def test_more_gpus_than_there_are_is_said_at_the_check(tmp_path) -> None:
    """Before anything is built."""
    settings = {**GPU, "target": {"checkpoint": TARGET, "gpu_ids": [7]}}
    deployment = write_gpu_deployment(tmp_path, method="ngram", gpus=4, settings=settings)

    done = deployment.run("check")

    assert done.returncode == 2
    assert "GPU 7 is named, and gpu.count is 4" in done.stdout + done.stderr


@pytest.mark.triton
def test_the_llm_api_has_its_checkpoints_named_from_the_repository(tmp_path) -> None:
    """Nothing is compiled; the arguments come along, and the checkpoints are found relative to the repository."""
    folder = tmp_path / "deployment"
    write_gpu_deployment(folder, method="ngram")
    perturb_checkpoint(folder / TARGET, folder / DRAFT, 0.02)
    document = yaml.safe_load((folder / "specdeploy.yaml").read_text())
    document |= {"profile": "llmapi", "draft": {"checkpoint": DRAFT}, "speculation": {"method": "draft_target"}}
    (folder / "specdeploy.yaml").write_text(yaml.safe_dump(document))
    deployment = write_gpu_deployment(tmp_path / "other", method="ngram")
    for command in ("build", "repo"):
        done = deployment.run(command, "--config", str(folder / "specdeploy.yaml"))
        assert done.returncode == 0, done.stderr
    models = folder / "triton_repo" / "models"
    arguments = yaml.safe_load((models / "speculative_decoder" / "1" / "model.yaml").read_text())

    assert (models / arguments["model"]).resolve() == (folder / TARGET).resolve()
    drafts = [value for key, value in arguments["speculative_config"].items() if key.startswith("speculative_model")]
    assert [(models / draft).resolve() for draft in drafts] == [(folder / DRAFT).resolve()]
