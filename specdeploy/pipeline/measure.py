"""From a running deployment to a verdict: smoke, load, gate and report; each leaves its document behind."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.gate.rules import parse_rules
from specdeploy.gate.verdict import evaluate
from specdeploy.pipeline import gating, loading
from specdeploy.pipeline.gate_rules import check_rules, rules_of
from specdeploy.pipeline.loading import load
from specdeploy.pipeline.outputs import keep_verdict
from specdeploy.pipeline.record_files import reading_records
from specdeploy.pipeline.smoking import smoke
from specdeploy.pipeline.subject import deployment, read_document
from specdeploy.pipeline.workspace import workspace
from specdeploy.report.html import render
from specdeploy.system.clock import SystemClock
from specdeploy.system.files import explained, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from specdeploy.config.load import LoadedConfig

__all__ = ["deployment", "gate", "load", "preflight", "report", "smoke"]

# Rules whose evaluation reads every part of a load document that the gate trusts.
_READABLE: Final = ("error_rate <= 0", "speedup >= 1", "overall_spec_decode_acceptance_length >= 1")


def preflight(loaded: LoadedConfig) -> None:
    """Read everything that the measurements take from the user, and measure nothing.

    Raises:
        ConfigError: The load plan, the prompts, a gate rule or the baseline cannot be used.
    """
    loading.preflight(loaded)
    gating.preflight(loaded, check_rules(loaded))


def gate(loaded: LoadedConfig, rules: Iterable[str] = ()) -> dict[str, Any]:
    """Judge the last load test by the given rules, or by those of the configuration; return and keep ``gate.json``.

    Raises:
        ConfigError: a rule, the load document, or what else the rules ask for is malformed.

        CannotDecide: nothing was measured yet.

        NotKept: the verdict cannot be written.
    """
    place = workspace(loaded)
    given = tuple(rules)
    check_rules(loaded, given)
    load_document = _required(place.load_json, "specdeploy load")
    parsed = rules_of(loaded, load_document, given)
    verdict = gating.judged(loaded, parsed, load_document)
    document = verdict.to_dict(created=SystemClock().now_iso())
    keep_verdict(place.gate_json, document)
    return document


def report(loaded: LoadedConfig) -> Path:
    """Write the HTML report from whatever was measured so far, and return its path.

    Raises:
        CannotDecide: nothing was measured yet.

        ConfigError: a document is damaged, or the report cannot be written.
    """
    place = workspace(loaded)
    documents = {
        "load": read_document(place.load_json),
        "smoke": read_document(place.smoke_json),
        "gate": read_document(place.gate_json),
    }
    if not any(documents.values()):
        raise CannotDecide(
            f"nothing has been measured yet: {place.reports} holds no result",
            hint="run `specdeploy smoke` and `specdeploy load` first",
        )
    with contextlib.ExitStack() as stack:
        there = place.records_jsonl.is_file()
        told = documents["load"]
        records = stack.enter_context(reading_records(place.records_jsonl, told)) if there else None
        page = _rendered({"deployment": deployment(loaded), **documents, "records": records})
    with explained(place.report_html):
        write_atomic(place.report_html, page)
    return place.report_html


def _rendered(documents: Mapping[str, Any]) -> str:
    """Render the report; a document that was damaged or edited by hand is the user's to replace, not a bug of ours."""
    load_document = documents["load"]
    if load_document is not None:
        # The gate's reader refuses what cannot be trusted (NaN, other types); a report must not publish it either.
        evaluate(parse_rules(_READABLE), load_document)
    try:
        return render(documents)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"a result document is damaged: {type(error).__name__}: {error}",
            hint="measure again with `specdeploy smoke` and `specdeploy load`",
        ) from error


def _required(path: Path, command: str) -> dict[str, Any]:
    document = read_document(path)
    if document is None:
        raise CannotDecide(f"there is no {path}: nothing has been measured", hint=f"run `{command}` first")
    return document
