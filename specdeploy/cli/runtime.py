"""``specdeploy runtime``: the embedded Triton server of the cpu profile, in an environment of its own."""

from __future__ import annotations

import click

from specdeploy.cli._options import json_option
from specdeploy.cli._streams import say, tell


@click.group("runtime")
def command() -> None:
    """Install or show the embedded Triton runtime of the cpu profile."""


@command.command("install")
def install() -> None:
    """Install the embedded Triton runtime; does nothing when it is there already."""
    from specdeploy.cli import _render
    from specdeploy.triton.runtime import find_runtime, install_runtime

    progress = _render.Progress()
    found = find_runtime()
    if found is None:
        progress.stage("installing the embedded Triton runtime (about 100 MB to download)")
        found = install_runtime(progress.note)
    tell(f"Triton {found.version}: {found.tritonserver}")


@command.command("show")
@json_option
def show(as_json: bool) -> None:
    """Print where the embedded Triton runtime is."""
    from specdeploy.cli import _render
    from specdeploy.errors import ToolMissing
    from specdeploy.triton.runtime import find_runtime

    found = find_runtime()
    if found is None:
        raise ToolMissing("the embedded Triton runtime is not installed", hint="run `specdeploy runtime install`")
    facts = {"version": found.version, "tritonserver": str(found.tritonserver), "python": str(found.python)}
    if as_json:
        _render.document(facts)
    else:
        say(_render.table(("what", "value"), list(facts.items())))
