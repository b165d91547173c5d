"""What is measured and how it is reached; shared by the stages that measure."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from specdeploy.bench.prompts import (
    BUNDLED,
    Trace,
    has_lengths,
    is_trace,
    load_bundled,
    parse_prompts,
    parse_workload,
)
from specdeploy.engine.tensorrt_llm.methods import max_draft_len
from specdeploy.errors import ConfigError
from specdeploy.pipeline.tokenizing import synthesiser_of
from specdeploy.pipeline.workspace import workspace
from specdeploy.system.clock import SystemClock
from specdeploy.triton.client.triton import TritonClient
from specdeploy.triton.repository import names
from specdeploy.triton.repository.models import engine_drafts

if TYPE_CHECKING:
    from pathlib import Path

    from specdeploy.bench.prompts import PromptSet
    from specdeploy.config.load import LoadedConfig
    from specdeploy.config.schema import DeployConfig
    from specdeploy.pipeline.serving import Addresses


def provenance(loaded: LoadedConfig) -> dict[str, Any]:
    """Return what every result says of itself: when, and of which deployment."""
    return {"created": SystemClock().now_iso(), "deployment": deployment(loaded)}


def deployment(loaded: LoadedConfig) -> dict[str, Any]:
    """Say what is measured; the engine keys come from the repository that is served, not from what would be built."""
    config = loaded.config
    manifest = read_document(workspace(loaded).repository / names.MANIFEST) or {}
    return {
        "name": config.name,
        "profile": config.profile,
        "speculation": dataclasses.asdict(config.speculation),
        "max_seq_len": config.build.max_seq_len,
        "max_sequences": config.build.max_batch_size,
        "engines": manifest.get("engines", {}),
    }


def connect(endpoints: Addresses, timeout_s: float) -> TritonClient:
    """Return a client of a deployment, to be closed."""
    return TritonClient(endpoints.http_url, endpoints.grpc_url, metrics_url=endpoints.metrics_url, timeout_s=timeout_s)


def fixed_by(config: DeployConfig) -> str:
    """Return the method where no request can say how much is drafted; empty where one can."""
    return config.speculation.method if config.profile == "llmapi" or engine_drafts(config) else ""


def most_drafts(config: DeployConfig) -> int | None:
    """Return how many drafts a request may ask for; CPU engines are not built for a number."""
    return None if config.profile == "cpu" else max_draft_len(config.speculation)


def prompts_of(loaded: LoadedConfig, name: str, what: str) -> PromptSet:
    """Return a bundled prompt set, or that of a file.

    Args:
        loaded: The configuration, which a relative path is relative to.

        name: One of `BUNDLED`, or the path of a file of prompts: JSON Lines, or conversations as ShareGPT has them.

        what: The key or option that names it, for messages.

    Raises:
        ConfigError: There is no such set or file, or it cannot be read.
    """
    if name in BUNDLED:
        return load_bundled(name)
    path, text = _text_of(loaded, name, what)
    return parse_prompts(text, source=str(path), name=path.name)


def workload_of(loaded: LoadedConfig, name: str, what: str) -> tuple[PromptSet, Trace | None]:
    """Return what a load test sends: prompts, and the trace that they are from, if it is one.

    Args:
        loaded: As in :func:`prompts_of`.

        name: As in :func:`prompts_of`; a file may also be a trace, whose texts are made with the target's tokenizer
            where it has lengths alone.

        what: As in :func:`prompts_of`.

    Raises:
        ConfigError: As :func:`prompts_of`; or there is no such tokenizer.

        ToolMissing: The package that reads it is not installed.
    """
    if name in BUNDLED:
        return load_bundled(name), None
    path, text = _text_of(loaded, name, what)
    synthesiser = synthesiser_of(loaded) if is_trace(text) and has_lengths(text) else None
    workload = parse_workload(text, source=str(path), name=path.name, synthesiser=synthesiser)
    return (workload.prompt_set, workload) if isinstance(workload, Trace) else (workload, None)


def _text_of(loaded: LoadedConfig, name: str, what: str) -> tuple[Path, str]:
    path = loaded.resolve(name)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{what} is {name!r}: neither a bundled prompt set nor a file ({path})",
            hint=f"bundled are {', '.join(BUNDLED)}",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: {path} cannot be read: {error}") from error
    return path, text


def read_document(path: Path) -> dict[str, Any] | None:
    """Return the JSON object of a file; None when there is no file.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="report.path must be a folder that we may write to"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}", hint="measure again") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds {type(document).__name__} where an object belongs", hint="measure again")
    return document
