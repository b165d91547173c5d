"""Servers that are not ours, as targets of the smoke test: how to reach them, and what to expect of them."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any, cast

from specdeploy.errors import ConfigError
from specdeploy.openai import Dialect, OpenAIClient, ServerAddress, ask_dialect
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
    address = ServerAddress.parse(url)
    key = None if api_key_env is None else _key(api_key_env)
    timeout_s = config.smoke.request_timeout_s
    left = _time_left(limit_s, timeout_s)

    def connect(dialect: Dialect, name: str, timeout_s: float) -> OpenAIClient:
        return OpenAIClient(address, model=name, dialect=dialect, api_key=key, timeout_s=timeout_s)

    with connect(Dialect(), "", left()) as client:
        about = _about(client.models(), model)
    name = str(about["id"])
    dialect = ask_dialect(lambda guess: connect(guess, name, left()))
    return Target(
        # Checks that call what only Triton has are skipped for want of a capability.
        client_factory=lambda: cast("TritonClient", connect(dialect, name, timeout_s)),
        expectations=openai_expectations(dialect, about=about, model=name, config=config),
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
        door = _front_door(client, front_door, _time_left(limit_s, timeout_s))

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


def _about(models: tuple[dict[str, Any], ...], wanted: str | None) -> dict[str, Any]:
    """Return what the server says of the model; a name that it does not list is believed, as some servers take any.

    Raises:
        ConfigError: No name is given, and there is not exactly one to take.
    """
    if wanted is None and len(models) == 1:
        return models[0]
    listed = ", ".join(str(model["id"]) for model in models) or "none"
    if wanted is None:
        raise ConfigError(f"which model is to be asked? The server has {listed}", hint="name one with --api-model")
    return next((model for model in models if model["id"] == wanted), {"id": wanted})


def _key(variable: str) -> str:
    """Return the key that an environment variable holds; no message ever repeats it.

    Raises:
        ConfigError: The variable is not set, or holds what cannot stand in a header.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"the environment variable {variable} holds no key", hint=f"export {variable}=...")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"the key in {variable} has characters that no HTTP header can hold", hint="copy it anew")
    return key


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


def _time_left(limit_s: float, each_s: float) -> Callable[[], float]:
    """Return what says how long the next of several calls may take: no longer than each, and than is left for all."""
    ends_at = time.monotonic() + limit_s
    return lambda: max(min(each_s, ends_at - time.monotonic()), 0.0)
