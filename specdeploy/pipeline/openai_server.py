"""An OpenAI-compatible server that the user names: which model it is asked for, with which key, and what it offers."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from typing import TYPE_CHECKING, Any

from specdeploy.bench.records import utf8
from specdeploy.errors import ConfigError
from specdeploy.openai import Dialect, OpenAIClient, ServerAddress, ask_dialect
from specdeploy.openai.redact import Redactor
from specdeploy.report.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenAIServer:
    """A server that has answered.

    Args:
        address: Where it is.

        model: The model that it is asked for.

        about: What it says of that model.

        dialect: What it offers.

        api_key: Its key, if it needs one; never part of a message or a document.
    """

    address: ServerAddress
    model: str
    about: Mapping[str, Any]
    dialect: Dialect
    api_key: str | None = dataclasses.field(default=None, repr=False)

    @property
    def shown_model(self) -> str:
        """What the model is called in documents: a server may repeat the key even there, or half a character."""
        return utf8(Redactor(self.api_key).text(self.model))

    def connect(self, timeout_s: float) -> OpenAIClient:
        """Return a client, to be closed."""
        return OpenAIClient(
            self.address, model=self.model, dialect=self.dialect, api_key=self.api_key, timeout_s=timeout_s
        )


def find_server(
    url: str, *, model: str | None, api_key_env: str | None, timeout_s: float, limit_s: float = math.inf
) -> OpenAIServer:
    """Ask a server for its models, and by a few short requests for what it offers.

    Args:
        url: Its address, with or without ``/v1``.

        model: Name of the model; None takes the only one that it has.

        api_key_env: Environment variable that holds the key; None sends none.

        timeout_s: Deadline of each request.

        limit_s: What all of them may take together (seconds).

    Raises:
        ConfigError: The URL, the model or the variable is not usable.

        ServerFault: The server cannot be reached, or fails at the plainest request.
    """
    address = ServerAddress.parse(url)
    key = None if api_key_env is None else _key(api_key_env)
    left = time_left(limit_s, timeout_s)

    def connect(dialect: Dialect, name: str) -> OpenAIClient:
        return OpenAIClient(address, model=name, dialect=dialect, api_key=key, timeout_s=left())

    with connect(Dialect(), "") as client:
        about = _about(client.models(), model, Redactor(key))
    name = str(about["id"])
    dialect = ask_dialect(lambda guess: connect(guess, name))
    return OpenAIServer(address=address, model=name, about=about, dialect=dialect, api_key=key)


def time_left(limit_s: float, each_s: float) -> Callable[[], float]:
    """Return what says how long the next of several calls may take: no longer than each, and than is left for all.

    Args:
        limit_s: What all of them may take together (seconds), from now.

        each_s: What one of them may take (seconds).
    """
    ends_at = time.monotonic() + limit_s
    return lambda: max(min(each_s, ends_at - time.monotonic()), 0.0)


def _about(models: tuple[dict[str, Any], ...], wanted: str | None, redact: Redactor) -> dict[str, Any]:
    """Return what the server says of the model; a name that it does not list is believed, as some servers take any.

    Raises:
        ConfigError: No name is given, and there is not exactly one to take.
    """
    if wanted is None and len(models) == 1:
        return models[0]
    listed = one_line(redact.text(", ".join(str(model["id"]) for model in models))) or "none"
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
