"""What a careful reviewer asks of builds: is the right thing rebuilt, refused or said, in odd circumstances, too?"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.gpu_deployments import BUILDER, CONVERTER, TARGET, write_gpu_deployment
from tests.tiny import write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gpu_deployments import GpuDeployment


@pytest.fixture
def deployment(tmp_path: Path) -> GpuDeployment:
    """One engine, so that every command is short."""
    return write_gpu_deployment(tmp_path)


def _key(deployment: GpuDeployment, *arguments: str, env: dict[str, str] | None = None) -> str:
    key: str = deployment.run_json("plan", *arguments, env=env)["engines"][0]["key"]
    return key


def test_a_variable_that_changes_the_engine_changes_its_key(deployment: GpuDeployment) -> None:
    """It reaches the builder, and is what the manifest says."""
    given = {"BUILDER_FORCE_NUM_PROFILES": "3"}

    assert _key(deployment, env=given) != _key(deployment)
    built = deployment.run_json("build", env=given)["target"]
    assert built["parts"]["build"]["BUILDER_FORCE_NUM_PROFILES"] == "3"


def test_what_a_named_file_holds_is_part_of_the_key(deployment: GpuDeployment) -> None:
    """A LoRA that was trained on is another engine, under the same path; a copied one is not looked at by name only."""
    folder = deployment.folder / "lora"
    folder.mkdir()
    (folder / "adapter").write_text("one")
    argument = ("--set", f"target.extra_build_args=[--lora_dir {folder}]")
    before = _key(deployment, *argument)
    (folder / "adapter").write_text("two")

    after = _key(deployment, *argument)

    assert before != after
    planned = deployment.run_json("plan", *argument)["engines"][0]
    assert str(folder) in planned["steps"][-1]["inputs"]


def test_an_edit_of_any_tensor_is_another_engine(deployment: GpuDeployment) -> None:
    """Also of one in the middle of the file, with size and time as they were."""
    write_tiny_checkpoint(deployment.folder / TARGET, seed=1, hidden=256, layers=4)
    before = _key(deployment)
    file = deployment.folder / TARGET / "model.safetensors"
    data = bytearray(file.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    begin, end = header["model.layers.1.mlp.down_proj.weight"]["data_offsets"]
    start = len(data) - max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    data[start + begin : start + end] = bytes(end - begin)
    file.write_bytes(data)

    assert _key(deployment) != before


def test_a_checkpoint_in_a_hubs_cache_has_the_models_name(deployment: GpuDeployment) -> None:
    """And not that of the snapshot, which is a hash."""
    snapshot = (
        deployment.folder / "models--lmsys--vicuna-7b-v1.3" / "snapshots" / "236eeeab96f0dc2e463f2bebb7bb49809279c6d6"
    )
    shutil.copytree(deployment.folder / TARGET, snapshot)

    planned = deployment.run_json("plan", "--set", f"target.checkpoint={snapshot}")

    assert planned["engines"][0]["name"].startswith("vicuna-7b-v1.3-")


def test_braces_in_a_path_are_the_users(deployment: GpuDeployment) -> None:
    """Even when they look like our own placeholders."""
    for name in ("brace{output}", "scr{scratch}", "pre {previous} vious"):
        shutil.copytree(deployment.folder / TARGET, deployment.folder / name)
        done = deployment.run("build", "--set", f"target.checkpoint={name}", "--set", "build.max_batch_size=2")
        assert done.returncode == 0, done.stderr
    sources = [call["argv"][call["argv"].index("--model_dir") + 1] for call in deployment.calls(CONVERTER)]
    assert sources == [str(deployment.folder / "brace{output}")]  # the others are copies of it: hits


def test_more_stages_than_layers_is_a_finding(deployment: GpuDeployment) -> None:
    """And no crash of the memory plan."""
    done = deployment.run("check", "--set", "target.pp_size=3", "--set", "gpu.count=8")

    assert done.returncode == 2
    assert "fitness." in done.stdout


def test_everything_that_is_wrong_with_both_checkpoints_comes_at_once(tmp_path: Path) -> None:
    """As findings with codes and cures, for people and as one JSON document; exit code 2."""
    deployment = write_gpu_deployment(tmp_path, method="draft_target")
    weights = tmp_path / TARGET / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    shutil.rmtree(tmp_path / "tiny-draft")

    shown, document = deployment.run("check"), deployment.run("check", "--json")

    assert (shown.returncode, document.returncode) == (2, 2)
    assert "checkpoint.truncated" in shown.stderr
    assert "checkpoint.missing" in shown.stderr
    error = json.loads(document.stdout)
    assert (error["kind"], error["ok"], error["exit_code"]) == ("error", False, 2)
    assert [(finding["code"], finding["where"]) for finding in error["findings"]] == [
        ("checkpoint.truncated", "target"),
        ("checkpoint.missing", "draft"),
    ]
    assert all(finding["hint"] for finding in error["findings"])


def test_a_build_on_another_gpu_than_the_named_one_is_refused(deployment: GpuDeployment) -> None:
    """Planning for a machine elsewhere is fine and says so; building here would store what the engine is not."""
    elsewhere = ("--set", "gpu.name=A100-80GB")

    planned, refused = deployment.run("plan", *elsewhere), deployment.run("build", *elsewhere)

    assert (planned.returncode, refused.returncode) == (0, 2)
    assert "warning gpu.differs" in planned.stdout
    assert "error gpu.differs" in refused.stderr
    assert deployment.calls(BUILDER) == []


def test_a_damaged_engine_is_the_reason_for_its_miss(deployment: GpuDeployment) -> None:
    """And not whatever differs from some other engine."""
    key = deployment.run_json("build")["target"]["key"]
    (deployment.folder / "engines" / key[:16] / "rank0.engine").unlink()

    assert "miss: the stored engine is damaged: rank0.engine is missing" in deployment.run("plan").stdout
    assert deployment.run("build").returncode == 0


def test_an_image_of_another_release_is_found_on_a_cluster_too(deployment: GpuDeployment) -> None:
    """Where pyxis writes the name of the image with a # after the registry."""
    image = "nvcr.io#nvidia/tritonserver:25.01-trtllm-python-py3"
    done = deployment.run("check", "--set", "build.runner=slurm", "--set", f"slurm.container_image={image}")

    assert done.returncode == 2
    assert "surroundings.image" in done.stdout


def test_out_of_memory_says_what_to_lower(deployment: GpuDeployment) -> None:
    """The log's tail says what happened; the hint what helps."""
    deployment.fail(builder="out_of_memory")

    done = deployment.run("build")

    assert done.returncode == 4
    assert "Lower build.max_batch_size" in done.stderr
