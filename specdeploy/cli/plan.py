"""``specdeploy plan``: what a build would do, without a GPU and without doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import full_hash_option, json_option, with_config
from specdeploy.cli._streams import say

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@click.command("plan")
@with_config
@full_hash_option
@json_option
def command(loaded: LoadedConfig, as_json: bool) -> int:
    """Show the steps of a build: command lines, outputs, what is built already and why the rest is not, memory."""
    from specdeploy.cli import _plan, _render
    from specdeploy.errors import EXIT_OK, EXIT_USAGE
    from specdeploy.findings import has_errors
    from specdeploy.pipeline import engines

    planned = engines.plan(loaded)
    if as_json:
        _render.document(planned.as_dict())
    else:
        say("\n".join(_plan.lines(planned)))
        _render.findings(planned.checked.findings)
    return EXIT_USAGE if has_errors(planned.checked.findings) else EXIT_OK
