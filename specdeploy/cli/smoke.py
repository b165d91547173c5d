"""``specdeploy smoke``: is the deployment up, wired, speculating, and still the target's?"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from specdeploy.cli._options import config_option, json_option, overrides_option, with_config
from specdeploy.cli._server import at_server
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specdeploy.cli._server import ServerChoice
    from specdeploy.config.load import LoadedConfig
    from specdeploy.findings import Finding, Severity
    from specdeploy.pipeline.smoking import Subject


class _Foreign(NamedTuple):
    """A server that is not of ours: an OpenAI-compatible one, or NVIDIA's templates at ``--http`` and ``--grpc``."""

    openai: str | None
    api_model: str | None
    api_key_env: str | None
    front_door: str | None

    def require_sense(self, server: ServerChoice) -> None:
        """Stop when the options contradict each other.

        Raises:
            ConfigError: They do.
        """
        if self.openai is None:
            if self.api_model is not None or self.api_key_env is not None:
                raise ConfigError("--api-model and --api-key-env are for --openai", hint="give --openai URL, too")
        elif server.http is not None or server.grpc is not None or server.serve or self.front_door is not None:
            raise ConfigError(
                "--openai names a server, and so do --http, --grpc, --serve and --front-door", hint="give one of them"
            )
        if self.front_door is not None and server.http is None:
            raise ConfigError(
                f"--front-door {self.front_door} is for a server that is not ours", hint="give --http and --grpc, too"
            )


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of every run: configuration and server, ours or another."""
    options = (
        click.option(
            "--front-door", metavar="NAME", help="Test NVIDIA's templates at --http and --grpc by this model."
        ),
        click.option("--openai", metavar="URL", help="Test an OpenAI-compatible server, as http://127.0.0.1:8000/v1."),
        click.option("--api-model", metavar="NAME", help="The model to ask it for, where it has several."),
        click.option("--api-key-env", metavar="VAR", help="The environment variable that holds its key."),
        click.option("--prompts", default="", metavar="SET", help="What is recorded: code, chat or a JSONL file."),
    )
    for option in reversed(options):
        command = option(command)
    return at_server(command)


@click.group("smoke", invoke_without_command=True)
@click.option("--only", multiple=True, metavar="CHECK", help="Run only this check; repeatable.")
@click.option("--skip", multiple=True, metavar="CHECK", help="Leave this check out; repeatable.")
@click.option("--quick", is_flag=True, help="Only what a readiness gate needs, within 10 s.")
@click.option("--self-draft", is_flag=True, help="The draft is the target: nearly every draft must be accepted.")
@click.option(
    "--samples", type=click.IntRange(min=0), help="As smoke.samples: sampled answers with and without drafts."
)
@click.option("--golden", default="", metavar="FILE", help="Compare with the answers that `smoke record` wrote.")
@click.option("--junit", metavar="FILE", help="Also write the outcome as JUnit XML.")
@click.option(
    "--format",
    "how",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="How to show the outcome; github: as annotations of a workflow.",
)
@_options
@config_option
@overrides_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    quick: bool,
    self_draft: bool,
    samples: int | None,
    golden: str,
    junit: str | None,
    how: str,
    server: ServerChoice,
    openai: str | None,
    api_model: str | None,
    api_key_env: str | None,
    front_door: str | None,
    prompts: str,
    config_path: str,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int | None:
    """Run the smoke test against the running deployment.

    Exit code 0 when every check passed, 1 when one failed, 3 when one could not decide or none ran, 4 when the server
    was lost. docs/smoke.md explains each check.
    """
    if ctx.invoked_subcommand is not None:
        return None
    from specdeploy.cli import _events
    from specdeploy.cli._options import load
    from specdeploy.pipeline import smoking

    loaded = smoking.adjusted(load(config_path, overrides), quick=quick, self_draft=self_draft, samples=samples)
    choice = smoking.Choice(only=only, skip=skip, quick=quick, golden=golden, prompts=prompts)
    foreign = _Foreign(openai, api_model, api_key_env, front_door)

    def show(document: Mapping[str, Any]) -> None:
        _show(document, "json" if as_json else how)
        if junit is not None:
            _write_junit(junit, document)

    with _leaving_promptly(), _subject(loaded, server, foreign) as subject:
        report = smoking.run(loaded, subject, choice, on_check=_events.check_line, on_document=show)
    return report.exit_code


@command.command("record")
@click.option(
    "-o", "--output", default="golden.json", show_default=True, metavar="FILE", help="Where the answers are written."
)
@_options
@with_config
@json_option
def record(
    loaded: LoadedConfig,
    output: str,
    server: ServerChoice,
    openai: str | None,
    api_model: str | None,
    api_key_env: str | None,
    front_door: str | None,
    prompts: str,
    as_json: bool,
) -> None:
    """Record the target's greedy answers.

    `smoke --golden FILE` compares with them. The prompts are the smoke test's own unless --prompts names others.
    """
    from pathlib import Path

    from specdeploy.cli import _render
    from specdeploy.pipeline import smoking

    foreign = _Foreign(openai, api_model, api_key_env, front_door)
    with _leaving_promptly(), _subject(loaded, server, foreign) as subject:
        golden = smoking.record(loaded, subject, Path(output), prompts=prompts)
    if as_json:
        _render.document(golden.as_dict())
    else:
        tokens = sum(len(answer.ids) for answer in golden.answers)
        click.echo(f"{output}: {len(golden.answers)} answers, {tokens} tokens, prompts {golden.prompt_set}")


@contextlib.contextmanager
def _subject(loaded: LoadedConfig, server: ServerChoice, foreign: _Foreign) -> Iterator[Subject]:
    """Yield what to test; a server that is started for it is stopped at the end."""
    from specdeploy.pipeline import smoking

    foreign.require_sense(server)
    if foreign.openai is not None:
        from specdeploy.pipeline.smoke_targets import openai_target

        target = openai_target(
            foreign.openai, model=foreign.api_model, config=loaded.config, api_key_env=foreign.api_key_env
        )
        yield smoking.other(loaded, target, kind="openai", url=foreign.openai)
        return
    with server.endpoints(loaded) as endpoints:
        if foreign.front_door is None:
            yield smoking.own(loaded, endpoints)
            return
        from specdeploy.pipeline.smoke_targets import nvidia_target

        templates = nvidia_target(endpoints, front_door=foreign.front_door, config=loaded.config)
        yield smoking.other(loaded, templates, kind="nvidia", url=endpoints.http_url)


def _show(document: Mapping[str, Any], how: str) -> None:
    from specdeploy.cli import _render
    from specdeploy.report.text import smoke_summary, smoke_table

    if how == "json":
        _render.document(document)
    elif how == "github":
        _render.github_annotations(_findings(document), "")
        click.echo(smoke_summary(document))
    else:
        click.echo(smoke_table(document))


def _findings(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what GitHub is to show: what failed, and what is not known."""
    from specdeploy.findings import Finding

    if document["server_lost"]:
        yield Finding(severity="error", code="smoke.server-lost", message=document["server_lost"])
    if document["interrupted"]:
        yield Finding(severity="error", code="smoke.interrupted", message="the smoke test was interrupted: partial")
    for check in document["checks"]:
        if check["status"] in {"fail", "undecided"}:
            severity: Severity = "error" if check["status"] == "fail" else "warning"
            yield Finding(severity=severity, code=f"smoke.{check['name']}", message=check["reason"], hint=check["hint"])


