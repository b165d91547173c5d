"""``specdeploy lint``: find in milliseconds what Triton reveals late or never."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import config_option, json_option, load

if TYPE_CHECKING:
    from pathlib import Path

    from specdeploy.findings import Finding


@click.command("lint")
@click.argument("repository", type=click.Path(), required=False)
@config_option
@click.option(
    "--format",
    "how",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="How to show findings; github: as annotations of a workflow.",
)
@click.option("--strict", is_flag=True, help="Fail on warnings, too.")
@click.option("--no-engines", is_flag=True, help="Do not look at the engines: they are on another machine.")
@json_option
def command(repository: str | None, config_path: str, how: str, strict: bool, no_engines: bool, as_json: bool) -> int:
    """Lint a Triton model repository: REPOSITORY, anybody's, or the one of the configuration."""
    from pathlib import Path

    from specdeploy.errors import EXIT_OK, EXIT_USAGE
    from specdeploy.pipeline import prepare
    from specdeploy.pipeline.workspace import workspace

    place = Path(repository) if repository is not None else workspace(load(config_path)).repository
    findings = prepare.lint(place, engines=not no_engines)
    _show(place, findings, "json" if as_json else how)
    fatal = {"error", "warning"} if strict else {"error"}
    return EXIT_USAGE if any(finding.severity in fatal for finding in findings) else EXIT_OK


def _show(place: Path, findings: tuple[Finding, ...], how: str) -> None:
    from specdeploy.cli import _render

    if how == "json":
        document = {"schema_version": "1.0", "kind": "lint", "repository": str(place)}
        _render.document(document | {"findings": [finding.as_dict() for finding in findings]})
    elif how == "github":
        _render.github_annotations(findings, _from_here(place))
    else:
        _render.findings(findings)
        click.echo(f"{place}: {len(findings)} findings" if findings else f"{place}: nothing to complain about")


def _from_here(place: Path) -> str:
    """Return the repository as GitHub names files: relative to where the command runs, when it is below."""
    from pathlib import Path

    here = Path.cwd()
    return str(place.resolve().relative_to(here) if place.resolve().is_relative_to(here) else place)
