"""``specdeploy repo``: write the Triton model repository; look at an image's templates; compare and move others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specdeploy.cli._options import config_option, json_option, overrides_option, refuse_misplaced
from specdeploy.cli._streams import say, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.pipeline.repositories import Moved
    from specdeploy.triton.repository.templates import Comparison, Template

_FOLDER = click.Path(path_type=Path)


@click.group("repo", invoke_without_command=True)
@config_option
@overrides_option
@click.option("--engine-root", metavar="DIR", help="Folder of the engines where the repository is served.")
@click.option(
    "--from-image",
    "image",
    metavar="DIR",
    type=_FOLDER,
    help="Write nothing: compare an image's templates (/app/all_models) with the table.",
)
@click.option("--release", help="With --from-image: compare with this release. Default: the one that differs least.")
@click.option("--json", "as_json", is_flag=True, help="Print a machine-readable document instead.")
@click.pass_context
def command(
    ctx: click.Context,
    config_path: str,
    overrides: tuple[str, ...],
    engine_root: str | None,
    image: Path | None,
    release: str | None,
    as_json: bool,
) -> None:
    """Write the Triton model repository from the configuration and the built engines, and lint it."""
    refuse_misplaced(ctx)
    if ctx.invoked_subcommand is not None:
        return
    if image is not None:
        _show_image(image, release, as_json=as_json)
        return
    if release is not None:
        raise click.UsageError("--release goes with --from-image, or with a subcommand")
    if engine_root is not None and not (engine_root and engine_root.isprintable()):
        raise click.BadParameter(f"{engine_root!r} is no folder", param_hint="--engine-root")
    asked = overrides if engine_root is None else (*overrides, f"repo.engine_root={engine_root}")
    _write(config_path, asked, as_json=as_json)


def _write(config_path: str, overrides: tuple[str, ...], *, as_json: bool) -> None:
    from specdeploy.cli import _render
    from specdeploy.cli._options import load
    from specdeploy.pipeline import engines, prepare
    from specdeploy.pipeline.workspace import workspace

    loaded = load(config_path, overrides)
    place = workspace(loaded)
    findings = prepare.write_repository(loaded, engines.find_built(loaded))
    if as_json:
        document = {"schema_version": "1.0", "kind": "repo", "repository": str(place.repository)}
        _render.document(document | {"findings": [finding.as_dict() for finding in findings]})
        return
    _render.findings(findings)
    named = "" if config_path == "specdeploy.yaml" else f" --config {config_path}"
    say(f"wrote {place.repository}; next: specdeploy serve{named}")
    if (pid := prepare.served_by(loaded)) is not None:
        tell(f"the server that runs from it (process {pid}) has the old one until it is started again")


def _show_image(image: Path, release: str | None, *, as_json: bool) -> None:
    from specdeploy.cli import _render
    from specdeploy.pipeline import repositories

    compared = repositories.compare_image(image, release)
    if as_json:
        _render.document(compared.as_dict())
    else:
        say(_comparison(compared))


def _comparison(compared: Comparison) -> str:
    from specdeploy.cli import _render

    counts = [
        (name, *(str(len(part)) for part in (template.inputs, template.outputs, template.parameters)))
        for name, template in compared.templates.items()
    ]
    parts = [_render.table(("template", "inputs", "outputs", "parameters"), counts)]
    parts += ["\n".join(_placeholders(name, template)) for name, template in compared.templates.items()]
    row = f"{compared.row}{' (derived)' if compared.derived else ''}"
    if compared.differences:
        rows = [
            (one.model, one.part, one.kind, one.name, one.ours or "-", one.image or "-") for one in compared.differences
        ]
        parts.append(f"{len(rows)} differences from the table of {row}:")
        parts.append(_render.table(("template", "part", "what", "name", "table", "image"), rows))
    else:
        parts.append(f"no difference from the table of {row}")
    if compared.others:
        parts.append(f"not compared: {', '.join(compared.others)}")
    return "\n\n".join(parts)


def _placeholders(name: str, template: Template) -> Iterator[str]:
    yield f"placeholders of {name}:"
    for position in dict.fromkeys(template.placeholders.values()):
        keys = [key for key, where in template.placeholders.items() if where == position]
        yield f"  {position}: {', '.join(keys)}"


@command.command("diff")
@click.argument("a", type=_FOLDER)
@click.argument("b", type=_FOLDER)
@json_option
def diff(a: Path, b: Path, as_json: bool) -> int:
    """Compare the model repositories A and B by model and field; exit code 1 when they differ.

    The order of tensors, parameters and steps does not count, nor does a default that is written out.
    """
    from specdeploy.cli import _render
    from specdeploy.errors import EXIT_FAILED, EXIT_OK
    from specdeploy.pipeline import repositories
    from specdeploy.triton.repository.diff import changes_document

    changes = repositories.compare_repositories(a, b)
    if as_json:
        _render.document(changes_document(changes, names=(str(a), str(b))))
    elif changes:
        model = ""
        for change in changes:
            if change.model != model:
                model = change.model
                say(model)
            say(f"  {change.field}")
            for sign, value, colour in (("-", change.before, "red"), ("+", change.after, "green")):
                if value is not None:
                    say(click.style(f"    {sign} {value}", fg=colour))
    else:
        say("the same")
    return EXIT_FAILED if changes else EXIT_OK


@command.command("migrate")
@click.argument("source", type=_FOLDER)
@click.argument("destination", type=_FOLDER)
@click.option("--name", default="", help="Name of the deployment. Default: that of SOURCE.")
@click.option("--engines", type=_FOLDER, metavar="DIR", help="SOURCE a folder: where its engines lie on this machine.")
@click.option("--tokenizer", type=_FOLDER, metavar="DIR", help="SOURCE a folder: where its tokenizer lies here.")
@click.option(
    "--templates", type=_FOLDER, metavar="DIR", help="SOURCE a folder: its image's all_models, to compare code."
)
@click.option("--draft-model", help="SOURCE a folder: the model that proposes, when tensorrt_llm_bls names none.")
@click.option("--method", default="", help="SOURCE a file: another speculation method, for one that is no more.")
@click.option("--draft", default="", metavar="DIR", help="SOURCE a file: another draft checkpoint or head.")
@click.option("--release", default="", help="SOURCE a file: another release of TensorRT-LLM.")
@json_option
def migrate(source: Path, destination: Path, as_json: bool, **options: Any) -> None:
    """Move a deployment, and list what is carried over, what changes and what is lost.

    SOURCE is a folder: an NVIDIA inflight_batcher_llm repository that was filled in by hand. DESTINATION becomes a
    folder with our repository around the same engines (models), its specdeploy.yaml and the list (migration.txt,
    migration.json).

    SOURCE is a file: the specdeploy.yaml of a deployment on engines (profile tensorrt_llm). DESTINATION becomes the
    specdeploy.yaml of the same deployment on the LLM API (profile llmapi).

    SOURCE is only read. A DESTINATION that exists is refused unless specdeploy made it; a file always is.
    """
    from specdeploy.cli import _render

    moved = _move(source, destination, options)
    if as_json:
        _render.document(dict(moved.document))
        return
    from specdeploy.triton.repository.notes import notes_text

    say(notes_text(moved.notes), nl=False)
    _render.findings(moved.findings)
    following = "serve" if source.is_dir() else "check"
    say(f"wrote {moved.written}; look it through, then: specdeploy {following} --config {moved.config}")


def _move(source: Path, destination: Path, options: dict[str, Any]) -> Moved:
    from specdeploy.pipeline import repositories

    folder_only = ("engines", "tokenizer", "templates", "draft_model", "name")
    file_only = ("method", "draft", "release")
    misplaced = [name for name in (folder_only if source.is_file() else file_only) if options[name]]
    if misplaced:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in misplaced)
        raise click.UsageError(f"{listed} cannot be used: {source} is a {'file' if source.is_file() else 'folder'}")
    if source.is_file():
        return repositories.migrate_config(source, destination, **{name: options[name] for name in file_only})
    elsewhere = repositories.Elsewhere(**{name: options[name] for name in folder_only[:3]})
    return repositories.migrate_repository(
        source, destination, name=options["name"], draft=options["draft_model"], elsewhere=elsewhere
    )
