"""``specdeploy build``: make the engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import full_hash_option, json_option, with_config
from specdeploy.cli._streams import say

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@click.command("build")
@with_config
@full_hash_option
@json_option
def command(loaded: LoadedConfig, as_json: bool) -> None:
    """Make the engines; what the store holds already is not built again. `specdeploy plan` shows it before."""
    from specdeploy.cli import _render
    from specdeploy.cli._events import BuildLines
    from specdeploy.pipeline import engines

    built = engines.build(loaded, BuildLines(_render.Progress()))
    if as_json:
        _render.document(_render.built_document(built))
    else:
        say(_render.engines(built))
