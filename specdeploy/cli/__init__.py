"""The command line: one file per command, and the one place where errors become messages and exit codes.

Nothing heavy is imported here or at the top of a command's file, so that `--help` stays instant; a test watches it.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
from typing import TYPE_CHECKING, Final, NoReturn

import click

from specdeploy import __version__
from specdeploy.cli._streams import tell
from specdeploy.errors import EXIT_BUG, EnvironmentFault, SpecdeployError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

# In the order of a deployment's life, not of the alphabet: that is how the list is read. The summaries stand here so
# that the list needs no command's file; a test holds them to what the commands say of themselves.
COMMANDS: Final = {
    "init": "Write a commented specdeploy.yaml with every key and its default.",
    "config": "Look at the resolved configuration.",
    "doctor": "Show what this machine has and what each profile still lacks.",
    "runtime": "Install or show the embedded Triton runtime of the cpu profile.",
    "check": "Compare the checkpoints before anything is built: tokenizers, vocabularies, lengths, release, memory.",
    "plan": "Show the steps of a build: command lines, outputs, what is built already and why the rest is not, memory.",
    "build": "Make the engines; what the store holds already is not built again. `specdeploy plan` shows it before.",
    "engines": "List, show, verify, prune, remove and export the engines of the store.",
    "repo": "Write the Triton model repository from the configuration and the built engines, and lint it.",
    "lint": "Lint a Triton model repository: REPOSITORY, anybody's, or the one of the configuration.",
    "serve": "Serve the repository with a real tritonserver until Ctrl-C; ready when every model is.",
    "smoke": "Run the smoke test against the running deployment.",
    "load": "Measure speculation against control in interleaved pairs, or alone, at the loads of the configuration.",
    "gate": "Judge the last load test by the gate's rules.",
    "report": "Write the HTML report from the smoke test, the load test and the gate, as far as they have run.",
    "up": "Run check, build, repo, lint, serve, smoke, load, gate and report; stop at the first failure.",
}


class _Commands(click.Group):
    """A group that imports a command's file only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of a deployment's life."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import ``specdeploy.cli.<name>`` and return its ``command``."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"specdeploy.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="specdeploy")
def cli() -> None:
    """Put a draft-target pair into production on Triton: check, build, serve, prove, measure, gate.

    One specdeploy.yaml describes one deployment; each command does one stage of it, `up` does them all.

    Exit codes: 0 ok, 1 the gate or the smoke test failed, 2 usage or configuration, 3 cannot decide,
    4 environment (a tool is missing, the server is not ready, a build failed), 70 a bug.
    """


class Interrupted(BaseException):
    """SIGTERM arrived; unwinds like Ctrl-C, so that every context manager stops what it started."""


def _on_sigterm(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    raise Interrupted


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code; never raises for what a user can cause.

    Args:
        argv: The arguments after the program's name; ``sys.argv`` when None.
    """
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        result = cli.main(args=list(argv) if argv is not None else None, prog_name="specdeploy", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SpecdeployError as error:
        _show(error, as_json="--json" in (sys.argv if argv is None else argv))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as ending:
        _tell_end("interrupted", ending)
        return 128 + signal.SIGINT
    except Interrupted as ending:
        _tell_end("terminated", ending)
        return 128 + signal.SIGTERM
    except Exception:  # noqa: BLE001 - the last line of defence: whatever comes here is our bug, and says so
        import traceback

        traceback.print_exc()
        tell("specdeploy: this is a bug in specdeploy; please report it with the lines above")
        return EXIT_BUG
    return result if isinstance(result, int) else 0


def _tell_end(how: str, ending: BaseException) -> None:
    """Say that a signal ended the command, and what the command noted about what it leaves."""
    # Click raises an exception of its own from KeyboardInterrupt.
    notes = [note for error in (ending, ending.__cause__) for note in getattr(error, "__notes__", ())]
    tell("; ".join((f"specdeploy: {how}", "what was started has been stopped", *notes)))


def _show(error: SpecdeployError, *, as_json: bool) -> None:
    """Print an error for people: what happened, the findings behind it, what to do next; for machines a document."""
    from specdeploy.cli import _render

    if as_json:
        # Where standard output takes nothing the error is still the one that it was, and people are told.
        with contextlib.suppress(EnvironmentFault):
            _render.document(
                {
                    "schema_version": "1.0",
                    "kind": "error",
                    "ok": False,
                    "error": type(error).__name__,
                    "message": error.message,
                    "hint": error.hint,
                    "exit_code": error.exit_code,
                    "findings": [finding.as_dict() for finding in error.findings],
                }
            )

    tell(f"{click.style('error:', fg='red', bold=True)} {_render.visible_lines(error.message)}")
    _render.findings(error.findings, err=True)
    if error.hint:
        tell(f"{click.style('hint:', fg='cyan', bold=True)}  {_render.visible_lines(error.hint)}")


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    code = run()
    # Flush here: a reader that has gone (`| head`) is no error of ours.
    try:
        # None where the process was started without one.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        if sys.stderr is not None:
            sys.stderr.close()
    sys.exit(code)
