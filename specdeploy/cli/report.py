"""``specdeploy report``: one self-contained HTML page from what was measured; and one load test from its shards."""

from __future__ import annotations

from pathlib import Path

import click

from specdeploy.cli._options import config_option, export_option, json_option, load, overrides_option, refuse_misplaced
from specdeploy.cli._streams import say, tell


@click.group("report", invoke_without_command=True)
@config_option
@overrides_option
@click.pass_context
def command(ctx: click.Context, config_path: str, overrides: tuple[str, ...]) -> None:
    """Write the HTML report from the smoke test, the load test and the gate, as far as they have run."""
    refuse_misplaced(ctx)
    if ctx.invoked_subcommand is not None:
        return
    from specdeploy.pipeline import measure

    say(f"wrote {measure.report(load(config_path, overrides))}")


@command.command("merge")
@click.argument("sources", nargs=-1, metavar="[FILE|FOLDER]...", type=click.Path(path_type=Path))
@click.option("--partial", is_flag=True, help="Merge what is there although shards are missing: the result is partial.")
@click.option(
    "--output",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Where load.json and its records go, if not beside the first shard.",
)
@export_option
@config_option
@overrides_option
@json_option
def merge(
    sources: tuple[Path, ...],
    partial: bool,
    output: Path | None,
    formats: tuple[str, ...],
    config_path: str,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int:
    """Put the results of `load --shard` together: one load.json and its records, from the raw records of all shards.

    Each FILE is a load-shard-i-of-N.json with its records beside it, each FOLDER holds them; without either, they are
    in the report folder of the configuration, which is read for nothing else. Exit code 0 when the run is whole, 3
    when no request succeeded, and when a shard is missing or ended early.
    """
    from specdeploy.cli import _render
    from specdeploy.errors import EXIT_CANNOT_DECIDE, EXIT_OK
    from specdeploy.pipeline.exporting import export, require_exports
    from specdeploy.pipeline.shards import merge_results
    from specdeploy.pipeline.workspace import workspace
    from specdeploy.report.text import load_table

    sources = sources or (workspace(load(config_path, overrides)).reports,)
    folder = output or (sources[0] if sources[0].is_dir() else sources[0].parent)
    require_exports(formats, folder)
    document = merge_results(sources, folder, partial=partial)
    written = export(folder, document, formats)
    if as_json:
        _render.document(document)
    else:
        say(load_table(document))
        tell(f"wrote {folder / 'load.json'} from {len(document['shards']['present'])} shards")
        for path in written:
            tell(f"wrote {path}")
    answered = any("request_throughput" in arm["metrics"] for arm in document["arms"])
    return EXIT_OK if answered and not document["partial"] else EXIT_CANNOT_DECIDE
