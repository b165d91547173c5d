"""The sections that are not the load test's own: headline, warnings, gate, smoke test, circumstances, definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.metrics import METRICS
from specdeploy.bench.records import CONTROL, SPECULATION, LoadPoint
from specdeploy.report import parts
from specdeploy.report.markup import Markup, tag
from specdeploy.report.model import (
    arm_metrics,
    arms,
    flatten,
    is_open,
    latency_ratios,
    not_measured,
    planned,
    point_of,
    speedup,
    statistic,
)
from specdeploy.report.numbers import DASH, NOT_MEASURED, amount, interval, plain, shown_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.report.model import Bundle

_NOT_RUN: Final = "not run"


def headline(bundle: Bundle) -> Markup:
    """Show the numbers that matter most, under the lowest load that was measured."""
    tiles = (
        [*_load_tiles(bundle, bundle.load), _smoke_tile(bundle.smoke)] if bundle.load else [_smoke_tile(bundle.smoke)]
    )
    return tag("dl", *tiles, class_="tiles")


def warnings(bundle: Bundle) -> Markup | None:
    """Say what a reader has to know before believing the numbers; nothing when there is nothing."""
    return parts.notes(list(_warnings(bundle)))


def gate_section(gate: Mapping[str, Any] | None) -> Markup:
    """Show what became of every rule."""
    if gate is None:
        return parts.section("Gate", tag("p", "No gate was run on these measurements.", class_="soft"))
    if not gate["rules"]:
        return parts.section("Gate", parts.notes([parts.note("error", gate.get("reason", ""), gate.get("hint", ""))]))
    rows = [
        tag(
            "tr",
            parts.status_cell(rule["status"]),
            tag("td", tag("code", rule["rule"]), " (advisory)" if rule.get("advisory") else None),
            parts.number(amount(rule["value"], rule["unit"])),
            parts.number(
                DASH if rule["limit"] is None else f"{rule['comparison']} {amount(rule['limit'], rule['unit'])}"
            ),
            tag("td", rule["reason"]),
        )
        for rule in gate["rules"]
    ]
    header = ["Verdict", "Rule", parts.column("Measured", "n"), parts.column("Limit", "n"), "Why"]
    return parts.section("Gate", parts.table("Rules of the gate", (header,), rows, class_="stack"))


def smoke_section(smoke: Mapping[str, Any] | None) -> Markup:
    """Show every check of the smoke test."""
    if smoke is None:
        return parts.section("Smoke test", tag("p", "The smoke test was not run.", class_="soft"))
    rows = [
        tag(
            "tr",
            parts.status_cell(check["status"]),
            tag("td", tag("code", check["name"])),
            parts.number(f"{check.get('duration_s', 0.0):.2f}"),
            tag("td", check.get("reason", ""), _hint(check)),
        )
        for check in smoke["checks"]
    ]
    header = ["Result", "Check", parts.column("Seconds", "n"), "What was seen"]
    lost = smoke.get("server_lost")
    words = tag("p", f"The server was lost: {lost}", class_="fail") if lost else None
    return parts.section("Smoke test", words, parts.table("Checks of the smoke test", (header,), rows, class_="stack"))


def _hint(check: Mapping[str, Any]) -> Markup | None:
    """Show what to do about a check that did not pass."""
    return tag("div", check["hint"], class_="soft") if check.get("hint") else None


def circumstances(bundle: Bundle) -> Markup:
    """Show what was measured, where, and how."""
    load = bundle.load or {}
    groups = {
        "Deployment": bundle.deployment,
        "Environment": load.get("environment"),
        "Load plan": load.get("plan"),
        "Fingerprint": load.get("fingerprint"),
    }
    cards = [
        parts.figure(title, "", parts.facts(title, flatten(data)), class_="words")
        for title, data in groups.items()
        if data
    ]
    return parts.section("Circumstances", parts.grid(*cards))


def definitions() -> Markup:
    """Show how every metric is computed, and when it is undefined."""
    rows = [
        parts.row(metric.title, tag("code", metric.key), shown_unit(metric.unit), metric.formula, metric.undefined)
        for metric in METRICS.values()
    ]
    header = ["Metric", "Key", "Unit", "Formula", "Undefined when"]
    symbols = (
        "t0 intended send, ts actual send, t1 first and tn last response with tokens, n output tokens, f tokens in the "
        "first response; S verify steps, D drafted tokens, A accepted drafted tokens, h[j] steps that accepted exactly "
        "j drafts. Times are the client's, token counts the server's. Percentiles interpolate linearly."
    )
    content = tag(
        "details",
        tag("summary", f"{len(rows)} definitions"),
        tag("p", symbols),
        parts.table("Definitions of metrics", (header,), rows),
    )
    return parts.section("How the numbers are defined", content)


def missing_section(load: Mapping[str, Any]) -> Markup:
    """Say what was not measured; absent is not zero."""
    missing = not_measured(load)
    if not missing:
        where = "that each arm can have" if CONTROL in arms(load) else "of speculation; the control was left out"
        return parts.section("Not measured", tag("p", f"The load test measured every metric {where}."))
    rows = [(place, ", ".join(titles)) for place, titles in missing.items()]
    return parts.section("Not measured", parts.facts("Metrics that are absent, which does not mean zero", rows))


def _tile(title: str, value: str, *more: str, class_: str = "tile") -> Markup:
    """Return a tile; what follows the first space of its value is written small, as a unit is."""
    figure, _, unit = value.partition(" ")
    absent = value in {NOT_MEASURED, _NOT_RUN}
    words = (
        tag("dd", value, class_="missing") if absent else tag("dd", figure, tag("small", f" {unit}") if unit else None)
    )
    return tag("div", tag("dt", title), words, *(tag("dd", line) for line in more if line), class_=class_)


def _load_tiles(bundle: Bundle, load: Mapping[str, Any]) -> Iterator[Markup]:
    point = next(iter(bundle.points or planned(load)), LoadPoint())
    control, speculation = (arm_metrics(load, arm, point) for arm in (CONTROL, SPECULATION))
    yield _lead_tile(bundle, load, point)
    counts = [
        statistic(speculation, f"spec_decode_{name}", "sum") for name in ("accepted_draft_tokens", "draft_tokens")
    ]
    yield _tile(
        "Drafts accepted",
        amount(statistic(speculation, "overall_spec_decode_draft_acceptance_rate"), "ratio"),
        " of ".join(plain(count) for count in counts if count is not None),
    )
    steps = statistic(speculation, "spec_decode_steps", "sum")
    length = statistic(speculation, "overall_spec_decode_acceptance_length")
    yield _tile(
        "Tokens per step",
        NOT_MEASURED if length is None else f"{length:.2f}",
        "" if steps is None else f"over {plain(steps)} verify steps",
    )
    tokens = [amount(statistic(arm, "output_token_throughput"), "tokens/sec") for arm in (speculation, control)]
    yield _tile("Output throughput", tokens[0], f"control: {tokens[1]}" if CONTROL in bundle.arms else "")
    yield _outcome_tile(load)


def _lead_tile(bundle: Bundle, load: Mapping[str, Any], point: LoadPoint) -> Markup:
    """Show what a reader came for: the speed-up; of an open loop how latency changed; of one arm its latency."""
    where = "" if point == LoadPoint() else f"at {point}"
    if CONTROL not in bundle.arms:
        metrics = arm_metrics(load, SPECULATION, point)
        median, slow = (amount(statistic(metrics, "request_latency", stat), "ms") for stat in ("p50", "p99"))
        return _tile("Request latency, median", median, where, f"p99 {slow}", class_="tile lead")
    entry = latency_ratios(load, point).get("request_latency") if is_open(load) else speedup(load, point)
    title = "Latency, speculation / control" if is_open(load) else "Speed-up"
    title = "Throughput, speculation / control" if bundle.other_control and not is_open(load) else title
    if entry is None:
        return _tile(title, NOT_MEASURED, where, class_="tile lead")
    words = interval(entry["ci_low"], entry["ci_high"], entry["pairs"])
    return _tile(title, amount(entry["avg"], "x"), f"{where}, {words}", class_="tile lead")


def _outcome_tile(load: Mapping[str, Any]) -> Markup:
    good, failed = (
        sum(statistic(arm["metrics"], key) or 0 for arm in load["arms"])
        for key in ("request_count", "error_request_count")
    )
    outputs = load.get("outputs")
    same = (
        f"{outputs['identical']} of {outputs['compared']} answers identical in both arms"
        if outputs and outputs["compared"]
        else ""
    )
    return _tile("Requests answered", f"{plain(good)} of {plain(good + failed)}", same)


def _smoke_tile(smoke: Mapping[str, Any] | None) -> Markup:
    if smoke is None:
        return _tile("Smoke test", _NOT_RUN)
    counts = smoke["counts"]
    skipped = f"{counts['skip']} skipped" if counts.get("skip") else ""
    return _tile("Smoke test", f"{counts['pass']} of {sum(counts.values()) - counts.get('skip', 0)} checks", skipped)


def _warnings(bundle: Bundle) -> Iterator[Markup]:
    load = bundle.load
    if load is None:
        yield parts.note("warning", "The load test was not run: nothing here says how fast the deployment is.")
        return
    if load["partial"]:
        words = f"The load test is partial: {load['stop_reason']}."
        yield parts.note("warning", words, "Numbers are those of the requests that came to their end.")
    for finding in load.get("findings", ()):
        yield parts.note(finding["severity"], finding["message"], finding["hint"])
    for arm in load["arms"]:
        if arm["errors"]:
            labels = ", ".join(f"{count} {label}" for label, count in arm["errors"].items())
            said = [f"{label}: {words}" for label, words in arm.get("error_messages", {}).items() if words]
            words = f"{arm['arm']} at {point_of(arm)}: requests failed ({labels})."
            yield parts.note("error", words, f"Such as {'; '.join(said)}" if said else "")
