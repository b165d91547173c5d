"""The generated repository with Python models in the engines' place, whose answers a test or a benchmark scripts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from specdeploy.triton.pbtxt import InstanceGroup, parse, render
from specdeploy.triton.repository import EngineFacts, build_repository, names
from specdeploy.triton.sources import model_sources
from tests.unit.triton_models.tokenizers_for_tests import END, byte_level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from specdeploy.config.schema import DeployConfig


def end_id() -> int:
    """Return the end token's id."""
    return byte_level().token_to_id(END)


def facts(name: str, max_seq_len: int) -> EngineFacts:
    """Return what would be known of an engine that is not there."""
    return EngineFacts(
        key="0" * 64,
        name=name,
        profile="cpu",
        precision="fp32",
        checkpoint=name,
        size_bytes=1,
        vocab_size=byte_level().get_vocab_size(),
        max_seq_len=max_seq_len,
        eos_token_ids=(end_id(),),
    )


def write_repository(
    path: Path,
    deployment: DeployConfig,
    model: Path,
    parameters: Callable[[str], Mapping[str, str]],
    *,
    instances: int = 1,
    modules: Iterable[Path] = (),
    more: Mapping[str, bytes] | None = None,
) -> None:
    """Write the repository of a deployment.

    Args:
        path: Where.
        deployment: The deployment.
        model: The source of the engines' model.
        parameters: Makes the parameters of an engine of the name of its model.
        instances: Processes of each engine.
        modules: What the model imports.
        more: Further files, by their path in the repository.
    """
    roles = names.engine_models(deployment)
    tree = dict(
        build_repository(
            deployment,
            {role: facts(role, deployment.build.max_seq_len) for role in roles},
            engine_paths=dict.fromkeys(roles, "none"),
            tokenizer_files={"tokenizer.json": byte_level().to_str().encode()},
            sources=model_sources(),
        )
    )
    for name in roles.values():
        engine = dataclasses.replace(
            parse(tree[f"{name}/config.pbtxt"].decode()),
            backend="python",
            instance_group=(InstanceGroup(count=instances),),
            parameters=dict(parameters(name)),
        )
        tree[f"{name}/config.pbtxt"] = render(engine).encode()
        tree[f"{name}/1/model.py"] = model.read_bytes()
        tree |= {f"{name}/1/{module.name}": module.read_bytes() for module in modules}
    for name, data in {**tree, **(more or {})}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