def _write_junit(path: str, document: Mapping[str, Any]) -> None:
    from pathlib import Path

    from specdeploy.smoke.junit import junit
    from specdeploy.system.files import write_atomic

    try:
        write_atomic(Path(path), junit(document))
    except OSError as error:
        raise ConfigError(
            f"--junit: {path} cannot be written: {error.strerror}", hint="name a file in a folder that we may write to"
        ) from error


# What is left behind ends with its clients; this is for what does not.
_LEAVE_AFTER_S = 0.3


@contextlib.contextmanager
def _leaving_promptly() -> Iterator[None]:
    """See to it that a process which a signal ends is gone soon after the block has been left.

    A check that is left behind may have a pool of threads that wait for a server, and the interpreter waits for them at
    its exit, for as long as their requests may take. Whatever was started is stopped by then, and results are written.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            _exit_soon(error)
        raise


def _exit_soon(ending: BaseException) -> None:
    import os
    import threading
    import time

    from specdeploy.pipeline.smoking import exit_code
    from specdeploy.smoke.isolation import left_behind

    if not left_behind():
        return

    def leave() -> None:
        time.sleep(_LEAVE_AFTER_S)
        os._exit(exit_code(ending))

    threading.Thread(target=leave, name="smoke-exit", daemon=True).start()
