"""Scales, ticks and number formats."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.report.charts import Ratios, columns, cumulative, paired, rows, throughput
from specdeploy.report.curves import Value, against_load, cumulative_by_load
from specdeploy.report.markup import Markup, escape, tag
from specdeploy.report.numbers import amount, interval, number, plain, short
from specdeploy.report.svg import Scale, frame, padded, text_width, thinned, ticks
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


@given(VALUES)
def test_a_log_scale_places_equal_factors_equally(values: list[float]) -> None:
    """Its ticks are round numbers within it, however many decades it has."""
    scale = Scale(low=min(values) / 2, high=max(values) * 2, start=0.0, end=100.0, log=True)
    middle = (scale.low * scale.high) ** 0.5

    assert scale(middle) == pytest.approx(50.0)
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks())
    assert list(scale.ticks()) == sorted(set(scale.ticks()))


@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=30, unique=True))
def test_marks_of_loads_never_touch(loads: list[float]) -> None:
    """The highest load keeps its mark; others give way."""
    area = frame((0.0, max(loads)), (0.0, 1.0))
    marks = [(load, f"{load:g}") for load in sorted(loads)]
    kept = thinned(area, marks)
    ends = [(area.x(at) - text_width(text) / 2, area.x(at) + text_width(text) / 2) for at, text in kept]

    assert kept[-1] == marks[-1]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))


@given(st.dictionaries(st.floats(0.01, 1e4), st.floats(0, 1e6), min_size=1, max_size=12))
def test_values_against_load_are_drawn_for_any_loads(values: dict[float, float]) -> None:
    """One line, and one dot for each load."""
    points = [Value(load=load, value=value) for load, value in sorted(values.items())]
    drawn = against_load("name", "title", ("requests/s", "ms"), {"speculation": points})

    assert "nan" not in drawn
    assert (drawn.count("<circle"), drawn.count('class="line speculation"')) == (len(values), 1)


def test_an_interval_is_drawn_where_both_bounds_are_known() -> None:
    """Half an interval is none."""
    values = [Value(load=1, value=5, low=4, high=7), Value(load=2, value=6, low=5), Value(load=3, value=7)]

    assert against_load("name", "title", ("x", "y"), {"control": values}).count('class="whisker') == 1


def test_each_load_has_a_line_and_the_highest_is_the_strongest() -> None:
    """From pale to strong, in the order of load."""
    drawn = cumulative_by_load("name", "title", "ms", "control", [("1/s", [1.0]), ("2/s", [2.0]), ("3/s", [90.0])])
    shades = [float(part.split('"')[0]) for part in drawn.split('stroke-opacity="')[1:]]

    assert shades == sorted(shades)
    assert (len(shades), shades[-1]) == (3, 1.0)


def test_a_long_distribution_is_drawn_by_as_many_steps_as_can_be_seen() -> None:
    """A million requests do not make a page of a hundred megabytes; the slowest one is still in it."""
    few, many = ([float(value) for value in range(count)] for count in (100, 100_000))
    drawn = [cumulative("name", "title", "label", {"control": values}) for values in (few, many)]

    assert [text.count("V") for text in drawn] == [100, 400]
    assert all(text.split(' d="M')[1].split('"')[0].count("V14.0H") == 1 for text in drawn)


def test_amounts_that_would_touch_are_left_out() -> None:
    """Above few columns, not above thirty."""
    few, many = ([(str(i), 10.0, "100%") for i in range(count)] for count in (4, 30))

    assert columns("name", "title", ("x", "y"), few).count('class="value"') == 4
    assert columns("name", "title", ("x", "y"), many).count('class="value"') == 0


def test_marks_of_many_columns_are_even() -> None:
    """Every second one where each has no room."""
    drawn = columns("name", "title", ("x", "y"), [(str(i), 10.0, "") for i in range(17)])
    marks = re.findall(r'class="tick"[^>]*text-anchor="middle">(\d+)<', drawn)

    assert marks == [str(i) for i in range(0, 17, 2)]


def test_a_long_name_is_cut_and_said_in_full() -> None:
    """Where it is pointed at."""
    drawn = rows("name", "title", [("a" * 40, 0.5, "50%")])

    assert f"<title>{'a' * 40}</title>{'a' * 25}\N{HORIZONTAL ELLIPSIS}<" in drawn


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (2500, "2,500"), (12_500, "12.5k"), (250_000, "250k"), (2e7, "20M"), (0.25, "0.25")],
)
def test_numbers_beside_a_chart_are_short(value: float, expected: str) -> None:
    """The margin has room for six characters."""
    assert short(value) == expected


def test_an_arm_without_values_is_left_out() -> None:
    """One line when only one arm was measured."""
    assert cumulative("name", "title", "label", {"control": [1.0], "speculation": []}).count('d="M') == 1


def test_paired_ratios_show_every_pair_and_one_is_on_the_axis() -> None:
    """A dot for each pair, a band only where there is an interval."""
    groups = [
        Ratios(load="1", values=(1.4, 1.6), avg=1.5, low=1.3, high=1.7),
        Ratios(load="2", values=(2.0,), avg=2.0, low=None, high=None),
    ]
    drawn = paired("name", "title", ("concurrency", "ratio"), groups)

    assert (drawn.count("<circle"), drawn.count('class="interval"'), drawn.count('class="even"')) == (3, 1, 1)


def test_bars_start_at_zero_and_say_their_amount() -> None:
    """A bar twice as high stands for twice as much."""
    drawn = throughput(
        "name", "title", "concurrency", {"1": {"control": (20.0, []), "speculation": (40.0, [39.0, 41.0])}}
    )
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


def test_names_of_loads_on_the_timeline_do_not_touch() -> None:
    """Loads that begin one right after the other are all marked, and those with room are named."""
    sent = [record(concurrency=None, rate=float(n), sent_s=n * 0.1, ended_s=n * 0.1 + 5) for n in range(1, 30)]
    drawn = timeline(sent)

    assert drawn.count('class="even"') == 29
    assert 1 <= drawn.count("tick strong") < 10


def test_many_lanes_are_thin() -> None:
    """A thousand requests at once fit on a screen."""
    drawn = timeline([record(index=n, sent_s=n * 1e-3, ended_s=50.0) for n in range(1000)])
    height = float(drawn.split('viewBox="0 0 ')[1].split('"')[0].split()[1])

    assert height < 800


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
