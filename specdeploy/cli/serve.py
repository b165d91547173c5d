"""``specdeploy serve``: serve the repository with a real tritonserver; find and stop a detached one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specdeploy.cli._options import json_option, with_config

if TYPE_CHECKING:
    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.serving import Addresses

_LOOK_EVERY_S = 1.0


@click.group("serve", invoke_without_command=True)
@click.option("--detach", is_flag=True, help="Leave the server running and return; `serve stop` ends it.")
@click.option("-c", "--config", "config_path", default="specdeploy.yaml", show_default=True, help="The configuration.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one key; repeatable.")
@click.pass_context
def command(ctx: click.Context, detach: bool, config_path: str, overrides: tuple[str, ...]) -> None:
    """Serve the repository with a real tritonserver until Ctrl-C; ready when every model is.

    Ports are free ones on loopback unless the configuration names them.
    """
    if ctx.invoked_subcommand is not None:
        return
    import threading

    from specdeploy.cli import _render
    from specdeploy.cli._options import load
    from specdeploy.pipeline import serving

    loaded = load(config_path, overrides)
    note = _render.Progress().note
    if detach:
        click.echo(_where(serving.serve_detached(loaded, on_line=note)))
        return
    with serving.serve(loaded, on_line=note) as running:
        click.echo(_where(serving.addresses(running)))
        click.echo(f"log: {running.log}\nCtrl-C stops it", err=True)
        pause = threading.Event()
        while not pause.wait(_LOOK_EVERY_S):
            running.require_alive()


@command.command("status")
@with_config
@json_option
def status(loaded: LoadedConfig, as_json: bool) -> int:
    """Show where the detached server answers and whether every model is ready; exit code 4 when not."""
    from specdeploy.cli import _render
    from specdeploy.errors import EXIT_ENVIRONMENT, EXIT_OK
    from specdeploy.pipeline import serving

    seen = serving.status(loaded)
    if as_json:
        _render.document(seen)
    else:
        rows = [(key, str(seen[key])) for key in ("ready", "http_url", "grpc_url", "metrics_url", "pid", "log")]
        click.echo(_render.table(("what", "value"), rows))
    return EXIT_OK if seen["ready"] else EXIT_ENVIRONMENT


@command.command("stop")
@with_config
def stop(loaded: LoadedConfig) -> None:
    """Stop the detached server; fine when there is none."""
    from specdeploy.pipeline import serving

    click.echo("stopped" if serving.stop(loaded) else "no server was running")


def _where(addresses: Addresses) -> str:
    from specdeploy.cli import _render

    rows = [("HTTP", addresses.http_url), ("gRPC", addresses.grpc_url), ("metrics", addresses.metrics_url or "-")]
    return _render.table(("endpoint", "address"), rows)
