"""The section on losslessness: what was compared, where answers differ and why, and what sampling shows.

Reads the details of the smoke test's checks whose names begin with ``lossless-``; a part that is absent is said to be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.report import charts, parts
from specdeploy.report.markup import Markup, join, tag
from specdeploy.report.numbers import DASH, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PREFIX: Final = "lossless-"
_TITLE: Final = "Losslessness"
_ABOUT: Final = (
    "Speculation must not change the result. Greedy answers with drafts are compared with those of the target alone, "
    "token by token; sampled ones by how often each token comes. A tie is a place where the target finds two tokens as "
    "good as each other: either is right, and which one wins depends on rounding. A divergence is a bug. Where the "
    "target alone does not repeat itself, a difference is called unstable."
)
#: Kind of a difference -> its class, by the colours of a status.
_KINDS: Final = {"tie": "open", "unstable": "open", "divergence": "fail", "not judged": "fail"}
#: Tokens that a chart has room for; the others are drawn together.
_MOST_COLUMNS: Final = 7
_ENDED: Final = -1


def losslessness_section(smoke: Mapping[str, Any] | None) -> Markup:
    """Show what the smoke test says of losslessness."""
    checks = [check for check in (smoke or {}).get("checks", ()) if check["name"].startswith(_PREFIX)]
    if not checks:
        return parts.section(_TITLE, tag("p", "Losslessness was not checked.", class_="soft"))
    differences = [(check["name"], entry) for check in checks for entry in _details(check).get("differences", ())]
    sampled = [details for check in checks if (details := _details(check).get("sampled"))]
    return parts.section(
        _TITLE,
        tag("p", _ABOUT),
        _overview(checks),
        _differences(differences),
        _compared(checks),
        *(_sampled(details) for details in sampled if details.get("tests")),
    )


def _details(check: Mapping[str, Any]) -> Mapping[str, Any]:
    details = check.get("details")
    return details if isinstance(details, dict) else {}


def _overview(checks: Iterable[Mapping[str, Any]]) -> Markup:
    """Show each check with what it compared."""
    header = [
        "Result",
        "Check",
        *(
            parts.column(title, "n")
            for title in ("Answers", "Ties", "Unstable", "Divergences", "Different drafts rejected")
        ),
        "What was seen",
    ]
    return parts.table("Checks of losslessness", (header,), [_overview_row(check) for check in checks], class_="stack")


def _overview_row(check: Mapping[str, Any]) -> Markup:
    details = _details(check)
    kinds = details.get("kinds", {})
    compared = "compared" in details
    bugs = kinds.get("divergence", 0) + kinds.get("not judged", 0)
    counts = (details.get("compared", 0), kinds.get("tie", 0), kinds.get("unstable", 0), bugs)
    return tag(
        "tr",
        parts.status_cell(check["status"]),
        tag("td", tag("code", check["name"])),
        *(parts.number(plain(count) if compared else DASH) for count in counts),
        parts.number(_rejected(details)),
        tag("td", check.get("reason", "")),
    )


def _rejected(details: Mapping[str, Any]) -> str:
    count = details.get("different_rejected_drafts", details.get("rejected_drafts"))
    return DASH if count is None else plain(count)


def _compared(checks: Iterable[Mapping[str, Any]]) -> Markup | None:
    """Show which prompts were compared with which numbers of drafts: what is not here was left out."""
    rows = [
        parts.row(tag("code", check["name"]), prompt, ", ".join(lengths), parts.number(", ".join(rejected)))
        for check in checks
        for prompt, (lengths, rejected) in _by_prompt(_details(check).get("cases", ())).items()
    ]
    if not rows:
        return None
    header = ["Check", "Prompt", "Drafts a round", parts.column("Drafts rejected, of each answer", "n")]
    table = parts.table("What was compared", (header,), rows)
    return join((tag("h3", "What was compared"), table))


def _by_prompt(cases: Iterable[Mapping[str, Any]]) -> dict[str, tuple[list[str], list[str]]]:
    """Return draft lengths and numbers of rejected drafts of each prompt, in the order in which they were asked."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for case in cases:
        lengths, rejected = found.setdefault(case["prompt"], ([], []))
        drafts = case.get("num_draft_tokens")
        lengths.append("as deployed" if drafts is None else plain(drafts))
        rejected.append(plain(case["rejected_drafts"]))
    return found


