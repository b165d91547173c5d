"""The timeline of a run: every request as a bar in the lane of whoever sent it, from its send to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.bench.table import table_of
from specdeploy.report.markup import Markup, join, tag
from specdeploy.report.numbers import plain
from specdeploy.report.svg import Scale, chart, text_width, ticks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdeploy.bench.records import LoadPoint, RequestRecord

WIDTH: Final = 1040.0
#: Height of a lane, and of all of them together where they are many.
_LANE: Final = 16.0
_TALLEST: Final = 720.0
_TOP: Final = 22.0
#: More bars than this are thinner than a hair; the first ones are drawn and the caption says so.
MOST: Final = 1500


def timeline(records: Iterable[RequestRecord]) -> Markup:
    """Draw the requests of a run, at least one, in the order in which they were sent; the warm-up is drawn pale."""
    drawn = list(table_of(records).ordered_by("sent_s")[:MOST])
    start_s, end_s = drawn[0].sent_s, max(record.ended_s for record in drawn)
    time = Scale(low=0.0, high=max(end_s - start_s, 1e-6), start=4.0, end=WIDTH - 4.0)
    lanes = _lanes(drawn)
    height = min(_LANE, _TALLEST / (max(lanes) + 1))
    bottom = _TOP + height * (max(lanes) + 1)
    bars = [
        _bar(record, time, start_s, (_TOP + height * lane, height)) for record, lane in zip(drawn, lanes, strict=True)
    ]
    failed = sum(not record.ok for record in drawn)
    return chart(
        "timeline",
        "Timeline of requests",
        f"{len(drawn)} requests in {plain(time.high)} s, {failed} failed",
        _axis(time, bottom),
        *_points(drawn, time, start_s),
        *bars,
        size=(WIDTH, bottom + 36),
    )


def _lanes(records: Sequence[RequestRecord]) -> list[int]:
    """Give each request the first lane that is free when it is sent."""
    free_s: list[float] = []
    lanes = []
    for record in records:
        lane = next((number for number, until_s in enumerate(free_s) if until_s <= record.sent_s), len(free_s))
        if lane == len(free_s):
            free_s.append(0.0)
        free_s[lane] = record.ended_s
        lanes.append(lane)
    return lanes


def _bar(record: RequestRecord, time: Scale, start_s: float, lane: tuple[float, float]) -> Markup:
    first_s = record.ended_s if record.first_s is None else record.first_s
    state = "failed" if not record.ok else record.arm
    pale = "" if record.counts else " pale"
    return tag(
        "g",
        tag("title", _words(record)),
        _span(time, record.sent_s - start_s, first_s - start_s, lane, f"wait {state}"),
        _span(time, first_s - start_s, record.ended_s - start_s, lane, f"bar {state}"),
        class_=f"request{pale}",
    )


def _span(time: Scale, begin_s: float, end_s: float, lane: tuple[float, float], kind: str) -> Markup:
    width = max(time(end_s) - time(begin_s), 0.0)
    top, height = lane
    return tag("rect", class_=kind, x=time(begin_s), width=width, y=top + height / 8, height=height * 0.75)


def _words(record: RequestRecord) -> str:
    outcome = f"{record.output_tokens} tokens" if record.ok else f"failed: {record.error}"
    pair = f"pair {record.pair}" if record.counts else "not counted"
    return f"{record.prompt_id}, {record.arm}, {pair}: {plain(record.ended_s - record.sent_s)} s, {outcome}"


def _points(records: Sequence[RequestRecord], time: Scale, start_s: float) -> list[Markup]:
    """Mark where each load begins, by its name where there is room."""
    begins: dict[LoadPoint, float] = {}
    for record in records:
        begins.setdefault(record.point, record.sent_s - start_s)
    texts, free = [], 0.0
    for point, begin_s in begins.items():
        x, end = time(begin_s), time(begin_s) + text_width(str(point)) + 8
        if x >= free and end <= WIDTH:
            texts.append(tag("text", str(point), class_="tick strong", x=x, y=_TOP - 8))
            free = end
    return [*(_begin(time(begin_s)) for begin_s in begins.values()), *texts]


def _begin(x: float) -> Markup:
    return tag("line", class_="even", x1=x, x2=x, y1=_TOP - 6, y2=_TOP)


def _axis(time: Scale, bottom: float) -> Markup:
    marks = ticks(time.low, time.high, about=8)
    grid = [tag("line", class_="grid", x1=time(mark), x2=time(mark), y1=_TOP, y2=bottom) for mark in marks]
    texts = [
        tag("text", plain(mark), class_="tick", x=time(mark), y=bottom + 14, text_anchor=_anchor(mark, time))
        for mark in marks
    ]
    label = tag(
        "text", "seconds since the first request", class_="axis", x=WIDTH / 2, y=bottom + 30, text_anchor="middle"
    )
    return join((*grid, *texts, label))


def _anchor(mark: float, time: Scale) -> str:
    """Keep the first and the last number inside the picture."""
    share = (mark - time.low) / (time.high - time.low)
    return "start" if share < 0.02 else "end" if share > 0.98 else "middle"
