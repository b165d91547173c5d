"""Rules on losslessness: no divergence, ties within a budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.errors import ConfigError
from specdeploy.gate.rules import parse_rules
from specdeploy.gate.verdict import Evidence, evaluate
from tests.unit.bench.simulated import load_report

ENGINES = {"target": {"key": "a" * 64}, "draft": {"key": "b" * 64}}
DEPLOYMENT = {"profile": "cpu", "release": "1.2.1", "speculation": {"num_draft_tokens": 4}, "engines": ENGINES}
LOAD = {**load_report(), "deployment": {**DEPLOYMENT, "protocol": "grpc"}}


def check(name="lossless-greedy", status="pass", compared=20, **kinds) -> dict:
    """One check of the smoke test."""
    return {"name": name, "status": status, "details": {"compared": compared, "kinds": kinds}}


def smoke(*checks, **changes) -> dict:
    """The result of a smoke test."""
    return {
        "schema_version": "1.1",
        "kind": "smoke",
        "deployment": DEPLOYMENT,
        "checks": [{"name": "ready", "status": "pass"}, *checks],
        **changes,
    }


def judge(rule: str, result, outputs=None):
    """The verdict on a single rule."""
    load = {**LOAD, "outputs": outputs}
    return evaluate(parse_rules([rule]), load, Evidence(smoke=result)).rules[0]


NONE, FEW = "lossless.divergences <= 0", "lossless.ties <= 3"


@pytest.mark.parametrize(
    ("rule", "result", "status", "value"),
    [
        (NONE, smoke(check()), "pass", 0),
        (NONE, smoke(check(tie=9)), "pass", 0),
        (NONE, smoke(check(), check("lossless-batch", "fail", divergence=1)), "fail", 1),
        (NONE, smoke(check(status="fail", divergence=3, **{"not judged": 2})), "fail", 5),
        (NONE, smoke(check(), check("lossless-sampled", "fail", 2)), "fail", 1),
        (NONE, smoke(check(), check("lossless-sampled", "undecided", 2)), "undecided", 0),
        (NONE, smoke(check(), interrupted=True), "undecided", 0),
        (NONE, smoke(check(), server_lost="gone"), "undecided", 0),
        (NONE, smoke(check(status="fail", divergence=1), server_lost="gone"), "fail", 1),
        (NONE, smoke(check(status="skip", compared=0)), "not_measured", None),
        (NONE, smoke({"name": "lossless-greedy", "status": "pass", "details": {}}), "not_measured", None),
        (NONE, smoke({"name": "lossless-greedy", "status": "fail", "details": {}}), "fail", 1),
        (NONE, smoke(), "not_measured", None),
        (NONE, None, "not_measured", None),
        (FEW, smoke(check(tie=2, unstable=1)), "pass", 3),
        (FEW, smoke(check(tie=2), check("lossless-batch", unstable=2)), "fail", 4),
        (FEW, smoke(check(tie=2), check("lossless-sampled", "undecided")), "undecided", 2),
        (FEW, smoke(check(tie=2), check("lossless-sampled", "fail")), "undecided", 2),
        (FEW, smoke(check(tie=2), interrupted=True), "undecided", 2),
        (FEW, smoke(check(tie=2), server_lost="gone"), "undecided", 2),
        (FEW, smoke(check(tie=4), server_lost="gone"), "fail", 4),
        (FEW, None, "not_measured", None),
    ],
)
def test_what_the_smoke_test_judged_is_counted(rule, result, status, value) -> None:
    """Every check counts; one that failed otherwise counts as one; what was not compared never passes."""
    verdict = judge(rule, result)

    assert (verdict.status, verdict.value) == (status, value)


def test_what_differs_in_the_load_test_is_in_the_budget_of_ties() -> None:
    """Nobody judged it. The divergences are those that were judged, and the sentence tells of the others."""
    outputs = {"compared": 40, "identical": 36, "differing": []}
    ties, bugs = judge(FEW, smoke(check(tie=1)), outputs), judge(NONE, smoke(check()), outputs)

    assert (ties.status, ties.value) == ("fail", 5)
    assert bugs.status == "pass"
    assert "4 of 40 answers of the load test differ, unjudged" in bugs.reason
    assert judge("lossless.ties <= 4", None, outputs).status == "pass"
    assert judge(NONE, None, outputs).status == "not_measured"


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (
            {**DEPLOYMENT, "engines": {**ENGINES, "target": {"key": "c" * 64}}},
            "engine.target is 'cccccccccccccccc' there",
        ),
        ({**DEPLOYMENT, "engines": {"target": ENGINES["target"]}}, "engine.draft is '-' there"),
        ({**DEPLOYMENT, "profile": "llmapi"}, "profile is 'llmapi' there and 'cpu' here"),
        ({**DEPLOYMENT, "release": "1.0.0"}, "release is '1.0.0' there"),
        ({**DEPLOYMENT, "speculation": {"num_draft_tokens": 6}}, "speculation.num_draft_tokens is '6' there"),
        ({**DEPLOYMENT, "model": "another"}, "model is 'another' there"),
        ({**DEPLOYMENT, "engines": {}}, "smoke test does not tell which engines"),
        ({**DEPLOYMENT, "engines": {"target": {"key": ""}}}, "smoke test does not tell which engines"),
        (None, "smoke test does not tell which engines"),
    ],
)
@pytest.mark.parametrize("rule", [NONE, FEW])
def test_a_smoke_test_of_another_deployment_is_not_comparable(rule, there, said) -> None:
    """What answers is named where it differs; what one of them does not tell is not taken to be alike."""
    verdict = judge(rule, smoke(check(), deployment=there))

    assert verdict.status == "not_comparable"
    assert said in verdict.reason


def test_a_load_test_of_another_server_is_not_told_to_build_engines() -> None:
    """The smoke test was of the deployment."""
    load = {**LOAD, "deployment": {"name": "", "profile": "openai", "model": "m"}}
    verdict = evaluate(parse_rules([NONE]), load, Evidence(smoke=smoke(check()))).rules[0]

    assert verdict.status == "not_comparable"
    assert "profile is 'cpu' there and 'openai' here" in verdict.reason


def test_a_load_test_that_tells_no_engines_is_not_comparable() -> None:
    """Nobody knows whether its answers are those that were judged."""
    load = {**LOAD, "deployment": {**DEPLOYMENT, "engines": {}}}
    verdict = evaluate(parse_rules([NONE]), load, Evidence(smoke=smoke(check()))).rules[0]

    assert verdict.status == "not_comparable"
    assert "load test does not tell which engines" in verdict.reason


@pytest.mark.parametrize(
    "result",
    [
        smoke(kind="load"),
        smoke(schema_version="2.0"),
        smoke(schema_version=None),
        smoke(checks=None),
        smoke(checks=[7]),
        smoke(check(status="fine")),
        smoke(check(status=[])),
        smoke(check(status={})),
        smoke(check(status=True)),
        smoke(check(status="skip")),
        smoke(check(status="skip", compared=0, tie=1)),
        smoke(check(diverged=3)),
        smoke(check(compared=2, tie=3)),
        smoke(check(compared=10**400)),
        smoke(deployment=7),
        smoke(check(tie=-1)),
        smoke(check(tie=1.5)),
        smoke(check(tie=True)),
        smoke(check(compared=float("nan"))),
        smoke({"name": "lossless-greedy", "status": "pass", "details": 7}),
        smoke({"name": "lossless-greedy", "status": "pass", "details": {"kinds": [1]}}),
    ],
)
def test_a_result_that_cannot_be_trusted_is_an_error(result) -> None:
    """Other kinds and schemas, and counts that are none."""
    with pytest.raises(ConfigError):
        judge(NONE, result)


@pytest.mark.parametrize(
    "outputs",
    [
        7,
        {"compared": 1},
        {"compared": 1, "identical": 2},
        {"compared": 1, "identical": -1},
        {"compared": True, "identical": 1},
        {"compared": 10**400, "identical": 10**400},
    ],
)
def test_outputs_that_cannot_be_trusted_are_an_error(outputs) -> None:
    """More identical answers than were compared, or no counts."""
    with pytest.raises(ConfigError):
        judge(FEW, None, outputs)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)


@given(details=JSON, status=st.sampled_from(["fail", "skip"]))
def test_fuzzed_details_of_a_failed_check_never_pass(details, status) -> None:
    """An error, or no pass."""
    try:
        verdict = judge(NONE, smoke({"name": "lossless-greedy", "status": status, "details": details}))
    except ConfigError:
        return
    assert verdict.status != "pass" or verdict.numbers["judged"] > 0
