"""``specdeploy smoke``: is the deployment up, wired, speculating, and still the target's?"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from specdeploy.cli._options import (
    config_option,
    format_option,
    json_option,
    overrides_option,
    refuse_misplaced,
    with_config,
)
from specdeploy.cli._server import at_server
from specdeploy.cli._streams import say, tell
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from specdeploy.cli._server import ServerChoice
    from specdeploy.config.load import LoadedConfig
    from specdeploy.findings import Finding, Severity
    from specdeploy.pipeline.smoke_results import Place
    from specdeploy.pipeline.smoking import Subject
    from specdeploy.smoke.report import CheckResult


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
        elif server.named or self.front_door is not None:
            raise ConfigError(
                "--openai names a server, and so do --http, --grpc, --metrics, --serve and --front-door",
                hint="give one of them",
            )
        if self.front_door is not None and server.http is None:
            raise ConfigError(
                f"--front-door {self.front_door} is for a server that is not ours", hint="give --http and --grpc, too"
            )

    def place(self, loaded: LoadedConfig, server: ServerChoice, junit: Path | None = None) -> Place:
        """Return where the results are kept, and what they say of the server.

        Raises:
            ConfigError: The address is none.
        """
        from specdeploy.pipeline import smoke_results

        if self.openai is not None:
            from specdeploy.openai import ServerAddress

            # What it refuses may hold a password; what it takes does not, and may stand in the results.
            ServerAddress.parse(self.openai)
            return smoke_results.other_place(loaded, kind="openai", url=self.openai, junit=junit)
        if self.front_door is not None:
            return smoke_results.other_place(loaded, kind="nvidia", url=server.http or "", junit=junit)
        return smoke_results.own_place(loaded, junit)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of every run: configuration and server, ours or another."""
    options = (
        click.option(
            "--front-door", metavar="NAME", help="Test NVIDIA's templates at --http and --grpc by this model."
        ),
        click.option("--openai", metavar="URL", help="Test an OpenAI-compatible server, as http://127.0.0.1:8000/v1."),
        click.option("--api-model", metavar="NAME", help="The model to ask it for, where it has several."),
        click.option("--api-key-env", metavar="VAR", help="The environment variable that holds its key."),
        click.option("--prompts", default="", metavar="SET", help="What is recorded: a bundled set or a file."),
    )
    for option in reversed(options):
        command = option(command)
    return at_server(command)


@click.group("smoke", invoke_without_command=True)
@click.option("--only", multiple=True, metavar="CHECK", help="Run only this check; repeatable.")
@click.option("--skip", multiple=True, metavar="CHECK", help="Leave this check out; repeatable.")
@click.option("--quick", is_flag=True, help="Only what a readiness gate needs, or --only, within 10 s.")
@click.option("--self-draft", is_flag=True, help="The draft is the target: nearly every draft must be accepted.")
@click.option(
    "--samples", type=click.IntRange(min=0), help="As smoke.samples: sampled answers with and without drafts."
)
@click.option("--golden", default="", metavar="FILE", help="Compare with the answers that `smoke record` wrote.")
@click.option("--junit", metavar="FILE", help="Also write the outcome as JUnit XML.")
@format_option("How to show the outcome; github: as annotations of a workflow.")
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
    refuse_misplaced(ctx)
    if ctx.invoked_subcommand is not None:
        return None
    from pathlib import Path

    from specdeploy.cli._options import load
    from specdeploy.pipeline import smoking

    loaded = smoking.adjusted(load(config_path, overrides), quick=quick, self_draft=self_draft, samples=samples)
    choice = smoking.Choice(only=only, skip=skip, quick=quick, golden=golden, prompts=prompts)
    foreign = _Foreign(openai, api_model, api_key_env, front_door)
    foreign.require_sense(server)
    if junit == "":
        raise ConfigError("--junit names no file", hint="name one, such as smoke.xml")
    place = foreign.place(loaded, server, None if junit is None else Path(junit)).of_part(choice.part)

    def show(document: Mapping[str, Any]) -> None:
        _show(document, "json" if as_json else how)

    watcher = smoking.Watcher(on_check=_show_check, on_document=show, on_problem=_show_problem)
    with _leaving_promptly():
        sought = _subject(loaded, server, foreign, place, quick=quick)
        return smoking.conduct(loaded, sought, choice, place, watcher).exit_code


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
    from specdeploy.pipeline.outputs import require_writable

    foreign = _Foreign(openai, api_model, api_key_env, front_door)
    foreign.require_sense(server)
    require_writable(Path(output), "-o")
    place = foreign.place(loaded, server)
    with _leaving_promptly(), _subject(loaded, server, foreign, place) as subject:
        golden = smoking.record(loaded, subject, Path(output), prompts=prompts)
    if as_json:
        _render.document(golden.as_dict())
    else:
        tokens = sum(len(answer.ids) for answer in golden.answers)
        say(f"{output}: {len(golden.answers)} answers, {tokens} tokens, prompts {golden.prompt_set}")


@contextlib.contextmanager
def _subject(
    loaded: LoadedConfig, server: ServerChoice, foreign: _Foreign, place: Place, *, quick: bool = False
) -> Iterator[Subject]:
    """Yield what to test; a server that is started for it is stopped at the end."""
    from specdeploy.pipeline import smoking
    from specdeploy.pipeline.smoke_targets import nvidia_target, openai_target

    config = loaded.config
    if foreign.openai is not None:
        ask = functools.partial(
            openai_target, foreign.openai, model=foreign.api_model, config=config, api_key_env=foreign.api_key_env
        )
        yield smoking.other(loaded, lambda limit_s: ask(limit_s=limit_s), place, quick=quick)
        return
    with server.endpoints(loaded) as endpoints:
        if foreign.front_door is None:
            yield smoking.own(loaded, endpoints, place)
            return
        look = functools.partial(nvidia_target, endpoints, front_door=foreign.front_door, config=config)
        yield smoking.other(loaded, lambda limit_s: look(limit_s=limit_s), place, quick=quick)


def _show(document: Mapping[str, Any], how: str) -> None:
    from specdeploy.cli import _render
    from specdeploy.report.text import smoke_summary, smoke_table

    if how == "json":
        _render.document(document)
    elif how == "github":
        _render.github_annotations(_findings(document), "")
        say(smoke_summary(document))
    else:
        say(smoke_table(document))


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


def _show_check(result: CheckResult) -> None:
    from specdeploy.cli import _events

    _events.check_line(result)


def _show_problem(message: str, hint: str) -> None:
    from specdeploy.cli._render import visible

    tell(f"{click.style('error:', fg='red', bold=True)} {visible(message)}")
    if hint:
        tell(f"{click.style('hint:', fg='cyan', bold=True)}  {visible(hint)}")


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
