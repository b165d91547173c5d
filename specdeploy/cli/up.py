"""``specdeploy up``: the whole line, from two checkpoints to a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import json_option, with_config
from specdeploy.cli._streams import say, tell

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@click.command("up")
@with_config
@json_option
def command(loaded: LoadedConfig, as_json: bool) -> int:
    """Run check, build, repo, lint, serve, smoke, load, gate and report; stop at the first failure.

    The server is stopped at the end, and the report is written from whatever was measured.
    """
    from specdeploy.cli import _render
    from specdeploy.cli._watch import TerminalWatcher
    from specdeploy.pipeline.up import up
    from specdeploy.report.text import up_summary

    watcher = TerminalWatcher()
    try:
        outcome = up(loaded, watcher)
    finally:
        watcher.close()
    if as_json:
        _render.document(_render.outcome_document(outcome))
    else:
        say(up_summary(outcome.documents, report=str(outcome.report or "not written")))
        if outcome.stopped_at:
            tell(f"stopped at {outcome.stopped_at} (exit code {outcome.exit_code})")
        elif outcome.exit_code:
            tell(f"the smoke test could not decide everything (exit code {outcome.exit_code})")
    return outcome.exit_code
