"""``specdeploy gate selftest``: does the gate fire when it should, and only then?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import json_option, with_config
from specdeploy.cli._server import at_server
from specdeploy.cli._streams import say, tell

if TYPE_CHECKING:
    from specdeploy.cli._server import ServerChoice
    from specdeploy.config.load import LoadedConfig

#: More than this is a slip of the pen.
_MOST = 10.0


def _share(_ctx: click.Context, _parameter: click.Parameter, value: str) -> float:
    """Read a percentage.

    Raises:
        BadParameter: It is none, or nothing that could be noticed.
    """
    number, sign, rest = value.strip().partition("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = -1.0
    if not sign or rest or not 0 < share <= _MOST:
        raise click.BadParameter(f"{value!r} is no percentage above 0 and up to {_MOST:.0%}; write 15%")
    return share


@click.command("selftest")
@click.option(
    "--slowdown",
    metavar="PERCENT",
    default="15%",
    show_default=True,
    callback=_share,
    help="How much longer the answers of the second run take.",
)
@click.option(
    "--rule",
    default="output_token_throughput: 5% of control",
    show_default=True,
    help="The rule that has to notice it.",
)
@at_server
@with_config
@json_option
def command(loaded: LoadedConfig, server: ServerChoice, slowdown: float, rule: str, as_json: bool) -> int:
    """Prove that the gate fires: measure the running deployment against itself, and against itself made slower.

    The first run has no difference and must not fail; in the second one the candidate's answers are held back, and it
    must. Both have the load of the configuration. Exit code 0 when the gate fired at the slowdown and not without it,
    1 when it did not fire or fired falsely, 3 when the runs cannot decide it. Writes gate-selftest.json into the
    report folder, and touches no other results.
    """
    from specdeploy.cli import _events, _render
    from specdeploy.pipeline.selftest import selftest
    from specdeploy.report.selftest_text import selftest_table

    lines = _events.LoadLines()

    def note(words: str) -> None:
        lines.begin()
        tell(f"    {words}")

    try:
        with server.endpoints(loaded) as endpoints:
            document = selftest(loaded, endpoints, rule=rule, slowdown=slowdown, on_note=note, on_progress=lines)
    finally:
        lines.close()
    if as_json:
        _render.document(document)
    else:
        say(selftest_table(document))
    exit_code: int = document["exit_code"]
    return exit_code
