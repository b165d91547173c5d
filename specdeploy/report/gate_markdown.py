"""The verdict as Markdown, for the page of a CI job: rules with their numbers, and what speculation did.

Takes ``gate.json`` and ``load.json`` as they were written. What a document does not say is left out or shown as not
measured, never invented; no name in them can become markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.records import SPECULATION
from specdeploy.errors import EXIT_OK
from specdeploy.report import gate_outcome
from specdeploy.report.exports.readings import finite
from specdeploy.report.markdown import code, escape, table
from specdeploy.report.numbers import DASH, NOT_MEASURED, amount, interval, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RULES: Final = ("Verdict", "Rule", "Measured", "Limit", "Load", "Why")
_LOADS: Final = ("Load", "Speculation against control", "Acceptance rate", "Tokens a step", "Accepted / drafted")
_TITLES: Final = {EXIT_OK: "passed", 1: "failed"}
_LATENCY: Final = "request_latency_ratio"
#: How every summary begins.
BEGINNING: Final = "## Gate "
#: What a fingerprint says of a field that a run has not.
_ABSENT: Final = "-"


def gate_markdown(gate: Mapping[str, Any], load: Mapping[str, Any] | None) -> str:
    """Return the summary; ends with a newline.

    Args:
        gate: Content of ``gate.json``.

        load: Content of ``load.json``, which it judged; None when there is none.
    """
    parts = (*_verdict(gate, load or {}), *_speculation(load or {}), *_provenance(gate, load or {}))
    return "\n\n".join(parts) + "\n"


def _verdict(gate: Mapping[str, Any], load: Mapping[str, Any]) -> Iterator[str]:
    yield f"{BEGINNING}{_TITLES.get(gate.get('exit_code', -1), 'could not decide')}"
    rules = _list(gate.get("rules"))
    count = sum(gate_outcome.standing(rule) == "passed" for rule in rules)
    passed = f"{count} of {len(rules)} rules passed" if rules else "no rule was judged"
    yield f"{_name(load)}{passed}, exit code {escape(str(gate.get('exit_code')))}."
    if control := gate_outcome.named_control(gate):
        yield f"The control was another server: {code(control)}"
    if rules:
        yield table(_RULES, map(_rule, rules), right=("Measured", "Limit"))
    said = gate_outcome.complaint(gate)
    if said:
        yield f"**{escape(said)}**"
        if hint := gate_outcome.cure(gate):
            yield escape(hint)


def _name(load: Mapping[str, Any]) -> str:
    deployment = _mapping(load.get("deployment"))
    if not deployment.get("name"):
        return ""
    profile = f" (profile {escape(str(deployment['profile']))})" if deployment.get("profile") else ""
    return f"**{escape(str(deployment['name']))}**{profile}: "


def _rule(rule: Mapping[str, Any]) -> tuple[str, ...]:
    verdict = escape(gate_outcome.words(rule.get("status")))
    # What decides is in bold; what passed, or only advises, is not.
    shown = f"**{verdict}**" if gate_outcome.standing(rule) in {"failed", "open"} else verdict
    return (
        f"{shown} (advisory)" if rule.get("advisory") else shown,
        code(str(rule.get("rule"))),
        escape(gate_outcome.measured(rule)),
        escape(gate_outcome.limit(rule)),
        escape(gate_outcome.where(rule)),
        escape(str(rule.get("reason", ""))),
    )


def _speculation(load: Mapping[str, Any]) -> Iterator[str]:
    entries = [entry for entry in _list(load.get("arms")) if entry.get("arm") == SPECULATION]
    if entries:
        yield "### Speculation"
        yield table(_LOADS, (_load(entry, load) for entry in entries), right=_LOADS[2:])
    if load.get("partial"):
        yield f"The run is partial: {escape(str(load.get('stop_reason') or 'the plan was not carried out'))}."
    if load.get("degraded"):
        yield "The run is degraded: the load generator itself was late."


def _load(entry: Mapping[str, Any], load: Mapping[str, Any]) -> tuple[str, ...]:
    metrics = _mapping(entry.get("metrics"))
    length = _number(metrics, "overall_spec_decode_acceptance_length")
    accepted, drafted = (_number(metrics, f"spec_decode_{what}_tokens", "sum") for what in ("accepted_draft", "draft"))
    counts = NOT_MEASURED if accepted is None or drafted is None else f"{plain(accepted)} / {plain(drafted)}"
    return (
        escape(gate_outcome.where(entry)),
        escape(_gain(entry, load)),
        amount(_number(metrics, "overall_spec_decode_draft_acceptance_rate"), "ratio"),
        NOT_MEASURED if length is None else f"{length:.2f}",
        counts,
    )


def _gain(entry: Mapping[str, Any], load: Mapping[str, Any]) -> str:
    """Say what speculation changed: throughput in a closed loop, latency in an open one."""
    if _mapping(load.get("plan")).get("compare", True) is False:
        return DASH
    if entry.get("rate") is None:
        return _ratio(_mapping(load.get("speedup")).get(str(entry.get("concurrency"))))
    ratios = next((ratios for ratios in _list(load.get("open_loop")) if ratios.get("rate") == entry["rate"]), {})
    return f"request latency {_ratio(ratios.get(_LATENCY))}"


def _ratio(value: object) -> str:
    ratio = _mapping(value)
    avg, low, high = (finite(ratio.get(name)) for name in ("avg", "ci_low", "ci_high"))
    if avg is None:
        return NOT_MEASURED
    return f"{amount(avg, 'x')} ({interval(low, high, int(finite(ratio.get('pairs')) or 0))})"


def _provenance(gate: Mapping[str, Any], load: Mapping[str, Any]) -> Iterator[str]:
    known = gate.get("fingerprint") or load.get("fingerprint")
    if known and (facts := list(_facts(known))):
        # Dozens of fields, which matter when two runs differ.
        yield f"<details><summary>Fingerprint</summary>\n\nMeasured with {', '.join(facts)}\n\n</details>"
    times = {"measured": load.get("created") or load.get("started_at"), "judged": gate.get("created")}
    said = ", ".join(f"{what} {escape(str(time))}" for what, time in times.items() if time)
    if said:
        yield f"{said[:1].upper()}{said[1:]}."


def _facts(fingerprint: object, prefix: str = "") -> Iterator[str]:
    """Yield a fingerprint's parts by name, whatever it is made of; what a run has not is left out."""
    if not isinstance(fingerprint, dict):
        yield f"{prefix}{code(str(fingerprint))}"
        return
    for name, value in fingerprint.items():
        if value not in (None, _ABSENT):
            yield from _facts(value, f"{prefix}{escape(str(name))} ")


def _number(metrics: Mapping[str, Any], key: str, stat: str = "avg") -> int | float | None:
    return finite(_mapping(metrics.get(key)).get(stat))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
