"""The options of tritonserver: those of the server that clients talk to, and those of one that only holds a rank.

Knows tritonserver's options, and which of them are ours. Does not know who starts it, nor where.
"""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING, Final

from specdeploy.deploy.access import OPEN
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specdeploy.config.schema import ServeConfig
    from specdeploy.deploy.access import Access

# What `serve.extra_args` may not set a second time, and the key that sets it; empty is none.
_OWNED: Final = {
    "--model-repository": "repo.path",
    "--model-store": "repo.path",
    "--http-address": "serve.host",
    "--grpc-address": "serve.host",
    "--metrics-address": "serve.host",
    "--http-port": "serve.http_port",
    "--grpc-port": "serve.grpc_port",
    "--metrics-port": "serve.metrics_port",
    "--allow-metrics": "serve.metrics",
    "--allow-gpu-metrics": "serve.gpu_metrics",
    "--log-info": "serve.log_info",
    "--log-verbose": "serve.log_verbose",
    "--model-control-mode": "serve.models",
    "--load-model": "serve.models",
    "--exit-timeout-secs": "serve.exit_timeout_s",
    "--http-restricted-api": "serve.http_restricted_api",
    "--grpc-restricted-protocol": "serve.grpc_restricted_protocol",
    "--grpc-use-ssl": "serve.tls_cert",
    "--grpc-use-ssl-mutual": "serve.tls_ca",
    "--grpc-server-cert": "serve.tls_cert",
    "--grpc-server-key": "serve.tls_key",
    "--grpc-root-cert": "serve.tls_ca",
    "--rate-limit": "repo.rate_limits",
    # The start would no longer see them.
    "--log-file": "",
    "--allow-http": "",
    "--exit-on-error": "",
    "--disable-auto-complete-config": "",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a server listens; ports are text, so that a plan can name those that are not chosen yet."""

    host: str
    http_port: str
    grpc_port: str
    metrics_port: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """What one server is to serve, and how.

    Args:
        serve: The configuration.
        repository: The model repository.
        listening: Where it listens.
        gpus: Whether it uses GPUs.
        rate_limit: Whether its models name resources of the rate limiter.
        access: What it asks of clients.
    """

    serve: ServeConfig
    repository: str
    listening: Listening
    gpus: bool
    rate_limit: bool = False
    access: Access = OPEN


def front_flags(served: Served) -> tuple[str, ...]:
    """Return the options of the server that clients talk to.

    Every address and port is given, since the defaults listen to everybody.

    Raises:
        ConfigError: ``serve.extra_args`` sets what another key sets.
    """
    serve, listening = served.serve, served.listening
    return (
        f"--model-repository={served.repository}",
        # Configurations are complete; completing them would start every model process twice.
        "--disable-auto-complete-config",
        f"--http-address={listening.host}",
        f"--http-port={listening.http_port}",
        f"--grpc-address={listening.host}",
        f"--grpc-port={listening.grpc_port}",
        *_metrics(served),
        *served.access.flags(),
        *_log(serve),
        f"--exit-timeout-secs={serve.exit_timeout_s}",
        *_control(serve.models),
        *(("--rate-limit=execution_count",) if served.rate_limit else ()),
        # Without a GPU there is nothing to pin it for.
        *(() if served.gpus else ("--pinned-memory-pool-byte-size=0",)),
        *extra_words(serve.extra_args),
    )


def worker_flags(served: Served, models: Sequence[str]) -> tuple[str, ...]:
    """Return the options of a server that only holds a rank of engines: it loads those, and listens nowhere.

    NVIDIA's launch_triton_server.py gives the ranks one set of ports, which works because only the first gets to open
    them; here a rank that did would fail instead.
    """
    return (
        f"--model-repository={served.repository}",
        "--disable-auto-complete-config",
        "--allow-http=false",
        "--allow-grpc=false",
        "--allow-metrics=false",
        *_log(served.serve),
        f"--exit-timeout-secs={served.serve.exit_timeout_s}",
        *_control(models),
    )


def extra_words(lines: Sequence[str]) -> tuple[str, ...]:
    """Return ``serve.extra_args`` as words.

    Raises:
        ConfigError: A quotation is open, an option belongs to another key, or a word is neither an option nor the
            value of one.
    """
    try:
        words = tuple(word for line in lines for word in shlex.split(line))
    except ValueError as error:
        raise ConfigError(f"serve.extra_args: {error}: {' '.join(lines)}", hint="close the quotation") from None
    _refuse_separator(words)
    _refuse_stray(words)
    _refuse_owned(words)
    return words


def _refuse_separator(words: Sequence[str]) -> None:
    """Refuse the word between the ranks of an mpirun line: what follows it would be started as another program."""
    if ":" in words:
        raise ConfigError(
            "serve.extra_args has a lone ':', which mpirun takes for another program", hint="leave it out"
        )


def _refuse_owned(words: Sequence[str]) -> None:
    """Refuse what another key sets, also shortened: getopt takes ``--http-addr`` for ``--http-address``."""
    for name in (word.partition("=")[0] for word in words if word.startswith("--")):
        owned = name if name in _OWNED else next((option for option in _OWNED if option.startswith(name)), None)
        if owned is not None:
            cure = f"set {_OWNED[owned]} instead" if _OWNED[owned] else "leave it out: specdeploy depends on it"
            meant = "" if name == owned else f", which stands for {owned}"
            raise ConfigError(f"serve.extra_args may not set {name}{meant}", hint=cure)


def _refuse_stray(words: Sequence[str]) -> None:
    """Refuse a word that tritonserver would end over without saying which: it takes options and their values only."""
    before = ""
    for word in words:
        is_option = word.startswith("-") and word not in {"-", "--"}
        takes_value = before.startswith("-") and "=" not in before
        if not is_option and not takes_value:
            raise ConfigError(
                f"serve.extra_args: {word!r} is neither an option of tritonserver nor the value of one",
                hint="write options as --name=value, or as --name value",
            )
        before = word


def _metrics(served: Served) -> Iterator[str]:
    if not served.serve.metrics:
        yield "--allow-metrics=false"
        return
    yield f"--metrics-address={served.listening.host}"
    yield f"--metrics-port={served.listening.metrics_port}"
    yield f"--allow-gpu-metrics={'true' if served.gpus and served.serve.gpu_metrics else 'false'}"


def _log(serve: ServeConfig) -> Iterator[str]:
    if not serve.log_info:
        yield "--log-info=false"
    if serve.log_verbose:
        yield f"--log-verbose={serve.log_verbose}"


def _control(models: Sequence[str]) -> tuple[str, ...]:
    return ("--model-control-mode=explicit", *(f"--load-model={model}" for model in models)) if models else ()
