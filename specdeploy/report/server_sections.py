"""The section about the server's own view of a load test: queues and compute of its models, drafts, gauges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdeploy.bench.records import LoadPoint
from specdeploy.report import parts
from specdeploy.report.markup import Markup, tag
from specdeploy.report.numbers import DASH, number, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TIMES = ("queue_ms", "compute_ms", "total_ms")


def server_section(load: Mapping[str, Any]) -> Markup:
    """Show what the server counted and measured."""
    entries = load.get("server")
    if not entries:
        return parts.section("Server", tag("p", "The server's own counters were not read.", class_="soft"))
    words = (
        "Triton's own counters over the measured blocks, one request's share of each. All of a request is in the front "
        "door's. A model that answers later (our decoder, the engines of the cpu profile) is counted only until it has "
        "taken the request over. Gauges are looked at now and then, and may miss what is short."
    )
    return parts.section("Server", tag("p", words, class_="soft"), _models(entries), _drafts(entries), _gauges(entries))


def _models(entries: list[Mapping[str, Any]]) -> Markup:
    rows = [
        parts.row(
            *_where(entry),
            tag("code", name),
            parts.number(plain(float(counts["requests"]))),
            parts.number(plain(float(counts["failures"]))),
            parts.number(number(counts["batch_size"], "requests")),
            *(parts.number(number(counts[key], "ms")) for key in _TIMES),
        )
        for entry in entries
        for name, counts in entry["models"].items()
    ]
    titles = ("Requests", "Failed", "Batch", "Queue ms", "Compute ms", "In all ms")
    head = ["Load", "Arm", "Model", *(parts.column(title, "n") for title in titles)]
    return parts.table("Requests of each model", (head,), rows)


def _drafts(entries: list[Mapping[str, Any]]) -> Markup | None:
    rows = [
        parts.row(*_where(entry), *map(parts.number, _amounts(entry["acceptance"])))
        for entry in entries
        if entry["acceptance"] and entry["acceptance"]["draft_tokens"]
    ]
    titles = ("Drafted", "Accepted", "Rate")
    head = ["Load", "Arm", *(parts.column(title, "n") for title in titles)]
    return parts.table("Drafts by the server's counters", (head,), rows) if rows else None


def _amounts(acceptance: Mapping[str, Any]) -> Iterator[str]:
    yield plain(float(acceptance["draft_tokens"]))
    yield plain(float(acceptance["accepted_tokens"]))
    rate = acceptance["acceptance_rate"]
    yield DASH if rate is None else f"{plain(rate * 100)} %"


def _gauges(entries: list[Mapping[str, Any]]) -> Markup | None:
    rows = [
        parts.row(
            *_where(entry),
            tag("code", name),
            *(parts.number(plain(float(told[key]))) for key in ("avg", "max", "readings")),
        )
        for entry in entries
        for name, told in entry["gauges"].items()
    ]
    head = ["Load", "Arm", "Metric", *(parts.column(title, "n") for title in ("Mean", "Most", "Readings"))]
    if not rows:
        return None
    return tag("details", tag("summary", f"{len(rows)} gauges"), parts.table("Gauges of the server", (head,), rows))


def _where(entry: Mapping[str, Any]) -> tuple[str, str]:
    point = LoadPoint(concurrency=entry["concurrency"], rate=entry["rate"])
    return str(point).capitalize(), str(entry["arm"])
