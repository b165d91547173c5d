"""``specdeploy gate``: may this build ship?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from specdeploy.cli._options import json_option, shown_format, with_config
from specdeploy.cli._streams import say, tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.gate_results import GateFiles


@click.command("gate")
@click.option("--rule", "rules", multiple=True, help="A rule instead of those of the configuration; repeatable.")
@click.option("--markdown", metavar="FILE", help="Also write a summary as Markdown.")
@click.option("--junit", metavar="FILE", help="Also write the verdict as JUnit XML, a case for each rule.")
@click.option(
    "--format",
    "how",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="How to show the verdict; github: with annotations of a workflow, and a summary on the job's page.",
)
@with_config
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    loaded: LoadedConfig,
    rules: tuple[str, ...],
    markdown: str | None,
    junit: str | None,
    how: str,
    as_json: bool,
) -> int:
    """Judge the last load test by the gate's rules.

    A rule reads `metric[.statistic][@load] <= number[unit]`, for example `time_to_first_token.p99 <= 200ms`
    or `speedup@1 >= 1.5`; a load is a concurrency, or a rate as in `@5/s`. Exit code 0 pass, 1 a rule failed, 3 a rule
    cannot be decided or was not measured, 4 the verdict of a pass could not be written.
    """
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

    document = gate_results.judge(loaded, rules, _files(markdown, junit, how), show)
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
