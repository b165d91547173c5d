"""From a running deployment to a verdict: smoke, load, gate and report; each leaves its document behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.driver import run_load
from specdeploy.bench.load_report import RunContext, build_load_report
from specdeploy.bench.records import records_to_jsonl
from specdeploy.bench.schedule import LoadSettings, kv_reuse_findings, plan_load, prompt_findings
from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.gate.rules import parse_rules
from specdeploy.gate.verdict import evaluate
from specdeploy.pipeline.smoking import smoke
from specdeploy.pipeline.subject import connect, deployment, fixed_by, prompts_of, read_document
from specdeploy.pipeline.workspace import workspace
from specdeploy.report.html import render
from specdeploy.system.clock import SystemClock
from specdeploy.system.files import write_atomic, write_json_atomic
from specdeploy.system.host import probe_host
from specdeploy.triton.protocol import GenerateRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from specdeploy.bench.driver import Progress
    from specdeploy.bench.schedule import LoadPlan
    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.serving import Addresses

__all__ = ["deployment", "gate", "load", "preflight", "report", "smoke"]

# Rules whose evaluation reads every part of a load document that the gate trusts.
_READABLE: Final = ("error_rate <= 0", "speedup >= 1", "overall_spec_decode_acceptance_length >= 1")


def preflight(loaded: LoadedConfig) -> None:
    """Read everything that the measurements take from the user, and measure nothing.

    Raises:
        ConfigError: The load plan, the prompts or a gate rule cannot be used.
    """
    _plan(loaded)
    rules = parse_rules(loaded.config.gate.rules)
    if not rules:
        raise ConfigError("the gate has no rules", hint="list at least one under gate.rules")


def load(
    loaded: LoadedConfig, endpoints: Addresses, *, on_progress: Callable[[Progress], None] | None = None
) -> dict[str, Any]:
    """Measure speculation against control and keep ``load.json`` and the raw records.

    Raises:
        ConfigError: the prompts cannot be read.

        ServerFault: the server is not there.
    """
    config, clock = loaded.config, SystemClock()
    if method := fixed_by(config):
        raise ConfigError(
            f"{method} drafts always as it was built to, so this deployment has no control to compare with",
            hint="measure a deployment without speculation beside it; draft_target and ngram have their own control",
        )
    plan = _plan(loaded)
    with connect(endpoints, config.load.request_timeout_s) as client:
        # Asks for the front door's inputs now, so that no measured request waits for them.
        client.encode(GenerateRequest(prompt="warm", max_tokens=1))
        run = run_load(plan, client.session, clock, on_progress)
    findings = (*kv_reuse_findings(plan, max_sequences=config.build.max_batch_size), *prompt_findings(plan))
    context = RunContext(created=clock.now_iso(), deployment=deployment(loaded), environment=probe_host().as_dict())
    document = build_load_report(run, plan, context, findings)
    place = workspace(loaded)
    write_atomic(place.records_jsonl, records_to_jsonl(run.records))
    write_json_atomic(place.load_json, document)
    return document


def gate(loaded: LoadedConfig, rules: Iterable[str] = ()) -> dict[str, Any]:
    """Judge the last load test by the given rules, or by those of the configuration; return and keep ``gate.json``.

    Raises:
        ConfigError: a rule or the load document is malformed.

        CannotDecide: nothing was measured yet.
    """
    place = workspace(loaded)
    parsed = parse_rules(tuple(rules) or loaded.config.gate.rules)
    verdict = evaluate(parsed, _required(place.load_json, "specdeploy load"))
    document = verdict.to_dict(created=SystemClock().now_iso())
    write_json_atomic(place.gate_json, document)
    return document


def report(loaded: LoadedConfig) -> Path:
    """Write the HTML report from whatever was measured so far, and return its path.

    Raises:
        CannotDecide: nothing was measured yet.
    """
    place = workspace(loaded)
    documents = {
        "load": read_document(place.load_json),
        "smoke": read_document(place.smoke_json),
        "gate": read_document(place.gate_json),
    }
    if not any(documents.values()):
        raise CannotDecide(
            f"nothing has been measured yet: {place.reports} holds no result",
            hint="run `specdeploy smoke` and `specdeploy load` first",
        )
    records = place.records_jsonl.read_text(encoding="utf-8") if place.records_jsonl.is_file() else None
    write_atomic(place.report_html, _rendered({"deployment": deployment(loaded), **documents, "records": records}))
    return place.report_html


def _rendered(documents: Mapping[str, Any]) -> str:
    """Render the report; a document that was damaged or edited by hand is the user's to replace, not a bug of ours."""
    load_document = documents["load"]
    if load_document is not None:
        # The gate's reader refuses what cannot be trusted (NaN, other types); a report must not publish it either.
        evaluate(parse_rules(_READABLE), load_document)
    try:
        return render(documents)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"a result document is damaged: {type(error).__name__}: {error}",
            hint="measure again with `specdeploy smoke` and `specdeploy load`",
        ) from error


def _plan(loaded: LoadedConfig) -> LoadPlan:
    wanted = loaded.config.load
    settings = LoadSettings(
        concurrency=wanted.concurrency,
        requests=wanted.requests,
        pairs=wanted.pairs,
        warmup_requests=wanted.warmup_requests,
        max_tokens=wanted.max_tokens,
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        seed=wanted.seed,
        request_timeout_s=wanted.request_timeout_s,
    )
    return plan_load(settings, prompts_of(loaded, wanted.prompts, "load.prompts"))


def _required(path: Path, command: str) -> dict[str, Any]:
    document = read_document(path)
    if document is None:
        raise CannotDecide(f"there is no {path}: nothing has been measured", hint=f"run `{command}` first")
    return document