def _differences(entries: Sequence[tuple[str, Mapping[str, Any]]]) -> Markup | None:
    """Show every first difference."""
    if not entries:
        return None
    header = [
        "Kind",
        "Prompt",
        "Asked",
        parts.column("Token", "n"),
        "Target alone",
        "With drafts",
        parts.column("Margin", "n"),
        parts.column("Tie below", "n"),
        "After",
        "Why",
    ]
    table = parts.table("First differences", (header,), [_difference_row(*entry) for entry in entries])
    return join((tag("h3", "First differences"), table))


def _difference_row(check: str, entry: Mapping[str, Any]) -> Markup:
    kind = entry["kind"]
    drafts = entry.get("num_draft_tokens")
    asked = check.removeprefix(_PREFIX) + ("" if drafts is None else f", {drafts} drafts") + f", {entry['company']}"
    margin, threshold = entry.get("margin"), entry.get("threshold")
    return tag(
        "tr",
        tag("td", kind.capitalize(), class_=f"status {_KINDS.get(kind, 'none')}"),
        tag("td", entry["prompt"]),
        tag("td", asked),
        parts.number(str(entry["position"])),
        tag("td", _token(entry.get("expected_id"), entry.get("expected_token", ""))),
        tag("td", _token(entry.get("seen_id"), entry.get("seen_token", ""))),
        parts.number(DASH if margin is None else f"{margin:.3g}"),
        parts.number(f"{threshold:.3g}" if threshold else DASH),
        tag("td", tag("code", repr(entry.get("context", "")))),
        tag("td", entry.get("why", "")),
    )


def _token(token: int | None, text: str) -> Markup:
    if token is None:
        return tag("span", "ended", class_="soft")
    return join((tag("code", repr(text)), f" {token}")) if text else tag("code", str(token))


def _sampled(sampled: Mapping[str, Any]) -> Markup:
    """Show the comparisons of distributions."""
    header = [
        "Prompt",
        *(
            parts.column(title, "n")
            for title in ("Token", "Answers", "Distance", "p", "p, Holm", "Would have shown", "Different tokens")
        ),
    ]
    tests = sampled["tests"]
    words = (
        f"Each prompt was answered many times with and without drafts (temperature {plain(sampled['temperature'])}, "
        f"top_k {plain(sampled['top_k'])}). A permutation test compares how often each token comes; with Holm's rule "
        f"all comparisons together fail a lossless deployment in {plain(sampled['alpha'] * 100)} % of all samples at "
        'most. The distance is total variation, which chance alone makes positive; "would have shown" is the smallest '
        "one that is found four times of five."
    )
    figures = [_counts_figure(number, test) for number, test in enumerate(tests, start=1)]
    return join(
        (
            tag("h3", "Sampled answers"),
            tag("p", words),
            parts.table("Comparisons of next-token counts", (header,), [_test_row(test, sampled) for test in tests]),
            parts.legend(),
            parts.grid(*figures),
        )
    )


def _test_row(test: Mapping[str, Any], sampled: Mapping[str, Any]) -> Markup:
    detectable, adjusted = test.get("detectable_distance"), test["adjusted_p_value"]
    rejected = adjusted <= sampled["alpha"]
    return parts.row(
        test["prompt"],
        parts.number(str(test["position"])),
        parts.number(" + ".join(plain(size) for size in test["samples"])),
        parts.number(f"{test['distance']:.3f}"),
        parts.number(f"{test['p_value']:.2g}"),
        parts.number(f"{adjusted:.2g}", "n fail" if rejected else "n"),
        parts.number("no distance" if detectable is None else f"{detectable:.2f}"),
        parts.number(plain(len(test["tokens"]))),
    )


def _counts_figure(number: int, test: Mapping[str, Any]) -> Markup:
    title = f"Prompt {test['prompt']}, token {test['position']}"
    picture = charts.counts(f"lossless-counts-{number}", title, ("token id", "answers"), _columns(test))
    return parts.figure(title, "how often each token came, without and with drafts", picture)


def _columns(test: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return name and both counts of the most frequent tokens, and of all others together."""
    rows = list(zip(map(_name, test["tokens"]), test["control"], test["drafted"], strict=True))
    if len(rows) <= _MOST_COLUMNS:
        return rows
    shown, others = rows[: _MOST_COLUMNS - 1], rows[_MOST_COLUMNS - 1 :]
    return [*shown, ("others", sum(row[1] for row in others), sum(row[2] for row in others))]


def _name(token: int) -> str:
    return "ended" if token == _ENDED else str(token)
