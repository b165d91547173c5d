"""What is measured and how it is reached; shared by the stages that measure."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.prompts import BUNDLED, load_bundled, parse_prompts
from specdeploy.engine.tensorrt_llm.methods import max_draft_len
from specdeploy.errors import ConfigError
from specdeploy.pipeline.launching import runner_of
from specdeploy.pipeline.machine import image_digest, image_name
from specdeploy.pipeline.workspace import workspace
from specdeploy.system.clock import SystemClock
from specdeploy.system.files import require_regular
from specdeploy.triton.client.triton import TritonClient
from specdeploy.triton.repository import names
from specdeploy.unique_keys import RepeatedKey, unique_keys

if TYPE_CHECKING:
    from pathlib import Path

    from specdeploy.bench.prompts import PromptSet
    from specdeploy.config.load import LoadedConfig
    from specdeploy.config.schema import DeployConfig
    from specdeploy.pipeline.serving import Addresses

#: The largest file of prompts: three times ShareGPT's, which is read as a whole.
_MOST_BYTES: Final = 2 * 2**30
#: No count, size or time that is measured comes near.
_MOST_WHOLE: Final = 10**24
#: By which NVIDIA's images of Triton say which they are.
_IMAGE_VARIABLES: Final = ("NVIDIA_TRITON_SERVER_VERSION", "NVIDIA_BUILD_ID")


def provenance(loaded: LoadedConfig) -> dict[str, Any]:
    """Return what every result says of itself: when, and of which deployment."""
    return {"created": SystemClock().now_iso(), "deployment": deployment(loaded)}


def deployment(loaded: LoadedConfig) -> dict[str, Any]:
    """Say what is measured; the engine keys come from the repository that is served, not from what would be built."""
    return configured(loaded) | {"image": _image(loaded)}


def configured(loaded: LoadedConfig) -> dict[str, Any]:
    """Return :func:`deployment` without what a container engine has to be asked for."""
    config = loaded.config
    manifest = read_document(workspace(loaded).repository / names.MANIFEST) or {}
    return {
        "name": config.name,
        "profile": config.profile,
        "release": config.release,
        # Asked for by `deployment`; here for its place.
        "image": "",
        "speculation": dataclasses.asdict(config.speculation),
        "max_seq_len": config.build.max_seq_len,
        "max_sequences": config.build.max_batch_size,
        "engines": manifest.get("engines", {}),
    }


def _image(loaded: LoadedConfig) -> str:
    """Return the image that the server runs in, with its digest where it can be asked for; empty without one."""
    config = loaded.config
    try:
        runner = runner_of(loaded)
        if runner == "local":
            # Inside of NVIDIA's own image these are set.
            told = [f"{name} {os.environ[name]}" for name in _IMAGE_VARIABLES if os.environ.get(name)]
            return ", ".join(told) if config.profile != "cpu" else ""
        if runner != "container":
            return ""
        name = image_name(config)
    except ConfigError:
        # Such a server could not be started from here, so it runs elsewhere, in what the configuration names.
        return config.container.image
    digest = None if "@" in name else image_digest(config)
    return name if digest is None else f"{name}@{digest}"


def connect(endpoints: Addresses, timeout_s: float) -> TritonClient:
    """Return a client of a deployment, to be closed."""
    return TritonClient(endpoints.http_url, endpoints.grpc_url, metrics_url=endpoints.metrics_url, timeout_s=timeout_s)


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
    path, text = text_of(loaded, name, what)
    return parse_prompts(text, source=str(path), name=path.name)


def text_of(loaded: LoadedConfig, name: str, what: str, *, also: str = "") -> tuple[Path, str]:
    """Return the path of a user's file of prompts, and what it holds.

    Args:
        loaded: As in :func:`prompts_of`.

        name: The path.

        what: As in :func:`prompts_of`.

        also: What else there is than bundled sets and files, for messages.

    Raises:
        ConfigError: There is no such file, it is no regular one or too large, or it cannot be read.
    """
    path = loaded.resolve(name)
    try:
        _check_file(path, what)
        # Editors of Windows put a byte order mark in front.
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"{what} is {name!r}: neither a bundled prompt set nor a file ({path})",
            hint=f"bundled are {', '.join(BUNDLED)}{also}",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: {path} cannot be read: {error}") from error
    return path, text


def _check_file(path: Path, what: str) -> None:
    """Refuse what cannot be read to its end: a device, a pipe that nobody writes to, more than memory takes."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{what}: {path} is no regular file", hint="Write the prompts into a file, and name that.")
    if status.st_size > _MOST_BYTES:
        raise ConfigError(
            f"{what}: {path} has {status.st_size:,} bytes, more than {_MOST_BYTES:,}",
            hint="Keep those lines or conversations that a run sends.",
        )


def _ordinary(digits: str) -> int:
    """Read a whole number that a float can hold, as all are that are measured."""
    number = int(digits)
    if abs(number) >= _MOST_WHOLE:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return number


def read_document(path: Path) -> dict[str, Any] | None:
    """Return the JSON object of a file; None when there is no file.

    Raises:
        ConfigError: It cannot be read, has a key twice, or holds something else.
    """
    try:
        require_regular(path)
        text = path.read_text(encoding="utf-8")
        document = json.loads(text, object_pairs_hook=unique_keys, parse_int=_ordinary)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="report.path must be a folder that we may write to"
        ) from error
    except RepeatedKey as error:
        said = f"{path} is not JSON: an object has the key {error.key!r} twice"
        raise ConfigError(said, hint="measure again") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}", hint="measure again") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds {type(document).__name__} where an object belongs", hint="measure again")
    return document
