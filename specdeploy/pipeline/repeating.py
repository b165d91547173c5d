"""A gate that measures on until it can decide: looks at the run, has more of it measured, and looks again.

Knows when to stop: when the rules are decided, when more of the same would decide nothing, and when the time is spent.
How sure each look has to be is in `gate.repeats`. What was measured stays after every part, as one run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any, Protocol, Self

from specdeploy.bench.driver import INTERRUPTED_BY_USER
from specdeploy.bench.further import Earlier, pairs_of
from specdeploy.errors import CannotDecide, ConfigError, ServerFault
from specdeploy.gate.repeats import beyond_help, least_pairs, more_pairs
from specdeploy.pipeline import gating, loading
from specdeploy.pipeline.gate_rules import check_rules, rules_of
from specdeploy.pipeline.outputs import alone_in, keep_verdict, require_writable
from specdeploy.pipeline.record_files import reading_records
from specdeploy.pipeline.subject import read_document
from specdeploy.pipeline.workspace import workspace
from specdeploy.system.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdeploy.bench.driver import Progress
    from specdeploy.config.load import LoadedConfig
    from specdeploy.gate.outcome import Verdict
    from specdeploy.pipeline.serving import Addresses
    from specdeploy.system.clock import Clock


class Measuring(Protocol):
    """Who measures."""

    def begun(self) -> bool:
        """Say whether there is a load test that can go on."""
        ...

    def begin(self) -> None:
        """Measure a first load test."""
        ...

    def go_on(self, pairs: int) -> str:
        """Add so many pairs at each load; returns why that ended early, with nothing added."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """What came of a look.

    Args:
        number: From 1; of a run that had grown before, from where that ended.

        pairs: Pairs of the run at each load.

        status: Of the gate.

        share_of_errors: What the look may spend of the rate of errors.

        spent_s: Seconds since the gate began.

        more: How many pairs are measured next; 0 when this is the last look.
    """

    number: int
    pairs: int
    status: str
    share_of_errors: float
    spent_s: float
    more: int


class Deployment:
    """Measures the deployment of a configuration, which is asked for only when something is to be measured.

    Args:
        loaded: The configuration.

        endpoints: Says where it is, for as long as something is measured.

        on_progress: Called after every request.

        on_note: Hears why the last load test cannot go on.

        control: Another deployment that answers for the control; None is this one, asked for no drafts.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        endpoints: Callable[[], contextlib.AbstractContextManager[Addresses]],
        on_progress: Callable[[Progress], None],
        on_note: Callable[[str], object],
        control: Addresses | None = None,
    ) -> None:
        self._loaded = loaded
        self._endpoints = endpoints
        self._on_progress = on_progress
        self._on_note = on_note
        self._control = control
        self._stack = contextlib.ExitStack()
        self._found: Addresses | None = None

    def __enter__(self) -> Self:
        """Wait until it is needed, with the report folder for ourselves."""
        self._stack.enter_context(alone_in(workspace(self._loaded).reports))
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the server."""
        self._stack.close()

    def begun(self) -> bool:
        """Say whether the last load test is whole, was one of this deployment and load, and has its records.

        Raises:
            ConfigError: Another server was its control and none is given: a new one would compare with something else.

            ServerFault: The control is not there.
        """
        place = workspace(self._loaded)
        document = read_document(place.load_json)
        if document is None:
            return False
        other = loading.other_control(document)
        if other and self._control is None:
            raise ConfigError(
                f"the control of the last load test was {other}, and --repeat-until was given none",
                hint="name that deployment by --control-http and --control-grpc; a run of other servers than Triton is "
                "judged by `specdeploy gate` as it is; `specdeploy load` first compares with the target alone",
            )
        if place.records_jsonl.is_file():
            why = loading.misfit(self._loaded, document, self._control)
        else:
            why = "its records are missing"
        if why:
            self._on_note(f"the last load test cannot go on ({why}), so a new one is measured")
        return not why

    def begin(self) -> None:
        """Measure a load test, as `specdeploy load` does."""
        loading.load(self._loaded, self._there(), on_progress=self._on_progress, control=self._control)

    def go_on(self, pairs: int) -> str:
        """Add pairs to the load test."""
        place = workspace(self._loaded)
        document = _read(self._loaded)
        with reading_records(place.records_jsonl, document) as records:
            earlier = Earlier(document=document, records=records, epoch_offset_s=SystemClock().epoch_offset_s())
            return loading.go_on(
                self._loaded, self._there(), earlier, pairs, on_progress=self._on_progress, control=self._control
            )

    def _there(self) -> Addresses:
        if self._found is None:
            self._found = self._stack.enter_context(self._endpoints())
        return self._found


def gate_until(
    loaded: LoadedConfig,
    rules: Iterable[str],
    budget_s: float,
    measuring: Measuring,
    on_look: Callable[[Look], object],
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Judge a load test, and measure on until its rules are decided, or nothing more can be done about it.

    Args:
        loaded: The configuration.

        rules: In place of those of the configuration; none takes those.

        budget_s: So long is measured, from now on; a part that was begun is measured to its end.

        measuring: Who measures.

        on_look: Hears of each look.

        clock: By which time is spent.

    Returns:
        ``gate.json``, which is kept after every look; ``repeats`` has the looks, the time, and how it ended.

    Raises:
        ConfigError: A rule, the load, or a document is malformed.

        NotKept: A verdict cannot be written.
    """
    clock = clock or SystemClock()
    began_s = clock.monotonic()
    given = tuple(rules)
    gating.preflight(loaded, check_rules(loaded, given))
    loading.preflight(loaded)
    for path in (workspace(loaded).load_json, workspace(loaded).records_jsonl):
        require_writable(path, "report.path")
    if not measuring.begun():
        measuring.begin()
        if _read(loaded).get("stop_reason") == INTERRUPTED_BY_USER:
            raise KeyboardInterrupt
    looks: list[Look] = []
    # By the clock, and not by the last look: a part that was lost took its time, too.
    keep = functools.partial(_kept, loaded, budget_s, lambda: clock.monotonic() - began_s)
    while True:
        load = _read(loaded)
        verdict = gating.judged(loaded, rules_of(loaded, load, given), load, growing=True)
        spent_s = clock.monotonic() - began_s
        pairs = pairs_of(load)
        ended = _ended(verdict)
        least = least_pairs(verdict, pairs)
        more = 0 if ended else more_pairs(pairs, _duration_s(load), budget_s - spent_s, least=least)
        looks.append(
            Look(
                number=verdict.look,
                pairs=pairs,
                status=verdict.status,
                share_of_errors=verdict.share,
                spent_s=spent_s,
                more=more,
            )
        )
        on_look(looks[-1])
        if not more:
            return keep(verdict, looks, ended or "the time is spent")
        keep(verdict, looks, "stopped")
        if why := _measured_more(measuring, more):
            return keep(verdict, looks, f"measuring more ended early: {why}")


