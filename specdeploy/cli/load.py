"""``specdeploy load``: how much faster is it with speculation than without?"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from specdeploy.cli._control import at_control
from specdeploy.cli._options import export_option, json_option, with_config
from specdeploy.cli._server import at_server
from specdeploy.cli._streams import say, tell
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.bench.driver import Progress
    from specdeploy.cli._control import OtherDeployment
    from specdeploy.cli._server import ServerChoice
    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.measurement import OnTrial
    from specdeploy.pipeline.serving import Addresses
    from specdeploy.pipeline.shards import Generator


class _OpenAI(NamedTuple):
    """OpenAI-compatible servers in place of a deployment of ours: one, and one without speculation to compare with."""

    url: str | None
    control: str | None
    model: str | None
    api_key_env: str | None

    def require_sense(self, server: ServerChoice) -> None:
        """Stop when the options contradict each other.

        Raises:
            ConfigError: They do.
        """
        if self.url is None:
            if any(option is not None for option in self[1:]):
                raise ConfigError("--control, --api-model and --api-key-env are for --openai", hint="give it, too")
        elif server.named:
            raise ConfigError(
                "--openai names a server, and so do --http, --grpc, --metrics and --serve", hint="give one of them"
            )

    def measure(
        self,
        loaded: LoadedConfig,
        on_progress: Callable[[Progress], None],
        generator: Generator,
        on_trial: OnTrial | None,
    ) -> dict[str, Any]:
        """Ask the servers what they are, and measure them."""
        from specdeploy.pipeline.loading import load_openai
        from specdeploy.pipeline.openai_server import find_server

        timeout_s = loaded.config.load.request_timeout_s
        found = [
            find_server(url, model=self.model, api_key_env=self.api_key_env, timeout_s=timeout_s)
            for url in (self.url, self.control)
            if url is not None
        ]
        return load_openai(loaded, *found, on_progress=on_progress, generator=generator, on_trial=on_trial)


def _comparing(loaded: LoadedConfig, foreign: _OpenAI, compare: bool | None) -> LoadedConfig:
    """Return the configuration with what the command line says of the arms.

    Raises:
        ConfigError: Of other servers, the control decides.
    """
    if compare is None:
        return loaded
    if foreign.url is not None and compare != (foreign.control is not None):
        raise ConfigError(
            "--compare needs a control" if compare else "--no-compare leaves out the server of --control",
            hint="Name one with --control URL." if compare else "Leave out one of the two options.",
        )
    load = dataclasses.replace(loaded.config.load, compare=compare)
    return dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, load=load))


class _Split(NamedTuple):
    """Which part of the load is sent from here, when, and by how many processes."""

    shard: str | None
    start_at: str | None
    block_every: float | None
    processes: int
    in_step: bool

    def generator(self, formats: tuple[str, ...]) -> Generator:
        """Return what is sent from here.

        Raises:
            ConfigError: It cannot be read, or the options contradict each other.
        """
        import time

        from specdeploy.bench.shards import parse_shard
        from specdeploy.pipeline.lockstep import Follower
        from specdeploy.pipeline.shards import Generator, parse_start

        if self.processes > 1 and any(option is not None for option in self[:3]):
            raise ConfigError(
                "--processes makes shards of its own, which begin together by themselves",
                hint="Leave out --shard, --start-at and --block-every; or start a `load --shard` for each process.",
            )
        if self.shard is not None and formats:
            raise ConfigError(
                "--export is of a whole load test, and --shard measures a part",
                hint="Give it to `specdeploy report merge`.",
            )
        return Generator(
            shard=None if self.shard is None else parse_shard(self.shard),
            start_s=None if self.start_at is None else parse_start(self.start_at, now_s=time.time()),
            every_s=self.block_every,
            follower=Follower() if self.in_step else None,
        )


def _measure(
    loaded: LoadedConfig,
    server: ServerChoice,
    foreign: _OpenAI,
    generator: Generator,
    *,
    search: bool,
    control: Addresses | None,
) -> dict[str, Any]:
    """Measure from this process."""
    from specdeploy.cli import _events
    from specdeploy.pipeline import loading

    lines = _events.LoadLines()
    told: Callable[[Progress], None] = lines if generator.follower is None else generator.follower.progress
    on_trial = lines.trial if search else None
    try:
        if foreign.url is not None:
            return foreign.measure(loaded, told, generator, on_trial)
        with server.endpoints(loaded) as endpoints:
            return loading.load(
                loaded, endpoints, on_progress=told, generator=generator, on_trial=on_trial, control=control
            )
    finally:
        lines.close()


def _measure_by(
    processes: int, loaded: LoadedConfig, server: ServerChoice, foreign: _OpenAI, control: Addresses | None
) -> dict[str, Any]:
    """Measure from several processes of this machine."""
    from specdeploy.cli import _generators
    from specdeploy.pipeline.loading import AGAINST_ANOTHER

    if foreign.url is not None:
        changes = {**AGAINST_ANOTHER, "compare": foreign.control is not None}
        return _generators.measure(loaded, processes, (), changes)
    with server.endpoints(loaded) as endpoints:
        words = (f"--http={endpoints.http_url}", f"--grpc={endpoints.grpc_url}")
        return _generators.measure(loaded, processes, words, {} if control is None else AGAINST_ANOTHER)


@click.command("load")
@click.option(
    "--openai", "url", metavar="URL", help="Measure an OpenAI-compatible server, as http://127.0.0.1:8000/v1."
)
@click.option("--control", metavar="URL", help="With --openai: the same target without speculation, to compare with.")
@click.option("--api-model", metavar="NAME", help="The model to ask for, where a server has several.")
@click.option("--api-key-env", metavar="VAR", help="The environment variable that holds the key.")
@click.option("--compare/--no-compare", default=None, help="Measure both arms in pairs, or one alone: as load.compare.")
@export_option
@click.option("--search", is_flag=True, help="Search for the highest load that keeps load.slo, from the first one on.")
@click.option("--shard", metavar="I/N", help="Send only the I-th of N parts, from 1 on: several machines share a load.")
@click.option("--start-at", metavar="TIME", help="Begin then: ISO 8601 with a time zone, or seconds since 1970.")
@click.option("--block-every", type=float, metavar="SECONDS", help="With --start-at: each block begins so long after.")
@click.option(
    "--processes",
    metavar="N",
    type=click.IntRange(1, 1024),
    default=1,
    help="Send the load from N processes of this machine.",
)
@click.option("--in-step", is_flag=True, hidden=True)
@at_server
@at_control
@with_config
@json_option
def command(
    loaded: LoadedConfig,
    server: ServerChoice,
    other: OtherDeployment,
    as_json: bool,
    compare: bool | None,
    formats: tuple[str, ...],
    search: bool,
    shard: str | None,
    start_at: str | None,
    block_every: float | None,
    processes: int,
    in_step: bool,
    **openai: str | None,
) -> int:
    """Measure speculation against control in interleaved pairs, or alone, at the loads of the configuration.

    Writes load.json and the raw records into the report folder; with --shard load-shard-I-of-N.json and its records,
    of which `specdeploy report merge` makes one. Exit code 0 when the run is whole, 3 when no request succeeded, and
    when it ended early (130 by Ctrl-C): what was measured until then is kept, marked partial.
    """
    from specdeploy.bench.driver import INTERRUPTED_BY_USER
    from specdeploy.cli import _render
    from specdeploy.errors import EXIT_CANNOT_DECIDE, EXIT_OK
    from specdeploy.pipeline.exporting import export, require_exports
    from specdeploy.pipeline.outputs import alone_in, require_writable
    from specdeploy.pipeline.shards import ALONE
    from specdeploy.pipeline.workspace import workspace
    from specdeploy.report.text import load_table

    foreign = _OpenAI(openai["url"], openai["control"], openai["api_model"], openai["api_key_env"])
    foreign.require_sense(server)
    control = other.addresses(openai=foreign.url is not None, compare=compare)
    loaded = _comparing(loaded, foreign, compare)
    generator = _Split(shard, start_at, block_every, processes, in_step).generator(formats)
    if search and (generator != ALONE or processes > 1):
        raise ConfigError(
            "--search changes the load as it goes, and shards and processes share one that is laid out before",
            hint="Leave out --shard, --start-at and --processes; one process sends some hundred requests a second.",
        )
    folder = workspace(loaded).reports
    # A search finds its loads by itself.
    require_exports(formats, folder, () if search else loaded.config.load.rates)
    for path in generator.files(workspace(loaded)):
        require_writable(path, "report.path")
    if not in_step and generator != ALONE:
        tell(str(generator))
    # Shards may share a folder: each has files of its own.
    with contextlib.nullcontext() if generator.shard is not None else alone_in(folder):
        if processes > 1:
            document = _measure_by(processes, loaded, server, foreign, control)
        else:
            document = _measure(loaded, server, foreign, generator, search=search, control=control)
    written = export(folder, document, formats)
    if as_json:
        _render.document(document)
    elif not in_step:
        say(load_table(document))
        for path in written:
            tell(f"wrote {path}")
    if document["stop_reason"] == INTERRUPTED_BY_USER:
        return 128 + signal.SIGINT
    answered = any("request_throughput" in arm["metrics"] for arm in document["arms"])
    return EXIT_OK if answered and not document["partial"] else EXIT_CANNOT_DECIDE
