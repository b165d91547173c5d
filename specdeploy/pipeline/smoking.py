"""The smoke test: against a deployment of ours or another server, with recorded answers, kept as ``smoke.json``."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError, ServerFault
from specdeploy.pipeline.subject import connect, deployment, fixed_by, most_drafts, prompts_of, provenance
from specdeploy.pipeline.workspace import workspace
from specdeploy.smoke.checks import golden as golden_check
from specdeploy.smoke.expectations import Expectations, SmokePrompt
from specdeploy.smoke.golden import Golden, other_engines, parse_golden, require_fits, tokenizer_fingerprint
from specdeploy.smoke.isolation import apart
from specdeploy.smoke.probe import Broken, Probe
from specdeploy.smoke.report import plain
from specdeploy.smoke.runner import Asked, SmokeRun, cut_short, select
from specdeploy.system.files import write_json_atomic
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.serving import Addresses
    from specdeploy.smoke.report import CheckResult, SmokeReport
    from specdeploy.smoke.runner import ClientFactory
    from specdeploy.smoke.targets import Target

#: The name under which ``Expectations.prompts`` are recorded.
OWN_PROMPTS: Final = "smoke"
GOLDEN: Final = "golden"
_QUICK_REQUEST_SHARE: Final = 0.4
_QUICK_TOKENS: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """What a run is about.

    Args:
        client_factory: Makes a client, to be closed.

        expectations: What it promises, and what it can be asked for.

        identity: What the results say of it, under ``deployment``.

        tokenizer: Fingerprint of its tokenizer; empty where it is not known.

        results: The file that the outcome is kept in.
    """

    client_factory: ClientFactory
    expectations: Expectations
    identity: Mapping[str, Any]
    tokenizer: str
    results: Path

    @property
    def engines(self) -> dict[str, str]:
        """Role to key, of the engines that are known."""
        engines = self.identity.get("engines") or {}
        return {role: str(engine["key"]) for role, engine in engines.items() if engine and engine.get("key")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What is asked of a run.

    Args:
        only: Names of the checks to run; empty runs all.

        skip: Names of the checks to leave out.

        quick: Run those that a readiness gate needs, within ``smoke.quick_s``.

        golden: Recorded answers to compare with; empty for those of the configuration.

        prompts: What they must have been recorded from; empty takes what they were.
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    quick: bool = False
    golden: str = ""
    prompts: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The checks to run; recorded answers that are named here are always compared."""
        asked = {GOLDEN} if self.golden and (self.only or self.quick) else set()
        return select({*self.only, *asked}, self.skip, quick=self.quick)


def smoke(
    loaded: LoadedConfig, endpoints: Addresses, *, on_check: Callable[[CheckResult], None] | None = None
) -> SmokeReport:
    """Run every check against a deployment and keep ``smoke.json``; see :func:`run`."""
    return run(loaded, own(loaded, endpoints), Choice(), on_check=on_check)


def own(loaded: LoadedConfig, endpoints: Addresses) -> Subject:
    """Return a deployment of ours as what a run is about."""
    config = loaded.config
    expectations = Expectations(
        models=names.model_names(config),
        num_draft_tokens=config.speculation.num_draft_tokens,
        max_draft_tokens=most_drafts(config),
        draft_model=names.engine_models(config).get("draft"),
        fixed_by=fixed_by(config),
        max_seq_len=config.build.max_seq_len,
        target_precision=config.target.precision,
        max_tokens=config.smoke.max_tokens,
        request_timeout_s=config.smoke.request_timeout_s,
        samples=config.smoke.samples,
        alpha=config.smoke.alpha,
        tie_margin=config.smoke.tie_margin,
        clients=config.smoke.clients,
        self_draft=config.smoke.self_draft,
        metrics=endpoints.metrics_url is not None,
    )
    return Subject(
        client_factory=lambda: connect(endpoints, config.smoke.request_timeout_s),
        expectations=expectations,
        identity=deployment(loaded),
        tokenizer=_tokenizer(workspace(loaded).repository),
        results=workspace(loaded).smoke_json,
    )