def _duration_s(load: Mapping[str, Any]) -> float:
    """Return how long a load test took.

    Raises:
        ConfigError: It does not say.
    """
    told = load.get("duration_s")
    if isinstance(told, bool) or not isinstance(told, (int, float)) or not 0 <= told < math.inf:
        raise ConfigError(f"load report: duration_s is {told!r}, not seconds", hint="measure again")
    return float(told)


def _ended(verdict: Verdict) -> str:
    """Say why there is nothing more to do; empty while more of the load may decide."""
    if verdict.status == "pass":
        return "decided"
    if verdict.status == "fail":
        return "decided: a rule failed"
    stuck = beyond_help(verdict)
    return f"measuring more does not decide {stuck[0].rule.text!r}" if stuck else ""


def _measured_more(measuring: Measuring, pairs: int) -> str:
    """Measure on; return why that ended early. A server that has gone since is as one that goes meanwhile."""
    try:
        return measuring.go_on(pairs)
    except ServerFault as error:
        return error.message


def _kept(
    loaded: LoadedConfig,
    budget_s: float,
    spent_s: Callable[[], float],
    verdict: Verdict,
    looks: Iterable[Look],
    ended: str,
) -> dict[str, Any]:
    document = verdict.to_dict(created=SystemClock().now_iso())
    document["repeats"] = {
        "budget_s": budget_s,
        "spent_s": spent_s(),
        "ended": ended,
        "looks": [dataclasses.asdict(look) for look in looks],
    }
    keep_verdict(workspace(loaded).gate_json, document)
    return document


def _read(loaded: LoadedConfig) -> Mapping[str, Any]:
    path = workspace(loaded).load_json
    document = read_document(path)
    if document is None:
        raise CannotDecide(f"there is no {path}: nothing has been measured", hint="run `specdeploy load` first")
    return document
