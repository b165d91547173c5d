"""``specdeploy load --processes``: the same command line several times, each for a part of the load."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specdeploy.cli._streams import tell
from specdeploy.errors import EXIT_CANNOT_DECIDE, EXIT_ENVIRONMENT, EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.generators import Outcome

_INTERRUPTED: Final = 130
#: What each process is told otherwise, or not at all.
_OWN: Final = frozenset({"http", "grpc", "metrics", "serve", "processes", "formats", "as_json", "in_step"})


def measure(loaded: LoadedConfig, processes: int, server: Iterable[str], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Measure with so many processes, and return the document of them all together.

    Args:
        loaded: Where the result goes.

        processes: How many.

        server: The options that name the server.

        changes: What of the plan is otherwise than the configuration says.

    Raises:
        BaseException: What a signal raised when nothing was measured, or when it was not Ctrl-C.
    """
    from specdeploy.bench.driver import INTERRUPTED_BY_USER, TERMINATED
    from specdeploy.cli import _events
    from specdeploy.pipeline import loading
    from specdeploy.pipeline.generators import run_generators
    from specdeploy.pipeline.shards import merge_results
    from specdeploy.pipeline.workspace import workspace
    from specdeploy.system.signals import Held

    lines = _events.TogetherLines(loading.preflight(loaded, **changes).total_requests)
    with tempfile.TemporaryDirectory(prefix="specdeploy-load-") as folder, Held() as held:
        same = [*_again(click.get_current_context()), *server, f"--set=report.path={folder}", "--in-step"]
        commands = [
            [sys.executable, "-m", "specdeploy", "load", *same, f"--shard={number}/{processes}"]
            for number in range(1, processes + 1)
        ]
        try:
            outcome = run_generators(commands, lines)
        finally:
            lines.close()
        # What the generators have left goes with the folder.
        held.hold()
        kept = any(Path(folder).glob("*.json"))
        by_user = isinstance(outcome.stopped_by, KeyboardInterrupt)
        if outcome.stopped_by is None:
            reason = _looked_at(outcome, kept=kept)
        elif not kept:
            raise outcome.stopped_by
        else:
            reason = INTERRUPTED_BY_USER if by_user else TERMINATED
        document = merge_results([Path(folder)], workspace(loaded).reports, partial=True, stop_reason=reason)
        note = f"what was measured is kept in {workspace(loaded).load_json}"
        held.deliver(note)
    if outcome.stopped_by is not None and not by_user:
        outcome.stopped_by.add_note(note)
        raise outcome.stopped_by
    return document


def _looked_at(outcome: Outcome, *, kept: bool) -> str:
    """Return why the run ended early, when a process ended badly and others left something; empty when none did.

    Raises:
        Exit: Nothing is left: end as that process did.
    """
    sound = {EXIT_OK, EXIT_CANNOT_DECIDE, _INTERRUPTED} if kept else {EXIT_OK, _INTERRUPTED}
    for number, (code, errors) in enumerate(zip(outcome.exit_codes, outcome.errors, strict=True), start=1):
        if code not in sound:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            words = f"generator {number} of {len(outcome.exit_codes)} {how}"
            tell("\n".join(filter(None, (errors.rstrip(), words))))
            if not kept:
                raise click.exceptions.Exit(code if code > 0 else EXIT_ENVIRONMENT)
            return words
    return ""


def _again(ctx: click.Context) -> list[str]:
    """Return the options that were given, as they were given."""
    words = []
    for option in ctx.command.params:
        given = ctx.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        if given and option.name not in _OWN:
            value = ctx.params[option.name or ""]
            if isinstance(value, bool):
                words.append(max(option.opts if value else option.secondary_opts, key=len))
                continue
            values = value if isinstance(value, tuple) else (value,)
            words += [f"{max(option.opts, key=len)}={one}" for one in values]
    return words
