"""``specdeploy gate``: may this build ship? And the baseline that it compares with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import config_option, json_option, load, overrides_option, refuse_misplaced, with_config
from specdeploy.cli._streams import say, tell

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig


@click.group("gate", invoke_without_command=True)
@click.option("--rule", "rules", multiple=True, help="A rule instead of those of the configuration; repeatable.")
@config_option
@overrides_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, config_path: str, overrides: tuple[str, ...], rules: tuple[str, ...], as_json: bool
) -> int:
    """Judge the last load test by the gate's rules.

    A rule reads `metric[.statistic][@load] <= number[unit]`, for example `time_to_first_token.p99 <= 200ms` or
    `speedup@1 >= 1.5`, or `metric: 5%`, how much worse than the baseline it may be; a load is a concurrency, or a rate
    as in `@5/s`. Exit code 0 pass, 1 a rule failed, 3 a rule cannot be decided, was not measured or not measured alike.
    """
    refuse_misplaced(ctx)
    if ctx.invoked_subcommand is not None:
        return 0
    from specdeploy.cli import _render
    from specdeploy.pipeline import measure
    from specdeploy.report.text import gate_table

    document = measure.gate(load(config_path, overrides), rules)
    if as_json:
        _render.document(document)
    else:
        say(gate_table(document))
    exit_code: int = document["exit_code"]
    return exit_code


@command.group("baseline")
def baseline() -> None:
    """Keep what earlier runs measured, for rules such as `request_throughput: 5%`."""


@baseline.command("update")
@click.option("--label", default="", help="What the run was of, such as a commit.")
@click.option("--reset", is_flag=True, help="Begin a new baseline with this run, whatever was there.")
@with_config
@json_option
def update(loaded: LoadedConfig, label: str, reset: bool, as_json: bool) -> None:
    """Add the last load test to the baseline file, gate.baseline, to be reviewed and committed.

    A run that is partial, degraded, or was measured with something else than the others is refused (exit code 3).
    """
    from specdeploy.cli import _render
    from specdeploy.pipeline import gating

    changed = gating.update_baseline(loaded, label=label, reset=reset)
    if as_json:
        _render.document(gating.baseline_document(loaded, changed))
        return
    tell(f"wrote {gating.baseline_path(loaded)}")
    missing = loaded.config.gate.baseline_runs - len(changed.days)
    more = f"; {missing} more day(s) until anything is compared with it" if missing > 0 else ""
    say(f"{len(changed.runs)} run(s) of {len(changed.days)} day(s){more}")


@baseline.command("show")
@with_config
@json_option
def show(loaded: LoadedConfig, as_json: bool) -> None:
    """Show what the baseline was measured with, its runs, and how far they are apart."""
    from specdeploy.cli import _render
    from specdeploy.pipeline import gating
    from specdeploy.report.baseline_text import baseline_table

    document = gating.baseline_document(loaded, gating.require_baseline(loaded))
    if as_json:
        _render.document(document)
    else:
        say(baseline_table(document))


@baseline.command("history")
@with_config
def history(loaded: LoadedConfig) -> None:
    """Print the runs of the baseline as CSV, oldest first, for Apache Otava or a spreadsheet."""
    from specdeploy.pipeline import gating

    say(gating.baseline_history(loaded), nl=False)
