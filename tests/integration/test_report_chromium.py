"""The report in a real browser: both colour schemes, a narrow window, and a silent console."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import zlib
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from specdeploy.report.html import render
from tests.unit.report.documents import documents

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.chromium, pytest.mark.timeout(240)]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)
# blink::mojom::PreferredColorScheme
SCHEMES = {"dark": (0, (17, 20, 24)), "light": (1, (247, 247, 245))}
TIMEOUT_S = 60
# The report has no script. What a page measures here is measured by the page around it.
WRAPPER = """<!doctype html><meta charset="utf-8"><title>wrapper</title>
<iframe id="frame" src="report.html" style="width:{width}px;height:800px;border:0"></iframe>
<script>
document.getElementById("frame").addEventListener("load", event => {{
  const page = event.target.contentDocument;
  page.querySelectorAll("details").forEach(details => {{ details.open = true; }});
  const clipped = element => element.closest(".scroll") || element.closest("svg") || element.closest(".unseen");
  const wide = [...page.body.querySelectorAll("*")].filter(
    element => !clipped(element) && element.getBoundingClientRect().right > {width} + 1);
  const seen = page.documentElement.scrollWidth + " of " + page.documentElement.clientWidth;
  document.body.dataset.result = seen + "; wide: " + wide.map(element => element.outerHTML.slice(0, 80)).join(" | ");
}});
</script>"""


def chromium(folder: Path, page: Path, *flags: str) -> tuple[str, str]:
    """Open a page with a fresh profile and return what the browser wrote to standard output and to its log."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on PATH")
    profile = folder / "profile"
    argv = [browser, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True
    )
    try:
        out, log = process.communicate(timeout=TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)
    assert process.returncode == 0, log
    return out, log


def console(log: str) -> list[str]:
    """Lines that the page's console wrote."""
    return [line for line in log.splitlines() if "CONSOLE" in line]


def pixels(path: Path) -> tuple[int, int, list[bytes]]:
    """Decode a PNG as Chromium writes it: 8 bits a channel, RGB or RGBA, not interlaced; rows of pixels."""
    data, offset, packed, header = path.read_bytes(), 8, b"", b""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while offset < len(data):
        size, kind = struct.unpack(">I4s", data[offset : offset + 8])
        body = data[offset + 8 : offset + 8 + size]
        header, packed = (body, packed) if kind == b"IHDR" else (header, packed + body if kind == b"IDAT" else packed)
        offset += size + 12
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    assert (depth, interlaced) == (8, 0)
    return width, height, _rows(zlib.decompress(packed), width, {2: 3, 6: 4}[colour])


def _rows(raw: bytes, width: int, channels: int) -> list[bytes]:
    stride, rows, above = width * channels, [], bytearray(width * channels)
    for start in range(0, len(raw), stride + 1):
        row = bytearray(raw[start + 1 : start + 1 + stride])
        _unfilter(raw[start], row, above, channels)
        rows.append(b"".join(bytes(row[i : i + 3]) for i in range(0, stride, channels)))
        above = row
    return rows


def _unfilter(kind: int, row: bytearray, above: bytearray, channels: int) -> None:
    """Undo a row's filter in place (PNG specification, section 9)."""
    for i in range(len(row)) if kind else ():
        left, corner = (row[i - channels], above[i - channels]) if i >= channels else (0, 0)
        row[i] = (row[i] + _predicted(kind, left, above[i], corner)) & 255


def _predicted(kind: int, left: int, up: int, corner: int) -> int:
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    estimate = left + up - corner
    return min((left, up, corner), key=lambda value: abs(estimate - value))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a simulated run, as a file."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(documents()), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_the_report_is_drawn_in_both_schemes(report: Path, tmp_path: Path, scheme: str) -> None:
    """The page takes the reader's scheme: its background, text and charts in several colours, and no complaint."""
    number, background = SCHEMES[scheme]
    shot = tmp_path / "shot.png"
    _, log = chromium(
        tmp_path,
        report,
        f"--blink-settings=preferredColorScheme={number}",
        "--window-size=900,1100",
        f"--screenshot={shot}",
    )
    width, height, rows = pixels(shot)
    colours = Counter(row[i : i + 3] for row in rows[::3] for i in range(0, len(row), 9))

    assert console(log) == []
    assert (width, height) == (900, 1100)
    assert tuple(rows[2][:3]) == background
    assert len(colours) > 40
    assert colours[bytes(background)] / sum(colours.values()) < 0.9


def test_the_text_reaches_the_document(report: Path, tmp_path: Path) -> None:
    """What the browser understood has the headline, the tables and the charts."""
    dom, log = chromium(tmp_path, report, "--dump-dom")

    assert console(log) == []
    for words in ("smollm2", "95 % interval", "What bounds it", "Inter-token latency", "<svg", "Gate undecided"):
        assert words in dom


@pytest.mark.parametrize("width", [400, 768])
def test_a_narrow_window_needs_no_sideways_scrolling(report: Path, width: int) -> None:
    """At phone width nothing but the tables, which scroll on their own, is wider than the page; details opened."""
    wrapper = report.parent / f"wrapper-{width}.html"
    wrapper.write_text(WRAPPER.format(width=width), encoding="utf-8")
    dom, log = chromium(
        report.parent, wrapper, "--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom"
    )

    assert console(log) == []
    assert f'data-result="{width} of {width}; wide: "' in dom


def test_a_page_that_complains_would_be_heard(tmp_path: Path) -> None:
    """The silence of the other tests means something: what the policy refuses reaches the log."""
    page = tmp_path / "report.html"
    page.write_text(render(documents()).replace("</main>", "<script>1</script></main>"), encoding="utf-8")
    _, log = chromium(tmp_path, page, "--dump-dom")

    assert any("Content Security Policy" in line for line in console(log))


def test_a_page_that_overflows_would_be_seen(tmp_path: Path) -> None:
    """The measurement of width notices an element that is too wide."""
    page, wrapper = tmp_path / "report.html", tmp_path / "wrapper.html"
    page.write_text(render(documents()).replace("body {", "body { min-width: 700px;", 1), encoding="utf-8")
    wrapper.write_text(WRAPPER.format(width=400), encoding="utf-8")
    dom, _ = chromium(tmp_path, wrapper, "--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom")

    assert 'data-result="700 of 400' in dom
