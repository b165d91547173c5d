"""The reports as text for a terminal: smoke, load, gate, and the closing summary of ``up``.

Knows how the documents read on one screen, in plain ASCII, without colour. Each function takes a document and returns
lines without a newline at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.metrics import METRICS
from specdeploy.bench.records import CONTROL, SPECULATION
from specdeploy.report.gate_outcome import named_control, where
from specdeploy.report.model import (
    arm_metrics,
    arms,
    is_open,
    latency_ratios,
    other_control,
    point_of,
    points,
    speedup,
    statistic,
)
from specdeploy.report.numbers import DASH, NOT_MEASURED, TIMES, amount, interval, number, plain, shown_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from specdeploy.bench.records import LoadPoint

#: Metric and statistic of each row of the load table.
_LOAD_ROWS: Final = (
    ("output_token_throughput", "avg"),
    ("time_to_first_token", "p50"),
    ("time_to_first_token", "p99"),
    ("inter_token_latency", "p50"),
    ("inter_token_latency", "p99"),
    ("request_latency", "p50"),
    ("request_latency", "p99"),
    ("error_rate", "avg"),
)
#: The same, where objectives were set.
_GOODPUT_ROWS: Final = (("good_request_fraction", "avg"), ("goodput", "avg"))
_OF_CONTROL: Final = "speculation / control"
STATUS: Final = {
    "pass": "PASS",
    "fail": "FAIL",
    "skip": "SKIP",
    "undecided": "UNDECIDED",
    "not_measured": "NOT MEASURED",
    "not_comparable": "NOT COMPARABLE",
    "error": "ERROR",
}
_ADVISORY: Final = " (advisory)"
# Statuses whose reason is told in full below the table; in it, a reason has one line of this many characters.
_NOT_PASSED: Final = (("undecided", "undecided"), ("skip", "skipped"))
_TOLD_IN_FULL: Final = ("fail", "undecided")
_REASON_WIDTH: Final = 100
_DIFFERENCES_SHOWN: Final = 4
_DIFFERENCE_KEYS: Final = ("prompt", "num_draft_tokens", "company", "position", "expected", "seen", "kind", "margin")
_ASCII: Final = str.maketrans({TIMES: "x", DASH: "-"})


def smoke_table(smoke: Mapping[str, Any]) -> str:
    """Return ``smoke.json`` as a table, what failed or could not be decided in full below it, and a closing line."""
    rows = [
        (STATUS[check["status"]], check["name"], f"{check['duration_s']:.2f} s", _cut(one_line(check["reason"])))
        for check in smoke["checks"]
    ]
    table = aligned(("", "check", "time", "what was seen"), rows)
    told = [line for check in smoke["checks"] if check["status"] in _TOLD_IN_FULL for line in _check_words(check)]
    return _lines((table, *told, smoke_summary(smoke)))


def smoke_summary(smoke: Mapping[str, Any]) -> str:
    """Return the counts of ``smoke.json`` in a line, and what became of the run when it did not end well."""
    counts = smoke["counts"]
    said = [f"{counts['pass']} passed", f"{counts['fail']} failed", f"{counts['skip']} skipped"]
    said += [f"{counts['undecided']} undecided"] if counts.get("undecided") else []
    said += ["interrupted: this report is partial"] if smoke.get("interrupted") else []
    said += [f"the server was lost: {one_line(smoke['server_lost'])}"] if smoke["server_lost"] else []
    return f"smoke: {', '.join(said)}"


def _check_words(check: Mapping[str, Any]) -> Iterator[str]:
    """Say in full what a check saw, in which answers, and what to do next."""
    yield f"{STATUS[check['status']]} {check['name']}: {one_line(check['reason'])}"
    differences = [item for item in check["details"].get("differences") or () if isinstance(item, dict)]
    for difference in differences[:_DIFFERENCES_SHOWN] if len(differences) > 1 else ():
        words = ", ".join(f"{key} {difference[key]}" for key in _DIFFERENCE_KEYS if difference.get(key) is not None)
        yield f"  - {one_line(words)}"
    if len(differences) > _DIFFERENCES_SHOWN:
        yield f"  and {len(differences) - _DIFFERENCES_SHOWN} more; --json has all"
    if check.get("hint"):
        yield f"  -> {one_line(check['hint'])}"


def _cut(text: str) -> str:
    return text if len(text) <= _REASON_WIDTH else f"{text[: _REASON_WIDTH - 3]}..."


def one_line(text: str) -> str:
    """Return a text that moves no cursor: a server's words may hold line ends and escape sequences."""
    joined = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode("ascii") for c in joined)


