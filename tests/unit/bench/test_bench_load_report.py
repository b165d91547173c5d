"""The document of a load test."""

from __future__ import annotations

import dataclasses
import json

import pytest

from specdeploy.bench.load_report import build_load_report, compare_outputs
from specdeploy.bench.records import LoadRun
from specdeploy.bench.schedule import LoadSettings
from tests.unit.bench.simulated import CONTEXT, Simulator, failed, load_report, record

RUN, PLAN = Simulator().run(LoadSettings())


def report(*records, plan=PLAN, context=CONTEXT, **run):
    """The document of these records."""
    return build_load_report(LoadRun(records=records, **run), plan, context)


def codes(document: dict) -> list[str]:
    """Codes of its findings."""
    return [finding["code"] for finding in document["findings"]]


def test_a_full_run_is_plain_json_without_findings() -> None:
    """The document round-trips through strict JSON; a sound run has nothing to complain about."""
    document = load_report()

    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert (document["schema_version"], document["kind"]) == ("1.0", "load")
    assert (document["findings"], document["partial"], document["degraded"]) == ([], False, False)
    assert [(arm["arm"], arm["concurrency"]) for arm in document["arms"]] == [
        ("control", 1),
        ("speculation", 1),
        ("control", 2),
        ("speculation", 2),
    ]
    assert list(document["speedup"]) == ["1", "2"]
    assert len(document["blocks"]) == 2 * 2 * 5


def test_the_plan_is_kept_without_the_prompts_texts() -> None:
    """The document says what was run; the texts stay in the prompt set."""
    text = json.dumps(load_report()["plan"])

    assert '"order": "ABBA"' in text
    assert "Fibonacci" not in text


def test_a_stopped_run_is_partial_and_says_why() -> None:
    """Whatever was measured is summarised, and nobody takes it for the whole."""
    document = report(*RUN.records[:9], stop_reason="interrupted from the keyboard")

    assert (document["partial"], document["stop_reason"]) == (True, "interrupted from the keyboard")
    assert document["arms"]


def test_nothing_measured_is_still_a_document() -> None:
    """No records: no arms, no speed-up, no invented number."""
    document = report()

    assert (document["arms"], document["speedup"], document["limits"], document["degraded"]) == ([], {}, [], False)


def test_a_control_that_speculates_is_no_control() -> None:
    """If num_draft_tokens 0 is ignored there is no speed-up to report."""
    counts = {"num_spec_steps": 3, "draft_tokens": 12, "accepted_tokens": 3, "histogram": (0, 3, 0, 0, 0)}
    document = report(*(dataclasses.replace(item, **counts) for item in RUN.records))

    assert report(*RUN.records)["speedup"]
    assert "load.control-speculates" in codes(document)
    assert document["speedup"] == {}


def test_bypassed_requests_are_named() -> None:
    """A speculation arm that did not speculate is said to, with the reason."""
    document = report(record(bypass_reason="beam_width"), record(index=1))

    (finding,) = document["findings"]
    assert (finding["code"], "1 of 2" in finding["message"], "beam_width" in finding["message"]) == (
        "load.speculation-bypassed",
        True,
        True,
    )


@pytest.mark.parametrize(("sent_s", "degraded"), [(0.001, False), (0.1, True)])
def test_a_generator_that_is_late_degrades_the_run(sent_s: float, degraded: bool) -> None:
    """More than 2 % of the workers' time lost between intended and actual send is our fault, and is said."""
    document = report(record(sent_s=sent_s))

    assert (document["degraded"], "load.degraded" in codes(document)) == (degraded, degraded)


