"""Where an OpenAI-compatible server is: ``http[s]://host[:port][/path][/v1]``. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from specdeploy.errors import ConfigError
from specdeploy.triton.client.http import is_host, without_secrets

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_HINT: Final = (
    "Write it as http://127.0.0.1:8000 or https://host/path, without a user, a key or a query; /v1 at its end may be "
    "left out."
)
_VERSION: Final = "/v1"
_PORTS: Final = {"http": 80, "https": 443}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """A parsed URL.

    Args:
        host: Host and port, as ``host:port``.

        tls: Whether it is https.

        root: Path in front of ``/v1``, ``/health`` and ``/metrics``; usually empty.
    """

    host: str
    tls: bool
    root: str = ""

    @property
    def api(self) -> str:
        """Path of the API, such as ``/v1``."""
        return f"{self.root}{_VERSION}"

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Read a URL.

        Raises:
            ConfigError: Another scheme, no host, or something that does not belong into the address of a server. A
                password or a key in it is not repeated.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise _refused(url) from None
        if "@" in parts.netloc:
            raise ConfigError(
                "the server's URL holds a user or a password", hint="Put the key into an environment variable instead."
            )
        if parts.scheme not in _PORTS or not host or not is_host(host) or not _is_plain(url, parts):
            raise _refused(url)
        shown = f"[{host}]" if ":" in host else host
        return cls(
            host=f"{shown}:{port or _PORTS[parts.scheme]}",
            tls=parts.scheme == "https",
            root=parts.path.rstrip("/").removesuffix(_VERSION),
        )


def _is_plain(url: str, parts: SplitResult) -> bool:
    """Whether there is nothing but a place, in characters that a request can hold."""
    return not parts.query and not parts.fragment and url.isprintable() and parts.path.isascii() and " " not in url


def _refused(url: str) -> ConfigError:
    return ConfigError(f"{without_secrets(url)!r} is no address of an OpenAI-compatible server", hint=_HINT)
