"""Carries out load tests, one load after another or in search of a limit, and keeps what was measured."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from specdeploy.bench.driver import INTERRUPTED_BY_USER, TERMINATED, run_load
from specdeploy.bench.goodput import parse_objectives
from specdeploy.bench.load_report import RunContext, build_load_report
from specdeploy.bench.prompts import OutputLength
from specdeploy.bench.records import ARMS, SPECULATION, LoadRun
from specdeploy.bench.schedule import LoadSettings, check_load, plan_load, prompt_findings
from specdeploy.bench.search import Aim, search_loads
from specdeploy.bench.shards import fingerprint
from specdeploy.bench.stages import parse_stages
from specdeploy.errors import ConfigError
from specdeploy.gate.fingerprint import take_fingerprint
from specdeploy.pipeline.record_files import record_file
from specdeploy.pipeline.server_side import ServerSide
from specdeploy.pipeline.workload import workload_of
from specdeploy.pipeline.workspace import workspace
from specdeploy.system.clock import SystemClock
from specdeploy.system.host import probe_host
from specdeploy.system.signals import Held

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from specdeploy.bench.driver import Progress
    from specdeploy.bench.further import Earlier
    from specdeploy.bench.records import Arm
    from specdeploy.bench.schedule import LoadPlan
    from specdeploy.bench.search import Trial
    from specdeploy.bench.table import RecordStore
    from specdeploy.bench.wire.call import Wire
    from specdeploy.bench.wire.codec import Codec
    from specdeploy.config.load import LoadedConfig
    from specdeploy.deploy.counts import ServerCounts
    from specdeploy.findings import Finding
    from specdeploy.pipeline.serving import Addresses
    from specdeploy.pipeline.shards import Generator

FRONT_DOOR: Final = "ensemble"
_REASONS: Final = {signal.SIGINT: INTERRUPTED_BY_USER, signal.SIGTERM: TERMINATED}
OnTrial: TypeAlias = "Callable[[Arm, Trial], object]"
Look: TypeAlias = "Callable[[], ServerCounts | None]"


class _CutShort(Exception):
    """A run that was to be added to another one ended early."""


class Line(NamedTuple):
    """How the server is reached: what sends, and what it says."""

    wire: Wire[Any]
    codec: Codec[Any]


class Lines(NamedTuple):
    """How the arms are reached, the control by a line of its own if it has one."""

    speculation: Line
    control: Line | None = None


class Measurement:
    """Carries out plans, and keeps what came of them.

    Args:
        loaded: The load, and where its results go.

        connect_all: Makes the lines of a run, which closes them at its end.

        triton: A server whose counters are read meanwhile; None reads none.

        about: What is measured.

        on_progress: Called after every request.

        generator: Which part of the load is sent from here, and when.

        changes: What of the plan is otherwise than the configuration says.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        connect_all: Callable[[], Lines],
        triton: Addresses | None,
        about: Mapping[str, Any],
        on_progress: Callable[[Progress], None] | None,
        generator: Generator,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self._loaded = loaded
        self._connect_all = connect_all
        self._triton = triton
        self._about = about
        self._on_progress = on_progress
        self._generator = generator
        self._changes = dict(changes or {})
        self._clock = SystemClock()
        self._objectives = parse_objectives(loaded.config.load.slo)
        self._held = Held()

    def once(self, plan: LoadPlan, findings: Iterable[Finding]) -> dict[str, Any]:
        """Carry out a plan."""
        begin = self._generator.beginnings(self._clock)
        return self._measured(lambda look, store: (self._send(plan, look, begin, store), plan, None), findings)

    def further(self, earlier: Earlier, plan: LoadPlan, findings: Iterable[Finding]) -> str:
        """Carry out a plan and add what came of it to a run; return why it ended early, and then nothing is added.

        Args:
            earlier: The run; what is measured is kept in its place.

            plan: Its pairs go on where those of the run end.

            findings: What the caller noticed.
        """
        part: list[LoadRun] = []

        def carry_out(look: Look | None, store: RecordStore) -> tuple[LoadRun, LoadPlan, None]:
            earlier.copy(store)
            part.append(self._send(plan, look, None, store))
            if part[0].partial:
                raise _CutShort
            return earlier.with_run(part[0], store), plan, None

        try:
            self._measured(carry_out, findings, earlier)
        except _CutShort:
            # A signal that waited for the end of the run is acted on now.
            number = next((number for number, reason in _REASONS.items() if reason == part[0].stop_reason), None)
            if number is not None:
                signal.raise_signal(number)
            return part[0].stop_reason
        return ""

    def search(self, on_trial: OnTrial, findings: Iterable[Finding]) -> dict[str, Any]:
        """Search for the highest load that keeps the objectives.

        Raises:
            ConfigError: There are none, or the load is a profile of its own.
        """
        wanted = self._loaded.config.load
        if not self._objectives:
            raise ConfigError(
                "--search looks for the highest load that keeps its objectives, and there are none",
                hint="Say what a good request keeps, as load.slo: [time_to_first_token <= 300ms].",
            )
        if wanted.shape == "trace" or wanted.stages:
            raise ConfigError(
                "--search changes the load, and a trace or stages say what it is",
                hint="Search with load.shape closed, constant, poisson or gamma.",
            )
        aim = Aim(
            objectives=self._objectives,
            least=wanted.least_good,
            whole=wanted.shape == "closed",
            # With more in flight than there are requests, or all of them within a second, nothing more is learnt.
            most=math.inf if wanted.duration_s else float(wanted.requests),
            tell=on_trial,
        )
        first = float(wanted.concurrency[0]) if aim.whole else next(iter(wanted.rates), 0.0)
        compare = self._changes.get("compare", wanted.compare)

        def carry_out(look: Look | None, store: RecordStore) -> tuple[LoadRun, LoadPlan, dict[str, Any]]:
            tried: list[float] = []

            def send(arm: Arm, load: float, number: int) -> LoadRun:
                tried.append(load)
                # Other prompts first, so that no load lives off the KV cache of the one before.
                plan = self._plan([load], compare=False, arm=arm, seed=wanted.seed + number)
                return self._send(plan, look, None, store)

            run, found = search_loads(send, ARMS if compare else (SPECULATION,), first, aim)
            return run, self._plan(sorted(set(tried)), compare=compare), found

        return self._measured(carry_out, findings)

    def _plan(self, loads: Sequence[float], **changes: Any) -> LoadPlan:  # noqa: ANN401 - settings of a plan
        whole = self._loaded.config.load.shape == "closed"
        at = {"concurrency": tuple(int(load) for load in loads)} if whole else {"rates": tuple(loads)}
        return plan_of(self._loaded, **{**self._changes, **at, **changes})

    def _send(
        self,
        plan: LoadPlan,
        look: Look | None,
        begin: Callable[[int], Awaitable[float]] | None,
        store: RecordStore,
    ) -> LoadRun:
        if self._held.seen is not None:
            # Between two loads of a search.
            now_s, reason = self._clock.monotonic(), _REASONS[self._held.seen]
            return LoadRun(records=store.since(len(store)), started_s=now_s, stop_reason=reason)
        lines = self._connect_all()
        run = run_load(
            plan,
            *lines.speculation,
            self._clock,
            self._tell,
            control=lines.control,
            look=look,
            begin=begin,
            store=store,
        )
        if not len(store) and run.stop_reason in _REASONS.values():
            # There is nothing to keep; what an earlier run left is worth more.
            signal.raise_signal(next(number for number, reason in _REASONS.items() if reason == run.stop_reason))
        return run

    def _tell(self, progress: Progress) -> None:
        # From the first record on there is something to lose.
        self._held.hold()
        if self._on_progress is not None:
            self._on_progress(progress)

    def _measured(
        self,
        carry_out: Callable[[Look | None, RecordStore], tuple[LoadRun, LoadPlan, dict[str, Any] | None]],
        findings: Iterable[Finding],
        earlier: Earlier | None = None,
    ) -> dict[str, Any]:
        """Measure, and keep what came of it: the records as they come, and the document that is made of them.

        Args:
            carry_out: Measures.

            findings: What the caller noticed.

            earlier: The run that this goes on with; None begins one.
        """
        created, used_s = self._clock.now_iso(), time.process_time()
        files = self._generator.files(workspace(self._loaded))
        with self._held as held:
            with record_file(files.records, files.document) as store:
                with contextlib.ExitStack() as stack:
                    server = None
                    if self._triton is not None:
                        period_s = self._loaded.config.load.telemetry_s
                        server = stack.enter_context(ServerSide(self._triton, self._clock, period_s=period_s))
                    run, plan, found = carry_out(server.counts if server is not None else None, store)
                context = RunContext(
                    created=created,
                    deployment=self._about,
                    environment=probe_host().as_dict(),
                    client={"cpu_s": time.process_time() - used_s, "processes": 1},
                    gauges=server.readings if server is not None else (),
                    front_door=FRONT_DOOR if server is not None else "",
                    records_file=files.records.name,
                )
                noticed = (*findings, *prompt_findings(plan))
                # By it two runs are known to have sent the same: the texts are not in the document.
                schedule = fingerprint(plan)
                reported = plan if earlier is None else earlier.plan
                document = build_load_report(run, reported, context, noticed, objectives=self._objectives)
                if earlier is None:
                    document["plan"] |= {"schedule": schedule}
                else:
                    document |= earlier.continued(document, plan.settings, schedule)
                document |= {"search": found, "fingerprint": take_fingerprint(document)}
                document |= self._generator.about(plan, schedule, run, noticed, self._clock)
                document["records_sha256"] = store.sha256
                store.document = document
            if run.stop_reason == TERMINATED:
                # Whose the signal was has it again, and acts on it now that the results are kept.
                held.seen = signal.SIGTERM
            held.deliver(f"what was measured is kept in {files.document}")
        return document


