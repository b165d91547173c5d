"""``specdeploy gate``: may this build ship?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import json_option, with_config
from specdeploy.cli._streams import say

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@click.command("gate")
@click.option("--rule", "rules", multiple=True, help="A rule instead of those of the configuration; repeatable.")
@with_config
@json_option
def command(loaded: LoadedConfig, rules: tuple[str, ...], as_json: bool) -> int:
    """Judge the last load test by the gate's rules.

    A rule reads `metric[.statistic][@load] <= number[unit]`, for example `time_to_first_token.p99 <= 200ms`
    or `speedup@1 >= 1.5`; a load is a concurrency, or a rate as in `@5/s`. Exit code 0 pass, 1 a rule failed, 3 a rule
    cannot be decided or was not measured.
    """
    from specdeploy.cli import _render
    from specdeploy.pipeline import measure
    from specdeploy.report.text import gate_table

    document = measure.gate(loaded, rules)
    if as_json:
        _render.document(document)
    else:
        say(gate_table(document))
    exit_code: int = document["exit_code"]
    return exit_code
