"""The section on losslessness, read as a parser reads it."""

from __future__ import annotations

import copy
import re

import pytest

from specdeploy.report.charts import counts
from specdeploy.report.html import render
from specdeploy.report.numbers import DASH
from specdeploy.smoke.report import CheckResult, SmokeReport
from tests.unit.report.documents import documents
from tests.unit.report.lossless import EVERY_KIND, EVERYTHING, comparison, difference, smoke_document
from tests.unit.report.test_report_html import EVIL, Page

PAGE = Page(render(documents(smoke=EVERYTHING)))


def test_every_difference_is_there_with_what_decides_it() -> None:
    """Kind, place, both tokens as text and id, margin, threshold, context and reason, and not by colour alone."""
    for words in ("Tie", "Divergence", "Unstable", "Not judged", "' дом' 1042", "' река' 88", "ended", "0.125", "0.25"):
        assert words in PAGE.text
    for entry in EVERY_KIND:
        assert entry["why"] in PAGE.text
    assert "greedy, 7 drafts, among 8 requests" in PAGE.text
    assert "'Санкт-Петербург'" in PAGE.text


def test_each_check_says_how_much_it_compared() -> None:
    """Answers, ties, unstable ones, bugs and rejected drafts, by check."""
    assert "lossless-greedy 18 1 1 2 62 18 answers of up to 32 tokens" in PAGE.text
    assert "lossless-sampled 18 0 0 0 62 400 sampled answers a prompt" in PAGE.text


def test_comparisons_have_p_values_power_and_counts() -> None:
    """What was found, what would have been, and the counts as a picture that can be announced."""
    assert "prose 1 200 + 200 0.045 0.2 0.4 0.21 9" in PAGE.text
    assert "prose 2 200 + 200 0.045 0.0002 0.0004 no distance 9" in PAGE.text
    assert "in 1 % of all samples at most" in PAGE.text
    assert "4: control 80, speculation 78; 8: control 50, speculation 55" in PAGE.text
    assert "others: control 10, speculation 8" in PAGE.text
    pictures = [svg for svg in PAGE.named("svg") if "lossless-counts" in svg.get("aria-labelledby", "")]
    assert len(pictures) == 2
    assert all(picture["role"] == "img" for picture in pictures)


def test_a_rejected_comparison_stands_out() -> None:
    """Its p-value is in the colour of failures."""
    failing = [cell for cell in PAGE.named("td") if cell.get("class") == "n fail"]

    assert len(failing) == 1


def test_without_differences_no_table_of_them_is_shown() -> None:
    """A lossless deployment has an overview and its samples."""
    page = Page(render({"smoke": smoke_document([], [comparison(1)], status="pass")}))

    assert "First differences" not in page.text
    assert "Sampled answers" in page.text


@pytest.mark.parametrize("smoke", [None, SmokeReport(checks=()).as_dict()])
def test_what_was_not_checked_is_said(smoke: dict | None) -> None:
    """No smoke test, or one without these checks, is not shown as lossless."""
    assert "Losslessness was not checked." in Page(render({"smoke": smoke})).text


def test_a_check_without_details_is_shown() -> None:
    """One that was skipped has compared nothing, which is not zero."""
    checks = (CheckResult(name="lossless-greedy", status="skip", duration_s=0.0, reason="no control"),)
    page = Page(render({"smoke": SmokeReport(checks=checks).as_dict()}))

    assert f"Skipped lossless-greedy {' '.join([DASH] * 5)} no control" in page.text


def test_no_text_of_a_model_becomes_markup() -> None:
    """Tokens, contexts and reasons come from models and prompts."""
    evil = difference("tie", **dict.fromkeys(("prompt", "why", "expected_token", "seen_token", "context"), EVIL))
    page = Page(render({"smoke": smoke_document([evil], [comparison(1, prompt=EVIL)])}))

    assert {name for name, _ in page.elements} & {"script", "img"} == set()


def test_a_comparison_of_two_tokens_has_two_pairs_of_bars() -> None:
    """Nothing is put together where there is room for all."""
    few = comparison(1, tokens=[4, -1], control=[150, 50], drafted=[140, 60])
    text = render({"smoke": smoke_document([], [few])})

    assert "4: control 150, speculation 140; ended: control 50, speculation 60" in text
    assert "others" not in Page(text).text


def test_a_count_of_zero_has_no_height() -> None:
    """And none is drawn below the axis."""
    drawn = counts("c", "t", ("token", "answers"), [("1", 0, 4), ("2", 4, 0)])
    heights = [float(value) for value in re.findall(r'height="([^"]+)"', drawn)]

    assert len(heights) == 4
    assert heights.count(0.0) == 2
    assert min(heights) >= 0.0


def test_the_document_is_left_as_it_is() -> None:
    """Rendering changes nothing of what it is given."""
    before = copy.deepcopy(EVERYTHING)
    render({"smoke": EVERYTHING})

    assert before == EVERYTHING
