"""``specdeploy serve``: serve the repository with a real tritonserver; find, show and stop a detached one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from specdeploy.cli._options import config_option, json_option, overrides_option, refuse_misplaced, with_config
from specdeploy.cli._streams import say, tell

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.serving import Addresses
    from specdeploy.triton.server import RunningServer

_LOOK_EVERY_S = 1.0
_UNKNOWN = "not measured"


@click.group("serve", invoke_without_command=True)
@click.option("--detach", is_flag=True, help="Leave the server running and return; `serve stop` ends it.")
@click.option("--dry-run", is_flag=True, help="Print the command line that would start it, and start nothing.")
@json_option
@config_option
@overrides_option
@click.pass_context
def command(
    ctx: click.Context, detach: bool, dry_run: bool, as_json: bool, config_path: str, overrides: tuple[str, ...]
) -> None:
    """Serve the repository with a real tritonserver until Ctrl-C; ready when every model is.

    Ready also means that a first request through the front door has been answered. Ports are free ones on loopback
    unless the configuration names them.
    """
    refuse_misplaced(ctx)
    if ctx.invoked_subcommand is not None:
        return
    from specdeploy.cli import _render
    from specdeploy.cli._options import load
    from specdeploy.pipeline import serving

    loaded = load(config_path, overrides)
    if dry_run:
        _show_plan(loaded, as_json)
        return
    note = _render.Progress().note
    if detach:
        _show_addresses(serving.serve_detached(loaded, on_line=note), as_json)
        return
    with serving.serve(loaded, on_line=note) as running:
        _show_addresses(serving.addresses(running), as_json)
        tell(f"log: {running.log}\nCtrl-C stops it")
        _watch(running)


@command.command("status")
@with_config
@click.option("--probe", is_flag=True, help="Also send one request: a model that lost its process still looks ready.")
@json_option
def status(loaded: LoadedConfig, probe: bool, as_json: bool) -> int:
    """Show the running server: models, queues, KV cache, acceptance; exit code 4 when it is not ready."""
    from specdeploy.cli import _render
    from specdeploy.errors import EXIT_ENVIRONMENT, EXIT_OK
    from specdeploy.pipeline import serving

    seen = serving.status(loaded, probe=probe)
    if as_json:
        _render.document(seen)
    else:
        say(_summary(seen))
        say(f"\n{_models(seen)}")
    return EXIT_OK if seen["ready"] else EXIT_ENVIRONMENT


@command.command("stop")
@with_config
def stop(loaded: LoadedConfig) -> None:
    """Stop the detached server; fine when there is none."""
    from specdeploy.pipeline import serving

    say("stopped" if serving.stop(loaded) else "no server was running")


def _watch(running: RunningServer) -> None:
    """Look after the server until it is stopped, dies, which raises, or a signal comes."""
    import threading

    pause = threading.Event()
    while not pause.wait(_LOOK_EVERY_S):
        if running.was_stopped():
            tell("another command stopped it")
            return
        running.require_alive()


def _show_plan(loaded: LoadedConfig, as_json: bool) -> None:
    from specdeploy.cli import _render
    from specdeploy.pipeline.launching import plan

    planned = plan(loaded)
    if as_json:
        _render.document(planned.as_dict())
        return
    say(planned.launch.shown())
    for line in planned.notes:
        tell(f"# {line}")


def _show_addresses(addresses: Addresses, as_json: bool) -> None:
    from specdeploy.cli import _render

    if as_json:
        _render.document({"schema_version": "1.0", "kind": "addresses", **addresses.as_dict()})
        return
    rows = [("HTTP", addresses.http_url), ("gRPC", addresses.grpc_url), ("metrics", addresses.metrics_url or "-")]
    say(_render.table(("endpoint", "address"), rows))


def _summary(seen: dict[str, Any]) -> str:
    from specdeploy.cli import _render

    rows = [("ready", "yes" if seen["ready"] else f"no: {_why(seen)}")]
    if seen["answers"] is not None:
        rows.append(("answers", "yes" if seen["answers"] else "no"))
    rows.append(("acceptance", _acceptance(seen["acceptance"])))
    rows += [(key, str(seen[key] or "-")) for key in ("http_url", "grpc_url", "metrics_url", "pid", "log")]
    return _render.table(("what", "value"), rows)


def _why(seen: dict[str, Any]) -> str:
    return seen["complaint"] or ", ".join(seen["unready_models"]) or "the server says so"


def _acceptance(drafts: dict[str, Any] | None) -> str:
    if drafts is None:
        return _UNKNOWN
    counts = f"{drafts['accepted']} of {drafts['drafted']} draft tokens"
    return counts if drafts["rate"] is None else f"{drafts['rate']:.3f} ({counts})"


def _models(seen: dict[str, Any]) -> str:
    from specdeploy.cli import _render

    header = ("model", "version", "state", "answered", "failed", "queue", "KV cache")
    return _render.table(header, [_row(model) for model in seen["models"]])


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    counts = (model[key] for key in ("succeeded", "failed", "queue"))
    return (
        model["name"],
        model["version"] or "-",
        model["state"] or "not loaded",
        *(_UNKNOWN if count is None else str(count) for count in counts),
        _blocks(model["kv_cache"]),
    )


def _blocks(kv_cache: dict[str, float] | None) -> str:
    if not kv_cache or "used" not in kv_cache or "max" not in kv_cache:
        return _UNKNOWN
    return f"{kv_cache['used']:.0f} of {kv_cache['max']:.0f} blocks"
