"""``specdeploy check``: do these two checkpoints belong together?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import json_option, with_config

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@click.command("check")
@with_config
@json_option
def command(loaded: LoadedConfig, as_json: bool) -> int:
    """Compare the two checkpoints before anything is built: tokenizers, vocabularies, context lengths."""
    from specdeploy.cli import _render
    from specdeploy.errors import EXIT_OK, EXIT_USAGE
    from specdeploy.findings import has_errors
    from specdeploy.pipeline import prepare

    pair = prepare.check(loaded)
    if as_json:
        _render.document(pair.as_dict())
    else:
        rows = [
            (role, info.name, info.architecture, f"{info.parameters / 1e6:.1f} M", str(info.vocab_size))
            for role, info in (("target", pair.target), ("draft", pair.draft))
        ]
        click.echo(_render.table(("role", "checkpoint", "architecture", "parameters", "vocabulary"), rows))
        _render.findings(pair.findings)
        if not has_errors(pair.findings):
            click.echo("the pair belongs together")
    return EXIT_USAGE if has_errors(pair.findings) else EXIT_OK
