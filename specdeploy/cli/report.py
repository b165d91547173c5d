"""``specdeploy report``: one self-contained HTML page from what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import with_config

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@click.command("report")
@with_config
def command(loaded: LoadedConfig) -> None:
    """Write the HTML report from the smoke test, the load test and the gate, as far as they have run."""
    from specdeploy.pipeline import measure

    click.echo(f"wrote {measure.report(loaded)}")