def load_table(load: Mapping[str, Any]) -> str:
    """Return ``load.json`` as one table for each load, with speed-up or latency ratios, acceptance and findings."""
    measured = points(load)
    head = [] if measured else ["load: nothing was measured"]
    parts = [part for point in measured for part in (_point(load, point), "")]
    return _lines((*head, *parts, *_remarks(load)))


def gate_table(gate: Mapping[str, Any]) -> str:
    """Return ``gate.json`` as a table of rules with their reasons and a closing line."""
    rows = [
        (
            f"{STATUS[rule['status']]}{_ADVISORY if rule.get('advisory') else ''}",
            one_line(rule["rule"]),
            amount(rule["value"], rule["unit"]),
            "-" if rule["limit"] is None else f"{rule['comparison']} {amount(rule['limit'], rule['unit'])}",
            where(rule),
        )
        for rule in gate["rules"]
    ]
    # The dash keeps a name from standing first in its line, where a CI server looks for commands.
    reasons = [
        f"  - {one_line(rule['rule'])}: {one_line(rule['reason'])}"
        for rule in gate["rules"]
        if rule["status"] != "pass"
    ]
    table = aligned(("", "rule", "measured", "limit", "load"), rows)
    verdict = f"gate: {STATUS[gate['status']]} (exit code {gate['exit_code']})"
    # A load test that failed leaves the one before.
    measured = [f"measured {one_line(str(gate['measured_at']))}"] if gate.get("measured_at") else []
    control = named_control(gate)
    against = [f"the control was another server: {one_line(control)}"] if control else []
    return _lines((table, *reasons, *against, *measured, verdict))


def up_summary(documents: Mapping[str, Any], *, report: str) -> str:
    """Return the closing table of ``up``: what was built, measured and decided, and where the report is.

    Args: documents: ``deployment``, ``smoke``, ``load`` and ``gate``, as for the HTML report; each may be None or
        absent.

        report: Where the HTML report is.
    """
    load, smoke, gate = (documents.get(kind) for kind in ("load", "smoke", "gate"))
    deployment = documents.get("deployment") or (load or {}).get("deployment") or {}
    rows = [("deployment", f"{deployment.get('name', 'unnamed')} (profile {deployment.get('profile', 'unknown')})")]
    rows += [(f"{role} engine", _engine(engine)) for role, engine in deployment.get("engines", {}).items()]
    rows.append(("smoke test", "not run" if smoke is None else _smoke_words(smoke)))
    rows += _load_words(load)
    rows.append(("gate", "not run" if gate is None else _gate_words(gate)))
    rows.append(("report", report))
    width = max(len(name) for name, _ in rows)
    return _lines(f"{name.ljust(width)}  {value}" for name, value in rows)


def _point(load: Mapping[str, Any], point: LoadPoint) -> str:
    shown = arms(load)
    of_arms = [arm_metrics(load, arm, point) for arm in shown]
    keys = (*_LOAD_ROWS, *(_GOODPUT_ROWS if load.get("objectives") else ()))
    rows = [_load_row(key, stat, of_arms) for key, stat in keys]
    table = aligned((str(point), *shown, "unit"), rows, right={1, len(shown)})
    return _lines((table, *_ratio_lines(load, point), f"acceptance {_acceptance_words(load, point)}"))


