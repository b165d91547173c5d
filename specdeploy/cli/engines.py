"""``specdeploy engines``: what the store holds, and keeping it in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import json_option, with_config
from specdeploy.cli._streams import say

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.storage import Pruned


@click.group("engines")
def command() -> None:
    """List, show, verify, prune, remove and export the engines of the store."""


@command.command("list")
@with_config
@json_option
def list_(loaded: LoadedConfig, as_json: bool) -> None:
    """List the complete engines, the oldest first, and what the configuration uses them as."""
    from specdeploy.cli import _render
    from specdeploy.pipeline import storage

    engines = storage.list_engines(loaded)
    if as_json:
        _render.document({"schema_version": "1.0", "kind": "engines", "engines": [e.as_dict() for e in engines]})
        return
    header = ("key", "engine", "profile", "release", "method", "GPU", "ranks", "size", "made", "used as")
    rows = [
        (
            engine.manifest.key[:16],
            engine.manifest.name,
            engine.manifest.profile,
            str(engine.manifest.facts.get("release", "")),
            str(engine.manifest.facts.get("method", "")),
            str(engine.manifest.facts.get("compute_capability", "")),
            str(engine.manifest.facts.get("world_size", 1)),
            _render.size(engine.manifest.size_bytes),
            engine.manifest.created,
            "unknown" if engine.roles is None else ", ".join(engine.roles) or "-",
        )
        for engine in engines
    ]
    say(_render.table(header, rows) if rows else "the store is empty")


@command.command("show")
@click.argument("key")
@with_config
@json_option
def show(loaded: LoadedConfig, key: str, as_json: bool) -> None:
    """Show one engine's manifest: KEY is the beginning of its key, its name, or its role (target, draft)."""
    import shlex

    from specdeploy.cli import _render
    from specdeploy.pipeline import storage

    engine = storage.find_engine(loaded, key)
    if as_json:
        _render.document(engine.as_dict())
        return
    manifest = engine.manifest
    rows = [
        ("key", manifest.key),
        ("engine", manifest.name),
        ("path", str(engine.path)),
        ("profile", manifest.profile),
        ("checkpoint", f"{manifest.checkpoint_name} ({manifest.checkpoint_fingerprint[:16]})"),
        ("precision", manifest.precision),
        ("max_seq_len", str(manifest.max_seq_len)),
        *((name, str(value)) for name, value in manifest.facts.items()),
        *((name, str(value)) for name, value in manifest.host.items() if value is not None),
        ("size", _render.size(manifest.size_bytes)),
        ("made", f"{manifest.created}, in {manifest.duration_s:.1f} s"),
        *((f"step {step}", f"{seconds:.1f} s") for step, seconds in manifest.steps.items()),
        *(("command", shlex.join(argv)) for argv in manifest.argv),
    ]
    say(_render.table(("what", "value"), rows))


@command.command("verify")
@click.argument("keys", nargs=-1)
@click.option("--full", is_flag=True, help="Read every byte and compare its SHA-256.")
@with_config
@json_option
def verify(loaded: LoadedConfig, keys: tuple[str, ...], full: bool, as_json: bool) -> int:
    """Check engines against their manifests: KEYS, or all of them."""
    from specdeploy.cli import _render
    from specdeploy.errors import EXIT_ENVIRONMENT, EXIT_OK
    from specdeploy.pipeline import storage

    count, findings = storage.verify_engines(loaded, keys, full=full)
    if as_json:
        document = {"schema_version": "1.0", "kind": "engines-verify", "engines": count}
        _render.document(document | {"full": full, "findings": [finding.as_dict() for finding in findings]})
    else:
        _render.findings(findings)
        how = "every byte was read" if full else "files and sizes; --full reads every byte"
        say(f"{count} engines, {len(findings)} problems ({how})")
    return EXIT_ENVIRONMENT if findings else EXIT_OK


@command.command("prune")
@click.option("--unused", is_flag=True, help="Also engines that this configuration does not use; needs --yes.")
@click.option("--keep", multiple=True, metavar="FILE", help="Another configuration whose engines stay; repeatable.")
@click.option("--yes", is_flag=True, help="Remove unused engines, not only say which.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@with_config
@json_option
def prune(loaded: LoadedConfig, unused: bool, keep: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove what interrupted builds left: half an engine, single steps, damaged engines that were moved aside."""
    from specdeploy.cli import _render
    from specdeploy.cli._options import load
    from specdeploy.pipeline import storage

    only_said = dry_run or (unused and not yes)
    pruned = storage.prune(loaded, unused=unused, keep=[load(path) for path in keep], dry_run=only_said)
    if as_json:
        _render.document({"schema_version": "1.0", "kind": "engines-prune", "dry_run": only_said, **pruned.as_dict()})
        return
    _show_removed(pruned, "would remove" if only_said else "removed")
    if unused and only_said and not dry_run:
        say("nothing was removed: other configurations may use these engines (--keep FILE); --yes removes them")


@command.command("remove")
@click.argument("keys", nargs=-1, required=True)
@with_config
@json_option
def remove(loaded: LoadedConfig, keys: tuple[str, ...], as_json: bool) -> None:
    """Remove engines, such as damaged ones: KEYS are the beginnings of keys, names or roles."""
    from specdeploy.cli import _render
    from specdeploy.pipeline import storage

    pruned = storage.remove(loaded, keys)
    if as_json:
        _render.document({"schema_version": "1.0", "kind": "engines-remove", **pruned.as_dict()})
    else:
        _show_removed(pruned, "removed")


def _show_removed(pruned: Pruned, verb: str) -> None:
    from specdeploy.cli import _render

    for path in pruned.paths:
        say(f"{verb} {path}")
    for path in pruned.busy:
        say(f"kept {path}: it is being built")
    say(f"{verb} {len(pruned.paths)} directories, {_render.size(pruned.size_bytes)}")


@command.command("export")
@click.argument("key")
@click.argument("destination", type=click.Path(path_type=Path))
@with_config
def export(loaded: LoadedConfig, key: str, destination: Path) -> None:
    """Copy one engine with its manifest to DESTINATION: a new directory, or a .tar file."""
    from specdeploy.pipeline import storage

    say(f"wrote {storage.export(loaded, key, destination)}")
