"""``specdeploy smoke``: is the deployment up, wired, speculating, and still the target's?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import json_option, with_config
from specdeploy.cli._server import at_server

if TYPE_CHECKING:
    from specdeploy.cli._server import ServerChoice
    from specdeploy.config.load import LoadedConfig


@click.command("smoke")
@click.option("--only", multiple=True, metavar="CHECK", help="Run only this check; repeatable.")
@click.option("--skip", multiple=True, metavar="CHECK", help="Leave this check out; repeatable.")
@at_server
@with_config
@json_option
def command(
    loaded: LoadedConfig, server: ServerChoice, only: tuple[str, ...], skip: tuple[str, ...], as_json: bool
) -> int:
    """Run the smoke test against the running deployment.

    Exit code 0 when every check passed, 1 when one failed, 4 when the server was lost.
    """
    from specdeploy.cli import _events, _render
    from specdeploy.pipeline import measure
    from specdeploy.report.text import smoke_table

    with server.endpoints(loaded) as endpoints:
        report = measure.smoke(loaded, endpoints, only=only, skip=skip, on_check=_events.check_line)
    if as_json:
        _render.document(report.as_dict())
    else:
        click.echo(smoke_table(report.as_dict()))
    return report.exit_code
