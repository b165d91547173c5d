"""``specdeploy gate``: may this build ship? And the baseline that it compares with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from specdeploy.cli._control import at_control
from specdeploy.cli._options import (
    config_option,
    format_option,
    json_option,
    load,
    overrides_option,
    refuse_misplaced,
    shown_format,
    with_config,
)
from specdeploy.cli._selftest import command as selftest
from specdeploy.cli._server import at_server
from specdeploy.cli._streams import say, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdeploy.cli._control import OtherDeployment
    from specdeploy.cli._server import ServerChoice
    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.gate_results import GateFiles

#: What begins a formula in a spreadsheet.
_FORMULA: Final = ("=", "+", "-", "@")


@click.group("gate", invoke_without_command=True)
@click.option("--rule", "rules", multiple=True, help="A rule instead of those of the configuration; repeatable.")
@click.option("--markdown", metavar="FILE", help="Also write a summary as Markdown.")
@click.option("--junit", metavar="FILE", help="Also write the verdict as JUnit XML, a case for each rule.")
@format_option("How to show the verdict; github: with annotations of a workflow, and a summary on the job's page.")
@click.option(
    "--repeat-until",
    "budget",
    metavar="TIME",
    help="Measure on until it can decide, for 90s, 20min or 1.5h at most.",
)
@at_server
@at_control
@config_option
@overrides_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    server: ServerChoice,
    other: OtherDeployment,
    budget: str | None,
    config_path: str,
    overrides: tuple[str, ...],
    rules: tuple[str, ...],
    markdown: str | None,
    junit: str | None,
    how: str,
    as_json: bool,
) -> int:
    """Judge the last load test by the gate's rules.

    A rule reads `metric[.statistic][@load] <= number[unit]`, for example `time_to_first_token.p99 <= 200ms` or
    `speedup@1 >= 1.5`, or `metric: 5%`, how much worse than the baseline it may be; a load is a concurrency, or a rate
    as in `@5/s`. Exit code 0 pass, 1 a rule failed, 3 a rule cannot be decided, was not measured or not measured alike,
    4 the verdict of a pass could not be written.

    With --repeat-until it begins with the last load test, if that is one of this deployment and load, else with a new
    one, and measures more pairs on the running server (or with --serve) while that may decide a rule; with
    --control-http and --control-grpc against another deployment.
    """
    refuse_misplaced(ctx)
    if ctx.invoked_subcommand is not None:
        return 0
    from specdeploy.errors import EXIT_ENVIRONMENT, EnvironmentFault
    from specdeploy.pipeline import gate_results

    how = shown_format(ctx, how, as_json=as_json)
    problems: list[str] = []

    def show(document: Mapping[str, Any], said: tuple[str, ...]) -> None:
        try:
            # With --json the error that follows is the document of a gate that had nothing to judge.
            if document["rules"] or not as_json:
                _show(document, how)
        except EnvironmentFault as error:
            # A failure that nobody saw is one all the same.
            said = (*said, error.message)
        problems.extend(said)
        _show_problems(said)

    gate = _gate(server, other, budget)
    document = gate_results.judge(
        load(config_path, overrides), rules, _files(config_path, markdown, junit, how), show, gate
    )
    exit_code: int = document["exit_code"]
    return exit_code or (EXIT_ENVIRONMENT if problems else 0)


def _gate(
    server: ServerChoice, other: OtherDeployment, budget: str | None
) -> Callable[[LoadedConfig, Iterable[str]], dict[str, Any]]:
    """Return what judges: the last load test as it is, or with more of it until it can be decided."""
    from specdeploy.errors import ConfigError
    from specdeploy.gate.repeats import parse_budget
    from specdeploy.pipeline import measure

    if budget is None:
        if server.named or other.named:
            raise ConfigError(
                "--http, --grpc, --metrics, --serve, --control-http and --control-grpc are for --repeat-until",
                hint="The gate itself asks no server.",
            )
        return measure.gate
    budget_s = parse_budget(budget)
    control = other.addresses(openai=False, compare=None)

    def gate(loaded: LoadedConfig, rules: Iterable[str]) -> dict[str, Any]:
        from specdeploy.cli._events import LoadLines
        from specdeploy.pipeline.repeating import Deployment, gate_until

        lines = LoadLines()
        try:
            with Deployment(loaded, lambda: server.endpoints(loaded), lines, tell, control) as deployment:
                document = gate_until(loaded, rules, budget_s, deployment, lines.look)
        finally:
            lines.close()
        tell(f"{document['repeats']['spent_s']:.0f} s of {budget_s:.0f} s spent: {document['repeats']['ended']}")
        return document

    return gate


def _files(config_path: str, markdown: str | None, junit: str | None, how: str) -> GateFiles:
    import os
    from pathlib import Path

    from specdeploy.errors import ConfigError
    from specdeploy.pipeline.gate_results import STEP_SUMMARY, GateFiles

    for option, name, example in (("--markdown", markdown, "gate.md"), ("--junit", junit, "gate.xml")):
        if name == "":
            raise ConfigError(f"{option} names no file", hint=f"name one, such as {example}")
    step_summary = os.environ.get(STEP_SUMMARY) if how == "github" else None
    return GateFiles(
        markdown=None if markdown is None else Path(markdown),
        junit=None if junit is None else Path(junit),
        step_summary=Path(step_summary) if step_summary else None,
        config=Path(config_path),
    )


def _show(document: Mapping[str, Any], how: str) -> None:
    from specdeploy.cli import _render
    from specdeploy.report import gate_outcome
    from specdeploy.report.text import gate_table

    if how == "json":
        _render.document(document)
        return
    if how == "github":
        _render.github_annotations(gate_outcome.findings(document), "")
    if document["rules"]:
        say(gate_table(document))


def _show_problems(problems: tuple[str, ...]) -> None:
    from specdeploy.cli._render import visible

    for problem in problems:
        tell(f"{click.style('error:', fg='red', bold=True)} {visible(problem)}")


command.add_command(selftest)


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
    from specdeploy.errors import ConfigError
    from specdeploy.pipeline import gating

    if label[:1] in _FORMULA:
        raise ConfigError(
            f"the label {label!r} would be a formula in a spreadsheet that opens the history",
            hint="begin it with a letter or a digit, such as 1a2b3c4",
        )
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
@click.option("--change-points", is_flag=True, help="In their place, what changed and since when, by Apache Otava.")
@with_config
def history(loaded: LoadedConfig, change_points: bool) -> None:
    """Print the runs of the baseline as CSV, oldest first, for Apache Otava or a spreadsheet."""
    from specdeploy.pipeline import gating

    if not change_points:
        say(gating.baseline_history(loaded), nl=False)
        return
    from specdeploy.pipeline.change_points import change_table, find_change_points

    runs = gating.require_baseline(loaded)
    found = find_change_points(runs)
    say(change_table(runs, found), nl=False)
    tell(f"{len(found)} change point(s) in {len(runs.runs)} run(s)")
