"""The smoke test: against a deployment of ours or another server, with recorded answers, kept as ``smoke.json``."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import EXIT_OK, ConfigError, EnvironmentFault, ServerFault
from specdeploy.pipeline.outputs import require_writable
from specdeploy.pipeline.smoke_results import own_place
from specdeploy.pipeline.subject import connect, most_drafts, prompts_of, provenance
from specdeploy.pipeline.workspace import workspace
from specdeploy.smoke import capabilities
from specdeploy.smoke.checks import golden as golden_check
from specdeploy.smoke.expectations import Expectations, SmokePrompt
from specdeploy.smoke.golden import Golden, other_engines, parse_golden, require_fits, tokenizer_fingerprint
from specdeploy.smoke.isolation import interruptible
from specdeploy.smoke.probe import Broken, Probe
from specdeploy.smoke.report import plain
from specdeploy.smoke.runner import Asked, SmokeRun, cut_short, not_begun, select, unasked
from specdeploy.smoke.targets import of_config, require_room
from specdeploy.system.files import write_json_atomic
from specdeploy.system.shield import undisturbed
from specdeploy.triton.client import RequestFailed
from specdeploy.triton.repository import names
from specdeploy.triton.repository.models import fixed_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.serving import Addresses
    from specdeploy.pipeline.smoke_results import Place
    from specdeploy.smoke.report import CheckResult, SmokeReport
    from specdeploy.smoke.runner import ClientFactory
    from specdeploy.smoke.targets import Target

#: The name under which ``Expectations.prompts`` are recorded.
OWN_PROMPTS: Final = "smoke"
GOLDEN: Final = "golden"
_QUICK_REQUEST_SHARE: Final = 0.4
_QUICK_TOKENS: Final = 8
# To ask a server what it is, where nothing else limits the run.
_ASKING_S: Final = 120.0
_MAKE_ROOM: Final = "make room, or name another place"


def _ignore(*_: object) -> None:
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watcher:
    """Who hears of a run while it happens.

    Args:
        on_check: Called with each outcome as soon as it is known.

        on_document: Called once with what is kept, also when a signal ends the run.

        on_problem: Called with what went wrong beside the checks, and what to do next.
    """

    on_check: Callable[[CheckResult], object] = _ignore
    on_document: Callable[[Mapping[str, Any]], object] = _ignore
    on_problem: Callable[[str, str], object] = _ignore


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """What a run is about.

    Args:
        client_factory: Makes a client, to be closed.

        expectations: What it promises, and what it can be asked for.

        place: What the results say of it, and where they are kept.

        tokenizer: Fingerprint of its tokenizer; empty where it is not known.

        asked_s: How long it took to ask the server what it is (seconds).
    """

    client_factory: ClientFactory
    expectations: Expectations
    place: Place
    tokenizer: str
    asked_s: float = 0.0

    @property
    def engines(self) -> dict[str, str]:
        """Role to key, of the engines that are known."""
        engines = self.place.identity.get("engines") or {}
        return {role: str(engine["key"]) for role, engine in engines.items() if engine and engine.get("key")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What is asked of a run.

    Args:
        only: Names of the checks to run; empty runs all.

        skip: Names of the checks to leave out.

        quick: Run those that a readiness gate needs, or those of *only*, within ``smoke.quick_s``.

        golden: Recorded answers to compare with, relative to the working directory; empty for those of the
            configuration, which are relative to its folder.

        prompts: What they must have been recorded from; empty takes what they were.
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    quick: bool = False
    golden: str = ""
    prompts: str = ""

    @property
    def part(self) -> str:
        """What part of the checks it is, as the file of its results is named; empty for all but what is left out."""
        return "quick" if self.quick else "only" if self.only else ""

    @property
    def names(self) -> tuple[str, ...]:
        """The checks to run; recorded answers that are named here are always compared."""
        chosen = select(self.only, self.skip, quick=self.quick)
        return select({*chosen, GOLDEN}, self.skip) if self.golden else chosen


def smoke(
    loaded: LoadedConfig, endpoints: Addresses, *, on_check: Callable[[CheckResult], None] | None = None
) -> SmokeReport:
    """Run every check against a deployment and keep ``smoke.json``; see :func:`run`."""
    return run(loaded, own(loaded, endpoints, own_place(loaded)), Choice(), on_check=on_check)


def own(loaded: LoadedConfig, endpoints: Addresses, place: Place) -> Subject:
    """Return a deployment of ours as what a run is about.

    Raises:
        ConfigError: ``smoke.max_tokens`` does not fit into ``build.max_seq_len``.
    """
    config = loaded.config
    expectations = dataclasses.replace(
        of_config(config),
        models=names.model_names(config),
        max_draft_tokens=most_drafts(config),
        draft_model=names.engine_models(config).get("draft"),
        fixed_by=fixed_by(config),
        pinned=config.speculation.adaptive or bool(config.speculation.draft_len_schedule),
        metrics=endpoints.metrics_url is not None,
        capabilities=capabilities.ALL - (frozenset() if config.repo.decoupled else {capabilities.STREAM}),
    )
    require_room(expectations)
    return Subject(
        client_factory=lambda: connect(endpoints, config.smoke.request_timeout_s),
        expectations=expectations,
        place=place,
        tokenizer=_tokenizer(workspace(loaded).repository),
    )


def other(loaded: LoadedConfig, ask: Callable[[float], Target], place: Place, *, quick: bool = False) -> Subject:
    """Return a server that is not ours as what a run is about, after asking it what it is.

    Args:
        loaded: The configuration.

        ask: Asks the server, given the seconds that it may take for that.

        place: Where the results are kept.

        quick: Whether ``smoke.quick_s`` is all there is, for this and for the run.

    Raises:
        ConfigError: What was said of the server does not name one.

        ServerFault: It does not answer, or nothing that can be understood.
    """
    limit_s = loaded.config.smoke.quick_s if quick else _ASKING_S
    started = time.monotonic()
    try:
        with interruptible() as call:
            target = call(lambda: ask(limit_s), limit_s)
    except Broken as error:
        raise ServerFault(f"the server cannot be asked what it is: {error}") from error
    except RequestFailed as error:
        slow = f"; it hangs, or is too slow for --quick, which has {limit_s:g} s for all"
        late = slow if quick and error.label == "timeout" else ""
        raise ServerFault(f"the server cannot be asked what it is: {error.message}{late}", hint=error.hint) from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ServerFault(
            f"what the server says of itself is not understood: {type(error).__name__}: {error}",
            hint="is this the kind of server that was asked for?",
        ) from error
    identity = {**place.identity, "name": plain(target.expectations.front_door)}
    return Subject(
        client_factory=target.client_factory,
        expectations=target.expectations,
        place=dataclasses.replace(place, identity=identity),
        tokenizer="",
        asked_s=time.monotonic() - started,
    )


def adjusted(loaded: LoadedConfig, *, quick: bool, self_draft: bool, samples: int | None) -> LoadedConfig:
    """Return the configuration of a run: what the command line says goes before the file.

    Args:
        loaded: The configuration.

        quick: Whether the whole run has ``smoke.quick_s``; no call may take all of it.

        self_draft: Whether the draft is the target itself.

        samples: In place of ``smoke.samples``; None leaves it.
    """
    smoke = loaded.config.smoke
    longest_s = smoke.quick_s * _QUICK_REQUEST_SHARE if quick else math.inf
    smoke = dataclasses.replace(
        smoke,
        self_draft=self_draft or smoke.self_draft,
        samples=smoke.samples if samples is None else samples,
        max_tokens=min(smoke.max_tokens, _QUICK_TOKENS) if quick else smoke.max_tokens,
        request_timeout_s=min(smoke.request_timeout_s, longest_s),
    )
    return dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, smoke=smoke))


def conduct(
    loaded: LoadedConfig,
    sought: AbstractContextManager[Subject],
    choice: Choice,
    place: Place,
    watcher: Watcher,
) -> SmokeReport:
    """Seek what to test and run the chosen checks; a server that is not there leaves its results, too.

    So nobody takes the results of an earlier run for those of this one. What the user has to mend is found out before
    anything is asked, and then nothing is written.

    Args:
        loaded: The configuration.

        sought: Yields what to test.

        choice: What to run.

        place: Where the results are kept when it is not even known what to test.

        watcher: Hears of what happens.

    Raises:
        ConfigError: As :func:`run`, or as seeking does.
    """
    selected = choice.names
    place.require_writable()
    _recorded(loaded, choice, selected)
    keeper = _Keeper(loaded, place, watcher)
    with contextlib.ExitStack() as stack:
        try:
            subject = stack.enter_context(sought)
        except EnvironmentFault as error:
            watcher.on_problem(error.message, error.hint)
            return keeper.told(unasked(selected, error.message))
        except BaseException as error:
            if not isinstance(error, Exception):
                report = not_begun(selected, exit_code=exit_code(error))
                undisturbed(lambda: keeper.keep(report))
                keeper.tell()
            raise
        return _run(loaded, subject, choice, _Keeper(loaded, subject.place, watcher))


def run(
    loaded: LoadedConfig,
    subject: Subject,
    choice: Choice,
    *,
    on_check: Callable[[CheckResult], None] | None = None,
) -> SmokeReport:
    """Run the chosen checks, keep the document, and return the report.

    A signal ends the run at once, whatever it waits for: what was found until then is kept, marked as interrupted, and
    the signal's exception goes on. Further signals do not disturb that.

    Args:
        loaded: The configuration.

        subject: What to test.

        choice: What to run.

        on_check: Called with each outcome as soon as it is known.

    Raises:
        ConfigError: A name is not that of a check, the recorded answers cannot be compared, or the results could not be
            written.

        EnvironmentFault: All is well with the deployment, and the results could not be written all the same.
    """
    subject.place.require_writable()
    return _run(loaded, subject, choice, _Keeper(loaded, subject.place, Watcher(on_check=on_check or _ignore)))


def _run(loaded: LoadedConfig, subject: Subject, choice: Choice, keeper: _Keeper) -> SmokeReport:
    selected = choice.names
    asked = _asked(loaded, subject, choice, selected)
    done: list[CheckResult] = []

    def tell(result: CheckResult) -> None:
        done.append(result)
        keeper.watcher.on_check(result)

    try:
        with interruptible() as call:
            smoke_run = SmokeRun(
                subject.client_factory,
                subject.expectations,
                asked=asked,
                budget_s=loaded.config.smoke.quick_s if choice.quick else None,
                spent_s=subject.asked_s,
                call=call,
            )
            try:
                report = smoke_run.of(selected, tell)
            except BaseException as error:
                if not isinstance(error, Exception):
                    keeper.keep(cut_short(selected, done, exit_code=exit_code(error)))
                raise
            keeper.keep(report)
    except BaseException:
        keeper.tell()
        raise
    return keeper.told(report)


class _Keeper:
    """Keeps the outcome of one run: first in its files, then for whoever watches."""

    def __init__(self, loaded: LoadedConfig, place: Place, watcher: Watcher) -> None:
        self.watcher = watcher
        self._loaded, self._place = loaded, place
        self._document: dict[str, Any] | None = None
        self._problems: tuple[str, ...] = ()

    def keep(self, report: SmokeReport) -> None:
        """Write the files."""
        about = {**provenance(self._loaded), "deployment": dict(self._place.identity)}
        self._document = {**about, **report.as_dict()}
        self._problems = self._place.write(self._document)

    def tell(self) -> None:
        """Hand over what was kept, if anything was, and say what could not be."""
        document, self._document = self._document, None
        if document is None:
            return
        self.watcher.on_document(document)
        for problem in self._problems:
            self.watcher.on_problem(problem, _MAKE_ROOM)

    def told(self, report: SmokeReport) -> SmokeReport:
        """Keep a report unless that was done, hand it over, and return it.

        Raises:
            EnvironmentFault: All is well, but for the results, which could not be written.
        """
        if self._document is None:
            undisturbed(lambda: self.keep(report))
        self.tell()
        if self._problems and report.exit_code == EXIT_OK:
            raise EnvironmentFault("every check passed, and the results could not be written", hint=_MAKE_ROOM)
        return report


def record(loaded: LoadedConfig, subject: Subject, output: Path, *, prompts: str = "") -> Golden:
    """Write down the greedy answers to a prompt set, and where they are from; an earlier file is replaced as a whole.

    Args:
        loaded: The configuration.

        subject: What answers.

        output: The file to write.

        prompts: A bundled prompt set or a file of prompts; empty takes the smoke test's own.

    Raises:
        ConfigError: The prompts cannot be read.

        CannotDecide: An answer changes from request to request.

        ServerFault: The server refuses a prompt, or does not answer in time.
    """
    require_writable(output, "-o")
    asked = _prompts(loaded, prompts) or subject.expectations.prompts
    expect = subject.expectations
    limit_s = expect.check_timeout_s

    def ask() -> tuple[bool, tuple[Any, ...]]:
        answers = []
        with subject.client_factory() as client:
            for prompt in asked:
                probe = Probe(client, expect, monotonic=time.monotonic, sleep=time.sleep)
                answers.append(golden_check.record(probe, prompt, max_tokens=expect.max_tokens))
            return probe.alone is not None, tuple(answers)

    try:
        with interruptible() as call:
            target_alone, answers = call(ask, limit_s * len(asked))
    except Broken as error:
        raise ServerFault(str(error), hint="see the server's log, and smoke.request_timeout_s") from error
    golden = Golden(
        created=provenance(loaded)["created"],
        deployment={
            "name": subject.place.identity.get("name", ""),
            "profile": subject.place.identity.get("profile", ""),
            "release": loaded.config.release,
            "engines": subject.engines,
        },
        tokenizer=subject.tokenizer,
        prompt_set=prompts or OWN_PROMPTS,
        max_tokens=expect.max_tokens,
        target_alone=target_alone,
        answers=answers,
    )
    _write(output, plain(golden.as_dict()), "the recorded answers", "-o")
    return golden


def _write(path: Path, document: Mapping[str, Any], what: str, named_by: str) -> None:
    try:
        write_json_atomic(path, document)
    except OSError as error:
        raise ConfigError(
            f"{what} cannot be written to {path}: {error.strerror}",
            hint=f"{named_by} must name a place that we may write to",
        ) from error


def _asked(loaded: LoadedConfig, subject: Subject, choice: Choice, selected: tuple[str, ...]) -> dict[str, Asked]:
    """Return the check of the recorded answers, where there are any to compare with."""
    found = _recorded(loaded, choice, selected)
    if found is None:
        return {}
    recorded, source = found
    require_fits(recorded, source=source, tokenizer=subject.tokenizer, prompts=_prompts(loaded, choice.prompts) or None)
    changed = other_engines(recorded, subject.engines)
    expect = subject.expectations
    # The limit of a check is made for the smoke test's own prompts.
    share = math.ceil(len(recorded.answers) / len(expect.prompts))
    question = golden_check.against(recorded, changed=changed and f"other engines ({changed})")
    return {GOLDEN: Asked(run=question, limit_s=expect.check_timeout_s * share)}


def _recorded(loaded: LoadedConfig, choice: Choice, selected: tuple[str, ...]) -> tuple[Golden, str] | None:
    """Return the recorded answers and their file; None where there are none to compare with.

    Raises:
        ConfigError: They cannot be read, or prompts are named and there are no answers to them.
    """
    named = choice.golden or loaded.config.smoke.golden
    if not named or GOLDEN not in selected:
        if choice.prompts:
            raise ConfigError(
                "--prompts says what the recorded answers are to, and none are compared",
                hint="give --golden FILE, too; `specdeploy smoke record --prompts` records",
            )
        return None
    # The command line is where the user is; the configuration is where its file is.
    path = Path(choice.golden).expanduser().absolute() if choice.golden else loaded.resolve(named)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the recorded answers {path} cannot be read: {error}", hint="`specdeploy smoke record -o FILE` writes them"
        ) from error
    return parse_golden(text, source=str(path)), str(path)


def _prompts(loaded: LoadedConfig, name: str) -> tuple[SmokePrompt, ...]:
    if not name:
        return ()
    # Of the command line, so relative to where the user is.
    found = prompts_of(dataclasses.replace(loaded, base_dir=Path.cwd()), name, "--prompts")
    return tuple(SmokePrompt(name=prompt.id, text=prompt.text) for prompt in found.prompts)


def _tokenizer(repository: Path) -> str:
    """Return the fingerprint of the tokenizer that is served; nothing where there is none to read."""
    for path in sorted(repository.glob(f"*/1/{names.TOKENIZER_DIR}/tokenizer.json")):
        try:
            return tokenizer_fingerprint(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ""
    return ""


def exit_code(ending: BaseException) -> int:
    """Return what the process ends with when this exception reaches its top."""
    if isinstance(ending, SystemExit) and isinstance(ending.code, int):
        return ending.code
    return 128 + (signal.SIGINT if isinstance(ending, KeyboardInterrupt) else signal.SIGTERM)
