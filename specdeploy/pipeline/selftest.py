"""The gate's selftest: the running deployment against itself, and against itself with its answers held back."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.driver import INTERRUPTED_BY_USER, build_request
from specdeploy.bench.schedule import kv_reuse_findings
from specdeploy.bench.wire.held import HeldWire
from specdeploy.errors import ConfigError, ServerFault
from specdeploy.gate.evidence import Evidence
from specdeploy.gate.rules import parse_rules
from specdeploy.gate.selftest import (
    DEFAULT_RULE,
    DEFAULT_SLOWDOWN,
    Outcome,
    Trial,
    conclude,
    document,
    percent,
    require_sense,
)
from specdeploy.gate.verdict import evaluate
from specdeploy.pipeline.loading import AGAINST_ANOTHER, line_to
from specdeploy.pipeline.measurement import Line, Lines, Measurement, plan_of
from specdeploy.pipeline.outputs import require_writable
from specdeploy.pipeline.shards import ALONE
from specdeploy.pipeline.subject import connect, deployment
from specdeploy.pipeline.workspace import workspace
from specdeploy.system.clock import SystemClock
from specdeploy.system.files import explained, write_json_atomic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from specdeploy.bench.driver import Progress
    from specdeploy.bench.schedule import LoadPlan
    from specdeploy.config.load import LoadedConfig
    from specdeploy.gate.rules import Rule
    from specdeploy.pipeline.serving import Addresses

FOLDER: Final = "gate-selftest"
#: Folders of the runs: without a difference, and with one.
_NAMES: Final = ("same", "slowed")
#: The first answer of a server may take longer than any other one.
_TRIED: Final = 2


def selftest(
    loaded: LoadedConfig,
    endpoints: Addresses,
    *,
    rule: str = DEFAULT_RULE,
    slowdown: float = DEFAULT_SLOWDOWN,
    on_note: Callable[[str], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Measure the deployment against itself twice, judge both runs, and keep ``gate-selftest.json``.

    The load is that of the configuration, both arms with speculation. The results of load tests and of the gate are not
    touched; those of the two runs lie in the folder ``gate-selftest`` beside them.

    Args:
        loaded: The load, and where its results go.

        endpoints: Where the deployment is.

        rule: By which both runs are judged, one of control.

        slowdown: By which share the answers of the candidate's arm take longer in the second run.

        on_note: Hears in words what begins, and about how long it takes.

        on_progress: Called after every request.

    Raises:
        ConfigError: The load, the prompts or the rule cannot be used, or the rule allows what is to be noticed.

        ServerFault: The server is not there.
    """
    tell = on_note or _ignore
    (parsed,) = parse_rules([rule])
    plan = plan_of(loaded, **AGAINST_ANOTHER)
    settings = plan.settings
    require_sense(parsed, slowdown, pairs=settings.pairs, open_loop=settings.shape != "closed")
    planned = {block.point.key: str(block.point) for block in plan.blocks}
    if parsed.point is not None and parsed.point.key not in planned:
        loads = ", ".join(planned.values())
        raise ConfigError(f"gate rule {rule!r}: that load is not planned", hint=f"The loads are {loads}.")
    path = workspace(loaded).reports / f"{FOLDER}.json"
    for file in (path, *_Runs.files(loaded)):
        require_writable(file, "report.path")
    with explained(path):
        # What an earlier one said is not to be taken for what this one says, should it not come to its end.
        path.unlink(missing_ok=True)
    tell(f"two runs{_about(plan, _time_of_one(loaded, endpoints, plan))}")
    runs = _Runs(loaded, endpoints, plan, parsed, on_progress)
    tell("the deployment against itself")
    sound, slowed, gone = runs.measure(0.0), None, ""
    if not sound.stopped:
        tell(f"the deployment against itself, its answers {percent(slowdown)} slower")
        try:
            slowed = runs.measure(slowdown)
        except ServerFault as error:
            # It has gone since the first run, which is as if it had gone meanwhile.
            gone = error.message
    outcome = conclude(sound, slowed, pairs=settings.pairs)
    if gone and outcome.status != "fail":
        outcome = Outcome(status="undecided", reason=f"the second run did not begin: {gone}", hint="Start it again.")
    found = document(outcome, sound, slowed, slowdown=slowdown, confidence=loaded.config.gate.confidence)
    found |= {"created": SystemClock().now_iso(), "deployment": deployment(loaded), "plan": plan.to_dict()}
    with explained(path):
        write_json_atomic(path, found)
    return found