def _load_row(key: str, stat: str, of_arms: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    metric = METRICS[key]
    title = metric.title.lower() if stat == "avg" else f"{metric.title.lower()} {stat}"
    values = [number(statistic(metrics, key, stat), metric.unit) for metrics in of_arms]
    return (title, *values, shown_unit(metric.unit))


def _ratio_lines(load: Mapping[str, Any], point: LoadPoint) -> list[str]:
    """Say what speculation changed: nothing with one arm, the speed-up in a closed loop, latencies in an open one."""
    if CONTROL not in arms(load):
        return []
    if point.rate is None:
        what = f"output token throughput, {_OF_CONTROL}" if other_control(load) else "speed-up"
        return [f"{what} {_ratio_words(speedup(load, point))}"]
    ratios = latency_ratios(load, point)
    lines = [f"{METRICS[key].title.lower()}, {_OF_CONTROL} {_ratio_words(ratio)}" for key, ratio in ratios.items()]
    return lines or [f"latency, {_OF_CONTROL} {NOT_MEASURED}"]


def _ratio_words(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return NOT_MEASURED
    excluded = f", {entry['excluded']} left out" if entry["excluded"] else ""
    return f"{amount(entry['avg'], 'x')} ({interval(entry['ci_low'], entry['ci_high'], entry['pairs'])}{excluded})"


def _acceptance_words(load: Mapping[str, Any], point: LoadPoint) -> str:
    metrics = arm_metrics(load, SPECULATION, point)
    rate, length = (
        statistic(metrics, f"overall_spec_decode_{name}") for name in ("draft_acceptance_rate", "acceptance_length")
    )
    if rate is None:
        return NOT_MEASURED
    counts = [
        plain(statistic(metrics, f"spec_decode_{name}", "sum") or 0)
        for name in ("accepted_draft_tokens", "draft_tokens", "steps")
    ]
    # Some servers tell what was drafted and accepted, and not in how many steps.
    steps = "" if length is None else f", {length:.2f} tokens a step ({counts[2]} steps)"
    return f"{amount(rate, 'ratio')} of drafts ({counts[0]} of {counts[1]}){steps}"


def search_lines(load: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a search for the highest load has found, a line for each arm; nothing where there was none."""
    search = load.get("search")
    if not search:
        return
    unit = "requests/s" if is_open(load) else "requests in flight"
    promise = f"{' and '.join(load['objectives'])} for {search['least_good']:.0%} of requests"
    for arm, found in search["arms"].items():
        kept, broken = found["highest_kept"], found["lowest_broken"]
        if kept is None:
            words = f"at no load that was tried, down to {plain(broken)} {unit}" if broken else "at no load"
        else:
            words = f"up to {plain(kept)} {unit}, and not at {plain(broken)}" if broken else f"at {plain(kept)} {unit}"
        near = any(trial["near"] for trial in found["trials"] if trial["load"] in (kept, broken))
        yield f"search: {arm} keeps {promise} {words}{' (close: more requests would tell)' if near else ''}"


def _remarks(load: Mapping[str, Any]) -> Iterator[str]:
    yield from search_lines(load)
    if control := other_control(load):
        yield f"control: {one_line(control)}"
    outputs = load.get("outputs")
    if outputs and outputs["compared"]:
        yield f"answers: {outputs['identical']} of {outputs['compared']} identical, token for token, in both arms"
    for arm in load["arms"]:
        for label, count in arm["errors"].items():
            words = one_line(arm.get("error_messages", {}).get(label, ""))
            said = f", such as: {words}" if words else ""
            yield f"failed: {count} requests of {arm['arm']} at {point_of(arm)} ({label}){said}"
    if load["partial"]:
        yield f"partial: {one_line(load['stop_reason'])}"
    for finding in load["findings"]:
        yield f"{finding['severity']}: {one_line(finding['message'])}"
        if finding["hint"]:
            yield f"  -> {one_line(finding['hint'])}"


def _engine(engine: object) -> str:
    if not isinstance(engine, dict):
        return str(engine)
    words = [str(engine[key]) for key in ("checkpoint", "precision") if engine.get(key)]
    size = engine.get("size_bytes")
    built = [f"{size / 1e6:,.0f} MB"] if isinstance(size, (int, float)) else []
    return ", ".join([*words, *built]) or str(engine.get("key", "built"))


def _smoke_words(smoke: Mapping[str, Any]) -> str:
    counts = smoke["counts"]
    more = "".join(f", {counts[kind]} {words}" for kind, words in _NOT_PASSED if counts.get(kind))
    return f"{counts['pass']} of {sum(counts.values()) - counts.get('skip', 0)} checks passed{more}"


def _gate_words(gate: Mapping[str, Any]) -> str:
    deciding = [rule for rule in gate["rules"] if not rule.get("advisory")]
    passed = sum(rule["status"] == "pass" for rule in deciding)
    return f"{STATUS[gate['status']]}, {passed} of {len(deciding)} rules passed"


def _load_words(load: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if load is None:
        return [("load test", "not run")]
    measured = points(load)
    if not measured:
        return [("load test", "nothing was measured")]
    rows = [("acceptance", _acceptance_words(load, measured[0]))]
    return [*rows, *(_point_words(load, point) for point in measured)]


def _point_words(load: Mapping[str, Any], point: LoadPoint) -> tuple[str, str]:
    """Say in one line what came of a load."""
    if CONTROL not in arms(load):
        metrics = arm_metrics(load, SPECULATION, point)
        median, slow = (amount(statistic(metrics, "request_latency", stat), "ms") for stat in ("p50", "p99"))
        return f"latency @{point.key}", f"p50 {median}, p99 {slow}"
    if point.rate is None:
        return f"speed-up @{point.key}", _ratio_words(speedup(load, point))
    ratio = latency_ratios(load, point).get("request_latency")
    return f"latency @{point.key}", f"{_OF_CONTROL} {_ratio_words(ratio)}"


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Return a table with a line below its head; columns of numbers are flush right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    flush_right = set(right)

    def cells(line: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if column in flush_right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join((cells(header), "  ".join("-" * width for width in widths), *map(cells, rows)))


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts).translate(_ASCII)
