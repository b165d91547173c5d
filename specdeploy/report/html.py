"""The HTML report: one file that needs nothing else, no script, no font, no network, today or in ten years.

Knows the order of the page. Its content security policy forbids everything but its own style sheet, so that a report
with text from a model, a prompt or a log in it stays inert.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from specdeploy.report import (
    acceptance_sections,
    latency_sections,
    load_sections,
    lossless_sections,
    parts,
    promise_sections,
    sections,
    server_sections,
)
from specdeploy.report.markup import Markup, join, tag
from specdeploy.report.model import Bundle, read_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_VERDICTS: Final = {
    "pass": "Gate passed",
    "fail": "Gate failed",
    "undecided": "Gate undecided",
    "not_measured": "Gate undecided: not measured",
    "not_comparable": "Gate undecided: not comparable",
}


def render(documents: Mapping[str, Any]) -> str:
    """Return the report as one HTML document.

    Args: documents: ``load``, ``smoke`` and ``gate`` as they were written, ``records`` as the text of the records
        file, and ``deployment``; each may be None or absent, and the report then says so.

    Raises:
        ConfigError: A document is of another kind or schema.
    """
    bundle = read_bundle(documents)
    name = str(bundle.deployment.get("name", "unnamed deployment"))
    body = tag("body", _header(bundle, name), tag("main", *_content(bundle)), _footer())
    return f"<!doctype html>\n{tag('html', _head(name), body, lang='en')}\n"


def _head(name: str) -> Markup:
    style = resources.files("specdeploy.report").joinpath("report.css").read_text(encoding="utf-8")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{name}: specdeploy report"),
        tag("style", Markup(style)),
    )


def _header(bundle: Bundle, name: str) -> Markup:
    badges = tag("div", *(_badge(*verdict) for verdict in _verdicts(bundle)), class_="badges", role="status")
    words = tag("div", tag("div", "specdeploy report", class_="kicker"), tag("h1", name), _subtitle(bundle))
    warned = sections.warnings(bundle)
    return tag("header", tag("div", words, badges, class_="top"), sections.headline(bundle), warned)


def _verdicts(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yield statuses and words: the gate's, and what the gate knows nothing of and does not pass.

    These are a load generator that did not keep up, and a smoke test that did not pass.
    """
    if bundle.load and bundle.load["degraded"]:
        yield "undecided", "Degraded run"
    status = bundle.gate["status"] if bundle.gate else ""
    yield status, _VERDICTS.get(status, "Not judged")
    smoke = bundle.smoke or {}
    counts = smoke.get("counts", {})
    if counts.get("fail") or smoke.get("server_lost"):
        yield "fail", "Smoke test failed"
    elif counts.get("undecided"):
        yield "undecided", "Smoke test undecided"


def _badge(status: str, words: str) -> Markup:
    _, colour = parts.status(status)
    return tag("div", words, class_=f"verdict {colour}")


def _subtitle(bundle: Bundle) -> Markup:
    created = next((str(doc["created"]) for doc in (bundle.load, bundle.smoke) if doc and "created" in doc), None)
    facts = [str(bundle.deployment[key]) for key in ("profile",) if key in bundle.deployment]
    words = [f"profile {fact}" for fact in facts] + ([f"measured {created}"] if created else [])
    return tag("div", ", ".join(words), class_="soft")


def _content(bundle: Bundle) -> list[Markup]:
    load = bundle.load
    measured = (
        [
            load_sections.speedup_section(bundle, load),
            latency_sections.latency_section(bundle, load),
            latency_sections.percentiles_section(bundle, load),
            promise_sections.goodput_section(bundle, load),
            acceptance_sections.acceptance_section(bundle, load),
            server_sections.server_section(load),
            promise_sections.generator_section(bundle, load),
            load_sections.timeline_section(bundle),
            load_sections.numbers_section(bundle, load),
            sections.missing_section(load),
        ]
        if load
        else []
    )
    return [
        sections.gate_section(bundle.gate),
        *measured,
        sections.smoke_section(bundle.smoke),
        lossless_sections.losslessness_section(bundle.smoke),
        sections.circumstances(bundle),
        sections.definitions(),
    ]


def _footer() -> Markup:
    return tag("footer", tag("p", join(("Made by specdeploy. This page loads nothing and runs no script.",))))