def test_greedy_answers_of_the_two_arms_are_compared() -> None:
    """Token for token; the first difference is named, a shorter answer differs where it ends, failures do not count."""
    same, other = record(arm="control"), record(arm="control", index=1, prompt_id="odd", output_ids=(5, 6, 9))
    shorter = record(arm="control", index=2, output_ids=(5, 6))
    answers = [record(), record(index=1, prompt_id="odd"), record(index=2), record(index=3), failed(index=4)]
    outputs = compare_outputs([same, other, shorter, *answers])

    assert (outputs["compared"], outputs["identical"]) == (3, 1)
    assert [(entry["prompt_id"], entry["position"]) for entry in outputs["differing"]] == [("odd", 2), ("prompt", 2)]
    assert "load.outputs-differ" in codes(report(same, other, *answers))


def test_sampled_answers_are_not_compared() -> None:
    """Two samples may differ without anything being wrong."""
    _, plan = Simulator().run(LoadSettings(temperature=1.0))

    assert report(record(), plan=plan)["outputs"] is None


def test_the_limit_of_the_speedup_follows_from_acceptance_and_the_cost_of_a_step() -> None:
    """Steps that take longer by four drafts: the cost is that of the lowest load, and the prediction near the truth."""
    limits = load_report(noise=0.0)["limits"]

    # 30 ms for the target, and 5 for each draft, of which the last step of an answer has fewer.
    cost = limits[0]["costs"]["step_cost"]
    assert cost == pytest.approx(1 + limits[0]["drafts_per_step"] / 6, rel=0.05)
    for limit in limits:
        assert (limit["ceiling"], limit["costs"]["measured_at"]) == (limit["tokens_per_step"], "1")
        assert limit["predicted_speedup"] == pytest.approx(limit["tokens_per_step"] / cost)
        assert limit["predicted_speedup"] == pytest.approx(limit["measured_speedup"], rel=0.15)


@pytest.mark.parametrize("without", [{"arm": "control"}, {"rate": 5.0, "concurrency": None}])
def test_without_a_step_of_the_control_nothing_is_predicted(without: dict) -> None:
    """The ceiling is known from acceptance alone; a cost takes both arms, in a closed loop."""
    records = [item for item in RUN.records if item.arm != without.get("arm")]
    changes = {key: value for key, value in without.items() if key != "arm"}
    limits = report(*(dataclasses.replace(item, **changes) for item in records))["limits"]

    assert [(limit["costs"], limit["predicted_speedup"]) for limit in limits] == [(None, None)]
    assert limits[0]["ceiling"] > 1


def test_a_control_that_drafts_is_compared_where_it_is_another_server() -> None:
    """By every ratio, acceptance too; what bounds the speed-up, and where it pays, is not known without drafts."""
    document = load_report(LoadSettings(concurrency=(1, 2), own_control=False), control_drafts=True)
    ratios = document["speedup"]["1"]

    assert ratios["pairs"] == 5
    assert ratios["spec_decode_acceptance_length_ratio"]["pairs"] == 5
    assert ratios["inter_token_latency_ratio"]["avg"] == pytest.approx(1, abs=0.1)
    assert (document["crossover"], document["limits"], codes(document)) == (None, [], [])


def test_a_control_that_was_asked_for_no_drafts_and_drafts_is_an_error() -> None:
    """Nothing is compared, and the acceptance of both arms least of all."""
    document = load_report(control_drafts=True)

    assert (document["speedup"], document["crossover"], document["limits"]) == ({}, None, [])
    assert codes(document) == ["load.control-speculates"] * 2


def test_a_control_without_drafts_has_no_acceptance_to_compare() -> None:
    """Absent, and not 1."""
    assert load_report()["speedup"]["1"]["spec_decode_acceptance_length_ratio"] is None


def test_builds_may_differ_on_purpose() -> None:
    """The hint is another one than for the two arms of one deployment."""
    pair = (record(arm="control"), record(output_ids=(1, 2)))
    plan = dataclasses.replace(PLAN, settings=LoadSettings(own_control=False))
    hints = [report(*pair, plan=one)["findings"][-1]["hint"] for one in (PLAN, plan)]

    assert "anything else is a bug" in hints[0]
    assert "may differ on purpose" in hints[1]
