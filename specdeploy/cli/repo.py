"""``specdeploy repo``: write the Triton model repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import with_config

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@click.command("repo")
@with_config
def command(loaded: LoadedConfig) -> None:
    """Write the Triton model repository from the configuration and the built engines, and lint it."""
    from specdeploy.cli import _render
    from specdeploy.pipeline import engines, prepare
    from specdeploy.pipeline.workspace import workspace

    place = workspace(loaded)
    findings = prepare.write_repository(loaded, engines.find_built(loaded))
    prepare.require_sound(place.repository, findings)
    _render.findings(findings)
    click.echo(f"wrote {place.repository}; next: specdeploy serve")
