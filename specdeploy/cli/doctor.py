"""``specdeploy doctor``: what this machine has, and what each profile still lacks."""

from __future__ import annotations

import click

from specdeploy.cli._options import json_option
from specdeploy.cli._streams import say


@click.command("doctor")
@json_option
def command(as_json: bool) -> int:
    """Show what this machine has and what each profile still lacks.

    Exit code 0 when at least one profile can run here, 4 when none can.
    """
    from specdeploy.cli import _render
    from specdeploy.pipeline.doctor import diagnose

    diagnosis = diagnose()
    if as_json:
        _render.document(diagnosis.as_dict())
        return diagnosis.exit_code
    say(_render.table(("what", "found"), diagnosis.host_rows))
    for profile in diagnosis.profiles:
        state = click.style("ready", fg="green") if profile.ready else click.style("lacks something", fg="yellow")
        say(f"\nprofile {profile.name}: {state}")
        _render.findings(profile.lacks)
    return diagnosis.exit_code
