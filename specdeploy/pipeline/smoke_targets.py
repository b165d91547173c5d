"""Servers that are not ours, as targets of the smoke test: how to reach them, and what to expect of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from specdeploy.pipeline.openai_server import find_server, time_left
from specdeploy.smoke.targets import (
    FrontDoor,
    Target,
    ensemble_steps,
    is_decoupled,
    nvidia_expectations,
    openai_expectations,
)
from specdeploy.triton.client import TritonClient
from specdeploy.triton.client.templates import TemplatesClient
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.config.schema import DeployConfig
    from specdeploy.pipeline.serving import Addresses

__all__ = ["Target", "nvidia_target", "openai_target"]


def openai_target(
    url: str, *, model: str | None, config: DeployConfig, api_key_env: str | None = None, limit_s: float = math.inf
) -> Target:
    """Return an OpenAI-compatible server as a target, after asking it what it offers.

    Args:
        url: Its address, with or without ``/v1``.

        model: Name of the model; None takes the only one that it has.

        config: The deployment that it is compared with: lengths and limits of the smoke test are its own.

        api_key_env: Environment variable that holds the key; None sends none.

        limit_s: What asking it may take (seconds).

    Raises:
        ConfigError: The URL, the model or the variable is not usable.

        ServerFault: The server cannot be reached, or fails at the plainest request.
    """
    server = find_server(
        url, model=model, api_key_env=api_key_env, timeout_s=config.smoke.request_timeout_s, limit_s=limit_s
    )
    return Target(
        # Checks that call what only Triton has are skipped for want of a capability.
        client_factory=lambda: cast("TritonClient", server.connect(config.smoke.request_timeout_s)),
        expectations=openai_expectations(server.dialect, about=server.about, model=server.model, config=config),
    )


def nvidia_target(endpoints: Addresses, *, front_door: str, config: DeployConfig, limit_s: float = math.inf) -> Target:
    """Return NVIDIA's templates on Triton as a target, after asking the server what they are.

    Args:
        endpoints: Where the server answers.

        front_door: ``ensemble``, ``tensorrt_llm_bls``, or what they were renamed to.

        config: The deployment that the templates were filled in for.

        limit_s: What asking the server may take (seconds).

    Raises:
        ServerFault: The server cannot be reached, or has no such model.
    """
    timeout_s = config.smoke.request_timeout_s
    with TritonClient(endpoints.http_url, endpoints.grpc_url, model=front_door, timeout_s=timeout_s) as client:
        door = _front_door(client, front_door, time_left(limit_s, timeout_s))

    def connect() -> TritonClient:
        return TemplatesClient(
            endpoints.http_url,
            endpoints.grpc_url,
            num_draft_tokens=config.speculation.num_draft_tokens,
            streams=door.streams,
            metrics_url=endpoints.metrics_url,
            model=front_door,
            timeout_s=timeout_s,
        )

    metrics = endpoints.metrics_url is not None
    return Target(client_factory=connect, expectations=nvidia_expectations(door, config=config, metrics=metrics))


def _front_door(client: TritonClient, name: str, left: Callable[[], float]) -> FrontDoor:
    model_config = client.model_config(name, timeout_s=left())
    steps = ensemble_steps(model_config)
    engine = names.TARGET in steps or client.model_ready(names.TARGET, timeout_s=left())
    configs = (model_config, *(client.model_config(step, timeout_s=left()) for step in steps))
    return FrontDoor(
        metadata=client.metadata(name, timeout_s=left()),
        steps=steps,
        streams=any(is_decoupled(found) for found in configs),
        engine=engine and "input_ids" in client.metadata(names.TARGET, timeout_s=left()).input_types,
    )
