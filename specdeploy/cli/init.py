"""``specdeploy init``: write a commented configuration to start from."""

from __future__ import annotations

import click

from specdeploy.cli._streams import tell


@click.command("init")
@click.argument("file", metavar="PATH", type=click.Path(), default="specdeploy.yaml")
@click.option("--name", default="my-deployment", show_default=True, help="Name of the deployment.")
@click.option("--target", default="checkpoints/target", show_default=True, help="Checkpoint folder of the target.")
@click.option("--draft", default="checkpoints/draft", show_default=True, help="Checkpoint folder of the draft.")
@click.option(
    "--profile",
    type=click.Choice(["cpu", "tensorrt_llm", "llmapi"]),
    default="cpu",
    show_default=True,
    help="Engine profile.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def command(file: str, name: str, target: str, draft: str, profile: str, force: bool) -> None:
    """Write a commented specdeploy.yaml with every key and its default."""
    from pathlib import Path

    from specdeploy.config.template import render_template
    from specdeploy.errors import ConfigError
    from specdeploy.system.files import write_atomic

    path = Path(file)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder", hint=f"name the file, such as {path / 'specdeploy.yaml'}")
    if path.exists() and not force:
        raise ConfigError(f"{path} exists already", hint="name another file, or overwrite it with --force")
    try:
        write_atomic(path, render_template(name=name, target=target, draft=draft, profile=profile))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", hint="name a file in another folder"
        ) from error
    tell(f"wrote {path}; next: specdeploy check --config {path}")