def plan_of(loaded: LoadedConfig, *, first_pair: int = 0, **changes: Any) -> LoadPlan:  # noqa: ANN401 - settings
    """Lay out the load of a configuration.

    Args:
        loaded: The configuration.

        first_pair: As for `plan_load`.

        changes: Settings that are otherwise than it says.

    Raises:
        ConfigError: The load or the prompts cannot be used.

        ToolMissing: The package that counts tokens is needed, and not installed.
    """
    wanted = loaded.config.load
    settings = LoadSettings(
        shape=wanted.shape,
        concurrency=wanted.concurrency,
        rates=wanted.rates,
        stages=parse_stages(wanted.stages),
        burstiness=wanted.burstiness,
        requests=wanted.requests,
        duration_s=wanted.duration_s or None,
        pairs=wanted.pairs,
        compare=wanted.compare,
        warmup_requests=wanted.warmup_requests,
        output=OutputLength(max_tokens=wanted.max_tokens, fixed=wanted.fixed_length),
        recorded_length=wanted.recorded_length,
        input_tokens_mean=wanted.input_tokens_mean,
        input_tokens_stddev=wanted.input_tokens_stddev,
        output_tokens_mean=wanted.output_tokens_mean,
        output_tokens_stddev=wanted.output_tokens_stddev,
        distinct=wanted.distinct,
        prefix_tokens=wanted.prefix_tokens,
        prefix_count=wanted.prefix_count,
        prefix_share=wanted.prefix_share,
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        seed=wanted.seed,
        request_timeout_s=wanted.request_timeout_s,
    )
    settings = dataclasses.replace(settings, **changes)
    # Made texts take their time: what cannot be sent is refused before.
    check_load(settings)
    return plan_load(settings, *workload_of(loaded, settings), first_pair=first_pair)
