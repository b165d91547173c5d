"""The report in a real browser: both colour schemes, a narrow window, and a silent console."""

from __future__ import annotations

import contextlib
import html
import os
import re
import shutil
import signal
import struct
import subprocess
import zlib
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from specdeploy.bench.arrivals import Stage
from specdeploy.bench.prompts import OutputLength
from specdeploy.bench.schedule import LoadSettings
from specdeploy.report.html import render
from tests.unit.bench.simulated import Simulator
from tests.unit.report.documents import OBJECTIVES, OPEN_RULES, RULES, documents, measured, open_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
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
EXAMINED = ("--allow-file-access-from-files", "--virtual-time-budget=10000", "--dump-dom")
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

# Every text of a chart lies in its picture, touches no other, and stands out from the card behind it.
CHARTS = """<!doctype html><meta charset="utf-8"><title>charts</title>{frames}
<script>
const found = [];
const seen = {{charts: 0, texts: 0}};
const luminance = colour => {{
  const parts = colour.match(/[0-9.]+/g).slice(0, 3).map(part => part / 255);
  const [r, g, b] = parts.map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}};
const contrast = (one, other) => {{
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}};
const examine = (name, view) => {{
  view.document.querySelectorAll("details").forEach(details => {{ details.open = true; }});
  for (const picture of view.document.querySelectorAll("svg[role=img]")) {{
    const place = `${{name}} ${{picture.getAttribute("aria-labelledby").split(" ")[0]}}`;
    const frame = picture.getBoundingClientRect();
    const card = view.getComputedStyle(picture.closest("figure")).backgroundColor;
    const texts = [...picture.querySelectorAll("text")].map(text => [text, text.getBoundingClientRect()]);
    seen.charts += 1;
    seen.texts += texts.length;
    texts.forEach(([text, box], number) => {{
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
          || box.bottom > frame.bottom + 1) found.push(`${{place}}: clipped ${{text.textContent}}`);
      if (contrast(view.getComputedStyle(text).fill, card) < 4.5) found.push(`${{place}}: faint ${{text.textContent}}`);
      for (const [other, beside] of texts.slice(number + 1)) {{
        const across = Math.min(box.right, beside.right) - Math.max(box.left, beside.left);
        const down = Math.min(box.bottom, beside.bottom) - Math.max(box.top, beside.top);
        if (across > 0.5 && down > 3) found.push(`${{place}}: ${{text.textContent}} on ${{other.textContent}}`);
      }}
    }});
    for (const line of picture.querySelectorAll(".line, .whisker, .mark.control")) {{
      if (contrast(view.getComputedStyle(line).stroke, card) < 3) found.push(`${{place}}: faint line`);
    }}
  }}
}};
addEventListener("load", () => {{
  for (const frame of document.querySelectorAll("iframe")) {{
    const view = frame.contentWindow;
    view.document.fonts.ready.then(() => {{
      examine(frame.getAttribute("src"), view);
      document.body.dataset.result = `${{seen.charts}} charts, ${{seen.texts}} texts: ${{found.join("; ")}}`;
    }});
  }}
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


@pytest.mark.parametrize("build", [documents, open_documents])
@pytest.mark.parametrize("width", [400, 768])
def test_a_narrow_window_needs_no_sideways_scrolling(build: Callable[[], dict], width: int, tmp_path: Path) -> None:
    """At phone width nothing but the tables, which scroll on their own, is wider than the page; details opened."""
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(WRAPPER.format(width=width), encoding="utf-8")
    (tmp_path / "report.html").write_text(render(build()), encoding="utf-8")
    dom, log = chromium(tmp_path, wrapper, "--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom")

    assert console(log) == []
    assert f'data-result="{width} of {width}; wide: "' in dom


def crowded() -> dict:
    """An open loop at more rates than there is room for one after another."""
    rates = (1.0, 2.0, 4.0, 8.0, 12.5, 16.0, 20.0, 24.0, 32.0, 64.0, 128.0, 2500.0)
    return measured(LoadSettings(shape="poisson", rates=rates, requests=6, pairs=2), OPEN_RULES, OBJECTIVES)


def one_arm() -> dict:
    """A changing load with speculation alone."""
    stages = (Stage(start=2.0, end=8.0, duration_s=6.0),)
    settings = LoadSettings(shape="gamma", stages=stages, pairs=2, compare=False)
    return measured(settings, OPEN_RULES, OBJECTIVES)


def many_drafts() -> dict:
    """Sixteen drafts in each step, a server a hundred times as fast, and kinds of prompts with long names."""
    simulator = Simulator(drafts=16, step_s=0.0003, draft_s=0.00005, prefill_s=0.0008)
    built = measured(LoadSettings(concurrency=(1, 2, 4), output=OutputLength(max_tokens=256)), RULES, (), simulator)
    for arm in built["load"]["arms"]:
        arm["categories"] = {f"{name} of a kind with a long name": kind for name, kind in arm["categories"].items()}
    return built


PAGES = {
    "closed": documents,
    "open": open_documents,
    "crowded": crowded,
    "crowded-closed": lambda: measured(LoadSettings(concurrency=(1, 2, 4, 8, 16, 32, 64, 128), pairs=2), RULES),
    "one-arm": one_arm,
    "many-drafts": many_drafts,
}


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with the reports of load tests of every shape in it."""
    folder = tmp_path_factory.mktemp("gallery")
    for name, build in PAGES.items():
        (folder / f"{name}.html").write_text(render(build()), encoding="utf-8")
    return write_gallery(folder, PAGES)


def write_gallery(folder: Path, names: Iterable[str]) -> Path:
    """Write the page that examines the charts of these reports."""
    frames = "".join(f'<iframe src="{name}.html" style="width:1100px;height:800px"></iframe>' for name in names)
    page = folder / "gallery.html"
    page.write_text(CHARTS.format(frames=frames), encoding="utf-8")
    return page


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_no_text_of_a_chart_is_clipped_or_covered(gallery: Path, scheme: str) -> None:
    """For few loads and for many, for one arm and for both, in either scheme; and all of it can be read."""
    flag = f"--blink-settings=preferredColorScheme={SCHEMES[scheme][0]}"
    dom, log = chromium(gallery.parent, gallery, *EXAMINED, flag)
    counted, _, problems = examined(dom).partition(": ")
    charts, texts = (int(words.split()[0]) for words in counted.split(", "))

    assert console(log) == []
    assert problems == ""
    assert charts > 100
    assert texts > 1000


def test_a_chart_with_such_a_text_would_be_seen(tmp_path: Path) -> None:
    """The examination notices a text outside its picture, one on another, and one as pale as its card."""
    text = render(documents())
    for old, new in (
        (">share of requests<", ">share of all the requests that anybody has ever sent to this server<"),
        ("svg text { font-size: 11px;", "svg text { font-size: 22px;"),
        ("fill: var(--soft); font-family", "fill: var(--line); font-family"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "broken.html").write_text(text, encoding="utf-8")
    found = examined(chromium(tmp_path, write_gallery(tmp_path, ["broken"]), *EXAMINED)[0])

    assert "clipped share of all" in found
    assert "faint" in found
    assert "100% on " in found


def examined(dom: str) -> str:
    """What the examination found."""
    match = re.search(r'data-result="([^"]*)"', dom)
    assert match, dom[-2000:]
    return html.unescape(match[1])


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
