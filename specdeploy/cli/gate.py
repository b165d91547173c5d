"""``specdeploy gate``: may this build ship? And the baseline that it compares with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

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
from specdeploy.cli._streams import say, tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.gate_results import GateFiles


@click.group("gate", invoke_without_command=True)
@click.option("--rule", "rules", multiple=True, help="A rule instead of those of the configuration; repeatable.")
@click.option("--markdown", metavar="FILE", help="Also write a summary as Markdown.")
@click.option("--junit", metavar="FILE", help="Also write the verdict as JUnit XML, a case for each rule.")
@format_option("How to show the verdict; github: with annotations of a workflow, and a summary on the job's page.")
@config_option
@overrides_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
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
    """
    refuse_misplaced(ctx)
    if ctx.invoked_subcommand is not None:
        return 0
    from specdeploy.errors import EXIT_ENVIRONMENT
    from specdeploy.pipeline import gate_results

    how = shown_format(ctx, how, as_json=as_json)
    problems: list[str] = []

    def show(document: Mapping[str, Any], said: tuple[str, ...]) -> None:
        problems.extend(said)
        _show_problems(said)
        # With --json the error that follows is the document of a gate that had nothing to judge.
        if document["rules"] or not as_json:
            _show(document, how)

    document = gate_results.judge(load(config_path, overrides), rules, _files(markdown, junit, how), show)
    exit_code: int = document["exit_code"]
    return exit_code or (EXIT_ENVIRONMENT if problems else 0)


def _files(markdown: str | None, junit: str | None, how: str) -> GateFiles:
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
