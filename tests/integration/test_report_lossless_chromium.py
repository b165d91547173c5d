"""The section on losslessness in a real browser: both colour schemes, a narrow window, and a silent console."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from specdeploy.report.html import render
from tests.integration.test_report_chromium import SCHEMES, WRAPPER, chromium, console, pixels
from tests.unit.report.lossless import EVERYTHING

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.chromium, pytest.mark.timeout(240)]
#: The colour of a failure in each scheme.
FAIL = {"dark": (255, 138, 128), "light": (179, 38, 30)}


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report with every kind of difference, what stands in front of them taken away."""
    path = tmp_path / "report.html"
    text = render({"smoke": EVERYTHING})
    begin, end = text.index("<header>"), text.index('<section aria-labelledby="losslessness"')
    path.write_text(f"{text[:begin]}<main>{text[end:]}", encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_differences_are_drawn_in_both_schemes(report: Path, tmp_path: Path, scheme: str) -> None:
    """On the reader's background, a divergence in that scheme's colour of failures, and no complaint."""
    number, background = SCHEMES[scheme]
    shot = tmp_path / "shot.png"
    flags = (f"--blink-settings=preferredColorScheme={number}", "--window-size=620,640", f"--screenshot={shot}")
    _, log = chromium(tmp_path, report, *flags)
    _, _, rows = pixels(shot)
    colours = Counter(row[i : i + 3] for row in rows for i in range(0, len(row), 3))

    assert console(log) == []
    assert tuple(rows[2][:3]) == background
    assert colours[bytes(FAIL[scheme])] > 0


@pytest.mark.parametrize("width", [400, 768])
def test_its_tables_scroll_on_their_own(report: Path, tmp_path: Path, width: int) -> None:
    """At phone width nothing but the tables is wider than the page."""
    wrapper = tmp_path / f"wrapper-{width}.html"
    wrapper.write_text(WRAPPER.format(width=width), encoding="utf-8")
    flags = ("--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom")
    dom, log = chromium(tmp_path, wrapper, *flags)

    assert console(log) == []
    assert f'data-result="{width} of {width}; wide: "' in dom
