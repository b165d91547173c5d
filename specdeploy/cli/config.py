"""``specdeploy config``: look at the resolved configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import json_option, with_config
from specdeploy.cli._streams import say

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@click.group("config")
def command() -> None:
    """Look at the resolved configuration."""


@command.command("show")
@with_config
@json_option
def show(loaded: LoadedConfig, as_json: bool) -> None:
    """Print every value and where it came from: the file and line, the environment, --set, or the default."""
    from specdeploy.cli import _render
    from specdeploy.config.load import resolved_rows

    rows = resolved_rows(loaded)
    if as_json:
        _render.document({key: {"value": value, "origin": origin} for key, value, origin in rows})
        return
    say(_render.table(("key", "value", "origin"), [(key, str(value), origin) for key, value, origin in rows]))
