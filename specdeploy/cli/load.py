"""``specdeploy load``: how much faster is it with speculation than without?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import json_option, with_config
from specdeploy.cli._server import at_server

if TYPE_CHECKING:
    from specdeploy.cli._server import ServerChoice
    from specdeploy.config.load import LoadedConfig


@click.command("load")
@at_server
@with_config
@json_option
def command(loaded: LoadedConfig, server: ServerChoice, as_json: bool) -> int:
    """Measure speculation against control in interleaved pairs, over gRPC streaming.

    Writes load.json and the raw records into the report folder. Exit code 0 when the run is whole, 3 when it ended
    early: what was measured until then is kept, marked partial.
    """
    from specdeploy.cli import _events, _render
    from specdeploy.errors import EXIT_CANNOT_DECIDE, EXIT_OK
    from specdeploy.pipeline import measure
    from specdeploy.report.text import load_table

    lines = _events.LoadLines()
    try:
        with server.endpoints(loaded) as endpoints:
            document = measure.load(loaded, endpoints, on_progress=lines)
    finally:
        lines.close()
    if as_json:
        _render.document(document)
    else:
        click.echo(load_table(document))
    return EXIT_CANNOT_DECIDE if document["partial"] else EXIT_OK
