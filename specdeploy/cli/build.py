"""``specdeploy build``: compile both checkpoints into engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import json_option, with_config

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@click.command("build")
@click.option("--dry-run", is_flag=True, help="Print the steps and run nothing.")
@with_config
@json_option
def command(loaded: LoadedConfig, dry_run: bool, as_json: bool) -> None:
    """Compile target and draft into engines; what the store holds already is not built again."""
    from specdeploy.cli import _render
    from specdeploy.cli._events import BuildLines
    from specdeploy.pipeline import prepare

    if dry_run:
        plan = prepare.plan(loaded, prepare.check(loaded))
        if as_json:
            _render.document(plan.as_dict())
        else:
            click.echo("\n".join(_render.plan_lines(plan)))
        return
    built = prepare.build(loaded, BuildLines(_render.Progress()))
    if as_json:
        _render.document({"target": built.target.to_dict(), "draft": built.draft.to_dict()})
    else:
        click.echo(_render.engines(built))
