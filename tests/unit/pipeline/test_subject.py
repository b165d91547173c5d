"""What a result says of the deployment that was measured: the image that its server runs in."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from specdeploy.config.load import LoadedConfig
from specdeploy.config.schema import ContainerConfig, DeployConfig, DraftConfig, ModelConfig, ServeConfig
from specdeploy.errors import ConfigError
from specdeploy.pipeline.subject import deployment, read_document

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = DeployConfig(
    name="pair",
    profile="tensorrt_llm",
    release="1.2.1",
    target=ModelConfig(checkpoint="a"),
    draft=DraftConfig(checkpoint="b"),
)
DIGEST = "sha256:" + "0" * 64
OWN = "registry.local/triton:nightly"


@pytest.fixture(name="docker", autouse=True)
def _docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container engine on an otherwise empty PATH, which knows one image."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$5" = {OWN} ] && echo registry.local/triton@{DIGEST}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    for name in ("NVIDIA_TRITON_SERVER_VERSION", "NVIDIA_BUILD_ID"):
        monkeypatch.delenv(name, raising=False)
    return program


def image(folder: Path, **changes) -> str:
    """The image of a deployment."""
    told = deployment(LoadedConfig(config=dataclasses.replace(CONFIG, **changes), base_dir=folder, origin={}))
    return told["image"]


def test_a_server_in_a_container_has_its_image(tmp_path: Path) -> None:
    """NVIDIA's of the release where none is named; with the digest that a name means today, where it is known."""
    pinned = f"{OWN}@{DIGEST}"

    assert image(tmp_path) == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert image(tmp_path, container=ContainerConfig(image=OWN)) == pinned
    assert image(tmp_path, container=ContainerConfig(image=pinned)) == pinned
    own = {"serve": ServeConfig(runner="container"), "container": ContainerConfig(image=OWN)}
    assert image(tmp_path, profile="cpu", **own) == pinned


def test_a_server_in_none_has_none(tmp_path: Path, docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless all of us is in NVIDIA's image, which says which it is."""
    (docker.parent / "tritonserver").symlink_to("docker")

    assert image(tmp_path, profile="cpu", container=ContainerConfig(image=OWN)) == ""
    assert image(tmp_path, container=ContainerConfig(image=OWN)) == ""
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "26.06")
    monkeypatch.setenv("NVIDIA_BUILD_ID", "123")
    assert image(tmp_path) == "NVIDIA_TRITON_SERVER_VERSION 26.06, NVIDIA_BUILD_ID 123"
    assert image(tmp_path, profile="cpu") == ""


def test_what_cannot_be_started_here_has_what_is_named(tmp_path: Path) -> None:
    """It is measured where it runs."""
    assert image(tmp_path, serve=ServeConfig(runner="embedded"), container=ContainerConfig(image=OWN)) == OWN


def test_a_document_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    """One of the two values would be taken, without a word."""
    path = tmp_path / "smoke.json"
    path.write_text('{"checks": [{"status": "fail", "status": "pass"}]}')

    with pytest.raises(ConfigError, match="the key 'status' twice"):
        read_document(path)