class _Runs:
    """Measures the deployment against itself."""

    def __init__(
        self,
        loaded: LoadedConfig,
        endpoints: Addresses,
        plan: LoadPlan,
        rule: Rule,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._loaded = loaded
        self._endpoints = endpoints
        self._plan = plan
        self._rule = rule
        self._on_progress = on_progress

    @staticmethod
    def files(loaded: LoadedConfig) -> tuple[Path, ...]:
        """Return the documents that the runs leave."""
        return tuple(workspace(_kept_in(loaded, name)).load_json for name in _NAMES)

    def measure(self, slowdown: float) -> Trial:
        """Measure once, the candidate's answers held back, and judge it.

        Raises:
            KeyboardInterrupt: Somebody pressed Ctrl-C.
        """
        candidate, control = self._held(slowdown), self._held(0.0)
        place = _kept_in(self._loaded, _NAMES[bool(slowdown)])
        about = deployment(self._loaded) | {
            "protocol": self._loaded.config.load.protocol,
            "control": {"name": "the same deployment", "server": self._endpoints.http_url},
        }
        run = Measurement(
            place,
            lambda: Lines(candidate[0], control[0]),
            None,
            about,
            self._on_progress,
            ALONE,
            AGAINST_ANOTHER,
        )
        found = kv_reuse_findings(self._plan, max_sequences=self._loaded.config.build.max_batch_size)
        load = run.once(self._plan, found)
        if load["stop_reason"] == INTERRUPTED_BY_USER:
            raise KeyboardInterrupt
        evidence = Evidence(confidence=self._loaded.config.gate.confidence)
        (verdict,) = evaluate([self._rule], load, evidence).rules
        ours_s, theirs_s = candidate[1].mean_s, control[1].mean_s
        grew = ours_s / theirs_s - 1 if ours_s and theirs_s else None
        stopped = load["stop_reason"] if load["partial"] else ""
        return Trial(slowdown=slowdown, verdict=verdict, grew=grew, stopped=stopped)

    def _held(self, slowdown: float) -> tuple[Line, HeldWire]:
        line = line_to(self._loaded, self._endpoints)
        wire = HeldWire(line.wire, slowdown)
        return Line(wire, line.codec), wire


def estimated_s(plan: LoadPlan, one_s: float) -> float:
    """Return about how long a run takes, in seconds.

    Args:
        plan: The run.

        one_s: What one request takes when it is alone; several at a time are taken to be as fast.
    """
    known = zip(plan.blocks, plan.lengths_s, strict=True)
    return math.fsum(
        length_s + one_s if length_s else one_s * math.ceil((block.size or 0) / block.in_flight)
        for block, length_s in known
    )


def _about(plan: LoadPlan, one_s: float | None) -> str:
    requests = "" if plan.total_requests is None else f" of {plan.total_requests} requests"
    return requests if one_s is None else f"{requests}, about {2 * estimated_s(plan, one_s):.0f} s in all, or more"


def _time_of_one(loaded: LoadedConfig, endpoints: Addresses, plan: LoadPlan) -> float | None:
    """Return how long a request takes, of a few; None when the plan has none."""
    took_s = None
    with contextlib.closing(connect(endpoints, loaded.config.load.request_timeout_s)) as client:
        for index in range(_TRIED):
            request = build_request(plan, plan.blocks[0], index % len(plan.blocks[0].prompts))
            began_s = time.monotonic()
            if loaded.config.repo.decoupled:
                deque(client.stream_http(request), maxlen=0)
            else:
                client.generate_http(request)
            took_s = time.monotonic() - began_s
    return took_s


def _kept_in(loaded: LoadedConfig, name: str) -> LoadedConfig:
    """Return the configuration with a report folder of its own, so that nobody's results are touched."""
    folder: Path = workspace(loaded).reports / FOLDER / name
    report = dataclasses.replace(loaded.config.report, path=str(folder))
    return dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, report=report))


def _ignore(_words: str) -> None:
    pass
