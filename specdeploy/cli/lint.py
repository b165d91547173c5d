"""``specdeploy lint``: find in milliseconds what Triton reveals late or never."""

from __future__ import annotations

import click

from specdeploy.cli._options import json_option, load


@click.command("lint")
@click.argument("repository", type=click.Path(), required=False)
@click.option("-c", "--config", "config_path", default="specdeploy.yaml", show_default=True, help="The configuration.")
@json_option
def command(repository: str | None, config_path: str, as_json: bool) -> int:
    """Lint a Triton model repository: REPOSITORY, or the one of the configuration."""
    from pathlib import Path

    from specdeploy.cli import _render
    from specdeploy.errors import EXIT_OK, EXIT_USAGE
    from specdeploy.findings import has_errors
    from specdeploy.pipeline import prepare
    from specdeploy.pipeline.workspace import workspace

    place = Path(repository) if repository is not None else workspace(load(config_path)).repository
    findings = prepare.lint(place)
    if as_json:
        document = {"schema_version": "1.0", "kind": "lint", "repository": str(place)}
        _render.document(document | {"findings": [finding.as_dict() for finding in findings]})
    else:
        _render.findings(findings)
        click.echo(f"{place}: {len(findings)} findings" if findings else f"{place}: nothing to complain about")
    return EXIT_USAGE if has_errors(findings) else EXIT_OK