def other(loaded: LoadedConfig, target: Target, *, kind: str, url: str) -> Subject:
    """Return a server that is not ours as what a run is about; its results are kept beside the deployment's own."""
    return Subject(
        client_factory=target.client_factory,
        expectations=target.expectations,
        identity={"name": target.expectations.front_door, "profile": kind, "url": url},
        tokenizer="",
        results=workspace(loaded).reports / f"smoke-{kind}.json",
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


def run(
    loaded: LoadedConfig,
    subject: Subject,
    choice: Choice,
    *,
    on_check: Callable[[CheckResult], None] | None = None,
    on_document: Callable[[Mapping[str, Any]], None] | None = None,
) -> SmokeReport:
    """Run the chosen checks, keep the document, and return the report.

    A signal ends the run at once, whatever it waits for: what was found until then is kept, marked as interrupted, and
    the signal's exception goes on.

    Args:
        loaded: The configuration.

        subject: What to test.

        choice: What to run.

        on_check: Called with each outcome as soon as it is known.

        on_document: Called once with what is kept, also when a signal ends the run.

    Raises:
        ConfigError: A name is not that of a check, or the recorded answers cannot be compared.
    """
    selected = choice.names
    smoke_run = SmokeRun(
        subject.client_factory,
        subject.expectations,
        asked=_asked(loaded, subject, choice, selected),
        budget_s=loaded.config.smoke.quick_s if choice.quick else None,
        call=apart,
    )
    done: list[CheckResult] = []

    def tell(result: CheckResult) -> None:
        done.append(result)
        if on_check is not None:
            on_check(result)

    def keep(report: SmokeReport) -> None:
        document = {**provenance(loaded), "deployment": dict(subject.identity), **report.as_dict()}
        if on_document is not None:
            on_document(document)
        _write(subject.results, document, "the result", "report.path")

    try:
        report = smoke_run.of(selected, tell)
    except BaseException as error:
        if not isinstance(error, Exception):
            keep(cut_short(selected, done, exit_code=exit_code(error)))
        raise
    keep(report)
    return report


def record(loaded: LoadedConfig, subject: Subject, output: Path, *, prompts: str = "") -> Golden:
    """Write down the greedy answers to a prompt set, and where they are from; an earlier file is replaced as a whole.

    Args:
        loaded: The configuration.

        subject: What answers.

        output: The file to write.

        prompts: ``code``, ``chat`` or a JSON Lines file; empty takes the smoke test's own.

    Raises:
        ConfigError: The prompts cannot be read.

        CannotDecide: An answer changes from request to request.

        ServerFault: The server refuses a prompt, or does not answer in time.
    """
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
        target_alone, answers = apart(ask, limit_s * len(asked))
    except Broken as error:
        raise ServerFault(str(error), hint="see the server's log, and smoke.request_timeout_s") from error
    golden = Golden(
        created=provenance(loaded)["created"],
        deployment={
            "name": subject.identity.get("name", ""),
            "profile": subject.identity.get("profile", ""),
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
    named = choice.golden or loaded.config.smoke.golden
    if not named or GOLDEN not in selected:
        return {}
    path = loaded.resolve(named)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the recorded answers {path} cannot be read: {error}", hint="`specdeploy smoke record -o FILE` writes them"
        ) from error
    recorded = parse_golden(text, source=str(path))
    require_fits(
        recorded, source=str(path), tokenizer=subject.tokenizer, prompts=_prompts(loaded, choice.prompts) or None
    )
    changed = other_engines(recorded, subject.engines)
    expect = subject.expectations
    # The limit of a check is made for the smoke test's own prompts.
    share = math.ceil(len(recorded.answers) / len(expect.prompts))
    question = golden_check.against(recorded, changed=changed and f"other engines ({changed})")
    return {GOLDEN: Asked(run=question, limit_s=expect.check_timeout_s * share)}


def _prompts(loaded: LoadedConfig, name: str) -> tuple[SmokePrompt, ...]:
    if not name:
        return ()
    found = prompts_of(loaded, name, "--prompts")
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
