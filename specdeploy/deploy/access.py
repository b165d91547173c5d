"""Who may use a server: parts of its API that want a header with a secret, and the certificates of its gRPC endpoint.

Knows how tritonserver spells both. Does not read files or the environment: the caller hands in what a name means.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdeploy.config.schema import ServeConfig

# As `tritonserver --help` lists them, for both protocols.
APIS: Final = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
BLOTTED: Final = "***"
_ENV: Final = "env:"
_HEADER: Final = re.compile(r"[A-Za-z0-9_-]+")
# A client of gRPC puts this in front of the header's name.
_GRPC_PREFIX: Final = "triton-grpc-protocol-"
_FORM: Final = "write it as `health,statistics:x-admin=env:ADMIN_SECRET`"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restriction:
    """Parts of the API that only answer requests with one header.

    Args:
        apis: The parts.
        header: Name of the header.
        secret: Its value.
    """

    apis: tuple[str, ...]
    header: str
    secret: str = dataclasses.field(repr=False)

    def setting(self) -> str:
        """Return the value of tritonserver's option."""
        return f"{','.join(self.apis)}:{self.header}={self.secret}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """What a server asks of its clients.

    Args:
        http: Restrictions of the HTTP endpoint.
        grpc: Restrictions of the gRPC endpoint.
        tls_cert: Certificate of the gRPC endpoint; empty is no TLS.
        tls_key: Its key.
        tls_ca: Authority that clients' certificates must be signed by; empty asks for none.
    """

    http: tuple[Restriction, ...] = ()
    grpc: tuple[Restriction, ...] = ()
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""

    def headers(self, api: str) -> dict[str, str]:
        """Return the headers that a request to a part of the HTTP API must carry."""
        return {item.header: item.secret for item in self.http if api in item.apis}

    def metadata(self, api: str) -> dict[str, str]:
        """Return the same for gRPC."""
        return {f"{_GRPC_PREFIX}{item.header}": item.secret for item in self.grpc if api in item.apis}

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the server reads for it."""
        return tuple(path for path in (self.tls_cert, self.tls_key, self.tls_ca) if path)

    def flags(self) -> Iterator[str]:
        """Yield tritonserver's options."""
        if self.tls_cert:
            # Mutual TLS is a mode of its own, which takes the place of the plain one.
            yield f"--grpc-use-ssl{'-mutual' if self.tls_ca else ''}=true"
            yield f"--grpc-server-cert={self.tls_cert}"
            yield f"--grpc-server-key={self.tls_key}"
        if self.tls_ca:
            yield f"--grpc-root-cert={self.tls_ca}"
        yield from (f"--http-restricted-api={item.setting()}" for item in self.http)
        yield from (f"--grpc-restricted-protocol={item.setting()}" for item in self.grpc)


OPEN: Final = Access()


def access_of(serve: ServeConfig, *, files: Mapping[str, str], secrets: Mapping[str, str] | None) -> Access:
    """Return what the configuration asks of clients.

    Args:
        serve: The configuration.
        files: Path as written -> path as the server reads it.
        secrets: The variables that ``env:NAME`` means; None blots every secret, for showing.

    Raises:
        ConfigError: A restriction or the certificates are incomplete, a variable is not set, or a secret cannot be
            the value of a header.
    """
    if bool(serve.tls_cert) != bool(serve.tls_key) or (serve.tls_ca and not serve.tls_cert):
        raise ConfigError(
            "serve.tls_cert and serve.tls_key go together, and serve.tls_ca goes with both",
            hint="give the certificate and its key; they are for gRPC, since tritonserver has no TLS for HTTP",
        )
    return Access(
        http=_restrictions("serve.http_restricted_api", serve.http_restricted_api, secrets),
        grpc=_restrictions("serve.grpc_restricted_protocol", serve.grpc_restricted_protocol, secrets),
        tls_cert=files.get(serve.tls_cert, serve.tls_cert),
        tls_key=files.get(serve.tls_key, serve.tls_key),
        tls_ca=files.get(serve.tls_ca, serve.tls_ca),
    )


def _restrictions(key: str, entries: Sequence[str], secrets: Mapping[str, str] | None) -> tuple[Restriction, ...]:
    found = tuple(_restriction(key, entry, secrets) for entry in entries)
    listed = [api for item in found for api in item.apis]
    for api in listed:
        if listed.count(api) > 1:
            raise ConfigError(f"{key}: {api} is restricted twice", hint="name each part of the API once")
    return found


def _restriction(key: str, entry: str, secrets: Mapping[str, str] | None) -> Restriction:
    # The secret is never repeated in a message.
    apis, _, rest = entry.partition(":")
    header, _, secret = rest.partition("=")
    names = tuple(name.strip() for name in apis.split(","))
    unknown = [name for name in names if name not in APIS]
    if unknown:
        raise ConfigError(f"{key}: {unknown[0]!r} is no part of the API", hint=f"they are {', '.join(APIS)}")
    if not _HEADER.fullmatch(header) or not secret:
        raise ConfigError(f"{key}: the entry for {apis} names no header and secret", hint=_FORM)
    return Restriction(apis=names, header=header, secret=_meaning(key, secret, secrets))


def _meaning(key: str, secret: str, secrets: Mapping[str, str] | None) -> str:
    if not secret.startswith(_ENV):
        _require_header_value(f"{key}: a secret", secret)
        return BLOTTED if secrets is None else secret
    name = secret.removeprefix(_ENV)
    if secrets is None:
        return BLOTTED
    if not secrets.get(name):
        raise ConfigError(f"{key}: the environment variable {name} is not set", hint=f"export {name}, and try again")
    _require_header_value(f"{key}: the secret in the environment variable {name}", secrets[name])
    return secrets[name]


def _require_header_value(what: str, secret: str) -> None:
    """Refuse a secret that no header can carry as it is; the message does not repeat it."""
    if not (secret.isascii() and secret.isprintable()) or secret != secret.strip():
        raise ConfigError(
            f"{what} holds more than printable ASCII, or begins or ends with a blank, and a header cannot carry that",
            hint="a line end at its end often comes from the file that it was read from; choose letters and digits",
        )
