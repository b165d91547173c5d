"""``specdeploy lint``: find in milliseconds what Triton reveals late or never."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import config_option, format_option, json_option, load, overrides_option, shown_format
from specdeploy.cli._streams import say

if TYPE_CHECKING:
    from pathlib import Path

    from specdeploy.findings import Finding


@click.command("lint")
@click.argument("repository", type=click.Path(), required=False)
@config_option
@overrides_option
@format_option("How to show findings; github: as annotations of a workflow.")
@click.option("--strict", is_flag=True, help="Fail on warnings, too.")
@click.option("--no-engines", is_flag=True, help="Do not look at the engines: they are on another machine.")
@json_option
@click.pass_context
def command(  # every option by its name
    ctx: click.Context,
    repository: str | None,
    config_path: str,
    overrides: tuple[str, ...],
    how: str,
    strict: bool,
    no_engines: bool,
    as_json: bool,
) -> int:
    """Lint a Triton model repository: REPOSITORY, anybody's, or the one of the configuration.

    Exit codes: 0 when there is no error, 2 when there is one (with --strict a warning, too), or no such directory.
    """
    from specdeploy.errors import EXIT_OK, EXIT_USAGE

    # Not by way of pipeline/prepare: that brings everything that writes repositories, and takes longer than a lint.
    from specdeploy.triton.lint import lint_repository
    from specdeploy.triton.sources import engine_listing, read_repository

    how = shown_format(ctx, how, as_json=as_json)
    _refuse_contradictions(ctx, repository, overrides)
    place = _place(repository, config_path, overrides)
    findings = lint_repository(read_repository(place), None if no_engines else engine_listing(place))
    _show(place, findings, how)
    fatal = {"error", "warning"} if strict else {"error"}
    return EXIT_USAGE if any(finding.severity in fatal for finding in findings) else EXIT_OK


def _refuse_contradictions(ctx: click.Context, repository: str | None, overrides: tuple[str, ...]) -> None:
    """Refuse options of which one would be ignored.

    Raises:
        UsageError: There are some.
    """
    if repository == "":
        raise click.UsageError("REPOSITORY is empty: name a directory, or leave it out for the configuration's", ctx)
    if repository is not None and overrides:
        raise click.UsageError("--set changes the configuration, which is not read when REPOSITORY is given", ctx)


def _place(repository: str | None, config_path: str, overrides: tuple[str, ...]) -> Path:
    from pathlib import Path

    if repository is not None:
        return Path(repository)
    from specdeploy.pipeline.workspace import workspace

    return workspace(load(config_path, overrides)).repository


def _show(place: Path, findings: tuple[Finding, ...], how: str) -> None:
    from specdeploy.cli import _render

    if how == "json":
        document = {"schema_version": "1.0", "kind": "lint", "repository": str(place)}
        _render.document(document | {"findings": [finding.as_dict() for finding in findings]})
    elif how == "github":
        _render.github_annotations(findings, _from_here(place))
    else:
        _render.findings(findings)
        count = "nothing to complain about" if not findings else f"{len(findings)} finding{'s'[: len(findings) > 1]}"
        say(f"{_render.visible(str(place))}: {count}")


def _from_here(place: Path) -> str:
    """Return the repository as GitHub names files: relative to where the command runs, when it is below."""
    from pathlib import Path

    here = Path.cwd()
    return str(place.resolve().relative_to(here) if place.resolve().is_relative_to(here) else place)
