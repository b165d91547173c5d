"""Scales, ticks and number formats."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.report.charts import Ratios, columns, cumulative, paired, throughput
from specdeploy.report.markup import Markup, escape, tag
from specdeploy.report.numbers import amount, interval, number, plain
from specdeploy.report.svg import Scale, padded, ticks
from specdeploy.report.timeline import MOST, timeline
from tests.unit.bench.simulated import failed, record

VALUES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_a_few_round_numbers_within_the_range(low: float, width: float) -> None:
    """Two to ten, rising evenly, none outside."""
    marks = ticks(low, low + width)
    steps = {round((b - a) / (marks[1] - marks[0]), 3) for a, b in itertools.pairwise(marks)}

    assert 1 <= len(marks) <= 10
    assert list(marks) == sorted(set(marks))
    assert all(low - width * 1e-6 <= mark <= low + width * (1 + 1e-6) for mark in marks)
    assert steps <= {1.0}


def test_ticks_known_answer() -> None:
    """Twos, fives and tens."""
    assert ticks(0, 100) == (0.0, 25.0, 50.0, 75.0, 100.0)
    assert ticks(0.93, 1.87) == (1.0, 1.25, 1.5, 1.75)


@given(st.floats(-1e9, 1e9))
def test_a_single_value_has_a_range(value: float) -> None:
    """No scale ever divides by zero."""
    low, high = padded(value, value)

    assert low < value < high
    assert Scale(low=low, high=high, start=0.0, end=10.0)(value) == pytest.approx(5.0)


@given(VALUES, VALUES)
def test_a_distribution_ends_at_the_top(control: list[float], speculation: list[float]) -> None:
    """Any values make a chart whose lines rise from 0 to 100 % of the requests."""
    drawn = cumulative("name", "title", "label", {"control": control, "speculation": speculation})

    assert "nan" not in drawn
    assert drawn.count('d="M') == 2


def test_an_arm_without_values_is_left_out() -> None:
    """One line when only one arm was measured."""
    assert cumulative("name", "title", "label", {"control": [1.0], "speculation": []}).count('d="M') == 1


def test_paired_ratios_show_every_pair_and_one_is_on_the_axis() -> None:
    """A dot for each pair, a band only where there is an interval."""
    groups = [
        Ratios(concurrency=1, values=(1.4, 1.6), avg=1.5, low=1.3, high=1.7),
        Ratios(concurrency=2, values=(2.0,), avg=2.0, low=None, high=None),
    ]
    drawn = paired("name", groups)

    assert (drawn.count("<circle"), drawn.count('class="interval"'), drawn.count('class="even"')) == (3, 1, 1)


def test_bars_start_at_zero_and_say_their_amount() -> None:
    """A bar twice as high stands for twice as much."""
    drawn = throughput("name", {1: {"control": (20.0, []), "speculation": (40.0, [39.0, 41.0])}})
    heights = [float(part.split('"')[0]) for part in drawn.split('height="')[1:]]

    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)
    assert drawn.count("<circle") == 2


def test_columns_of_nothing_are_drawn() -> None:
    """All zero is a chart without height, not a division by zero."""
    assert "nan" not in columns("name", "title", ("x", "y"), [("0", 0.0, "0%")])


def test_the_timeline_gives_overlapping_requests_lanes_of_their_own() -> None:
    """Two at once need two lanes; the third fits into the first; a failure and a warm-up are drawn as such."""
    drawn = timeline(
        [
            record(sent_s=0.0, ended_s=1.0),
            record(sent_s=0.5, ended_s=2.0),
            failed(sent_s=1.0, ended_s=3.0),
            record(pair=-1, sent_s=3.0, ended_s=3.5),
        ]
    )
    rows = {part.split('"')[0] for part in drawn.split('<rect class="wait')[1:] for part in [part.split(' y="')[1]]}

    assert len(rows) == 2
    assert (drawn.count("bar failed"), drawn.count("request pale")) == (1, 1)


def test_a_long_timeline_is_cut() -> None:
    """More bars than pixels help nobody."""
    many = [record(sent_s=float(i), first_s=i + 0.2, ended_s=i + 0.5) for i in range(MOST + 50)]

    assert timeline(many).count('class="request') == MOST


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (3, "3"),
        (1234567, "1,234,567"),
        (1234.56, "1,235"),
        (123.4, "123"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.01234, "0.0123"),
        (0.00001234, "1.23e-05"),
        (2.5e9, "2.50e+09"),
    ],
)
def test_numbers_have_about_three_digits(value: float, expected: str) -> None:
    """Enough to compare, not more than is known."""
    assert plain(value) == expected


def test_amounts_carry_their_unit() -> None:
    """Shares become percentages, rates are written as people write them, absence is words."""
    assert amount(0.723, "ratio") == "72.3 %"
    assert amount(31.25, "tokens/sec") == "31.2 tokens/s"
    assert amount(1.5, "x") == "1.50\N{MULTIPLICATION SIGN}"
    assert amount(None, "ms") == "not measured"
    assert number(None, "ms") == "\N{EN DASH}"
    assert "no interval from 1 pair" in interval(None, None, 1)


def test_markup_escapes_what_is_not_markup() -> None:
    """Text and attribute values are escaped once, markup not at all, None is left out."""
    assert tag("p", "a<b", tag("i", "&"), None, title='"', class_=None) == '<p title="&quot;">a&lt;b<i>&amp;</i></p>'
    assert escape(Markup("<b>")) == "<b>"
    assert tag("rect", x=1.0, y=2.345, stroke_width=0.5) == '<rect x="1" y="2.35" stroke-width="0.5"></rect>'
