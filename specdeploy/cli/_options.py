"""Options that several commands share, and how they become a loaded configuration."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from specdeploy.config.load import LoadedConfig

P = ParamSpec("P")
R = TypeVar("R")


def parse_overrides(pairs: Iterable[str]) -> dict[str, str]:
    """Turn ``--set key.path=value`` words into a mapping.

    Raises:
        ConfigError: a word has no ``=``.
    """
    overrides: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--set takes key.path=value, and got {pair!r}", hint="for example --set load.pairs=10")
        overrides[key.strip()] = value
    return overrides


# The variable is for those who cannot add an option: a container's health check, a scheduler's job.
config_option = click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(),
    default="specdeploy.yaml",
    envvar="SPECDEPLOY_CONFIG",
    show_default=True,
    show_envvar=True,
    help="The deployment's configuration.",
)
overrides_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one key; repeatable."
)


export_option = click.option(
    "--export",
    "formats",
    multiple=True,
    type=click.Choice(["csv", "github", "aiperf", "parquet"]),
    help="Also write the results for other tools; repeatable.",
)


def refuse_misplaced(ctx: click.Context) -> None:
    """Refuse options of a group in front of a subcommand, which has its own: they would be ignored.

    Raises:
        UsageError: One was given.
    """
    given = [
        parameter
        for parameter in ctx.command.params
        if parameter.name and ctx.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if ctx.invoked_subcommand is not None and given:
        option = max(given[0].opts, key=len)
        raise click.UsageError(
            f"{option} stands before {ctx.invoked_subcommand}; options of {ctx.invoked_subcommand} come after it", ctx
        )


def with_config(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command ``--config`` and ``--set``, and pass it the loaded configuration as ``loaded``."""

    @config_option
    @overrides_option
    @functools.wraps(command)
    def wrapped(*args: Any, config_path: str, overrides: tuple[str, ...], **kwargs: Any) -> R:
        return command(*args, loaded=load(config_path, overrides), **kwargs)

    return wrapped


def load(path: str, overrides: Iterable[str] = ()) -> LoadedConfig:
    """Load the configuration with the environment's and the command line's overrides."""
    from pathlib import Path

    from specdeploy.config.load import load_config

    return load_config(Path(path), overrides=parse_overrides(overrides), env=os.environ)


def full_hash_option(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command ``--full-hash``, which goes inside of :func:`with_config`."""

    @click.option("--full-hash", is_flag=True, help="Fingerprint every byte of the checkpoints: as build.full_hash.")
    @functools.wraps(command)
    def wrapped(*args: Any, loaded: LoadedConfig, full_hash: bool, **kwargs: Any) -> R:
        return command(*args, loaded=with_full_hash(loaded) if full_hash else loaded, **kwargs)

    return wrapped


def with_full_hash(loaded: LoadedConfig) -> LoadedConfig:
    """Return the configuration with ``build.full_hash`` set."""
    config = loaded.config
    changed = dataclasses.replace(config, build=dataclasses.replace(config.build, full_hash=True))
    return dataclasses.replace(loaded, config=changed, origin={**loaded.origin, "build.full_hash": "--full-hash"})


def shown_format(ctx: click.Context, how: str, *, as_json: bool) -> str:
    """Return the format of ``--format`` or ``--json``, which is short for ``--format json``.

    Raises:
        UsageError: They contradict each other, so one of them would be ignored.
    """
    named = ctx.get_parameter_source("how") is click.core.ParameterSource.COMMANDLINE
    if as_json and named and how != "json":
        raise click.UsageError(f"--json is --format json, and --format {how} is given as well: give one of them", ctx)
    return "json" if as_json else how


def format_option(words: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Return the option ``--format``, whose value comes as ``how``; :func:`shown_format` sets it against ``--json``.

    Args:
        words: Its help.
    """
    kinds = click.Choice(["text", "json", "github"])
    return click.option("--format", "how", type=kinds, default="text", show_default=True, help=words)


json_option = click.option("--json", "as_json", is_flag=True, help="Print a machine-readable document instead.")
