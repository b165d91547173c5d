"""``specdeploy check``: do these two checkpoints belong together?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import json_option, with_config
from specdeploy.cli._streams import say

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@click.command("check")
@with_config
@json_option
def command(loaded: LoadedConfig, as_json: bool) -> int:
    """Compare the checkpoints before anything is built: tokenizers, vocabularies, lengths, release, memory."""
    from specdeploy.cli import _render
    from specdeploy.errors import EXIT_OK, EXIT_USAGE
    from specdeploy.findings import has_errors
    from specdeploy.pipeline import checking

    checked = checking.check(loaded)
    if as_json:
        _render.document(checked.as_dict())
    else:
        rows = [
            (part.role, part.name, part.kind, f"{part.parameters / 1e6:.1f} M", str(part.vocab_size or "none"))
            for part in checked.parts
        ]
        say(_render.table(("role", "checkpoint", "architecture", "parameters", "vocabulary"), rows))
        _render.findings(checked.findings)
        if not has_errors(checked.findings):
            say("the pair belongs together" if len(rows) > 1 else "the target can be deployed")
    return EXIT_USAGE if has_errors(checked.findings) else EXIT_OK
