"""The runner: checks are isolated, selectable and limited in time, and a server that is gone ends the run."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest

from specdeploy.errors import ConfigError
from specdeploy.smoke import CHECKS, CheckResult, SmokeReport, run_smoke
from specdeploy.smoke.runner import select
from specdeploy.triton.client import RequestFailed
from tests.unit.smoke.deployment import DRAFTS, EXPECT, FakeDeployment


def test_no_server_skips_everything() -> None:
    """Without a server nothing is checked: each check is skipped with the reason, and the exit code is 4."""
    deployment = FakeDeployment()
    deployment.dead = True

    report = run_smoke(deployment.client, EXPECT)

    assert {check.status for check in report.checks} == {"skip"}
    assert all("connection refused" in check.reason for check in report.checks)
    assert report.exit_code == 4


def test_a_server_that_dies_ends_the_run() -> None:
    """The check that kills the server fails; those after it are skipped; those before keep their outcome."""
    deployment = FakeDeployment()

    def die(rule: str) -> bool:
        deployment.dead = True
        return True

    deployment.silent = die

    report = run_smoke(deployment.client, EXPECT, sleep=lambda seconds: None)

    statuses = {check.name: check.status for check in report.checks}
    before, after = statuses.copy(), {}
    for name in [name for name in CHECKS if list(CHECKS).index(name) > list(CHECKS).index("refuses-wrong-type")]:
        after[name] = before.pop(name)
    assert before.pop("refuses-wrong-type") == "fail"
    assert set(before.values()) == {"pass"}
    assert set(after.values()) == {"skip"}
    assert report.exit_code == 4
    assert "connection refused" in report.server_lost


def test_a_stuck_server_fails_within_the_time_limit() -> None:
    """A server that is live but never answers fails every check that asks for text, and is not called lost."""
    deployment = FakeDeployment()
    deployment.accepts = {"type", "missing", "zero", "long", "model"}

    def stuck(*_: object, **__: object) -> list[object]:
        raise RequestFailed("timeout", "no answer")

    deployment.answer = stuck  # type: ignore[method-assign, assignment]

    report = run_smoke(
        deployment.client,
        dataclasses.replace(EXPECT, request_timeout_s=0.02),
        sleep=lambda seconds: None,
        skip=["refuses-unknown-input"],
    )

    statuses = {check.name: check.status for check in report.checks}
    assert {name for name, status in statuses.items() if status == "pass"} == {
        "server-ready",
        "models-ready",
        "metadata",
    }
    assert report.count("skip") == 0
    assert report.exit_code == 1


def test_a_check_has_a_time_limit_of_its_own() -> None:
    """A check whose calls are each in time but too many fails, and the time is named."""
    seconds = itertools.count()

    report = run_smoke(
        FakeDeployment().client,
        dataclasses.replace(EXPECT, check_timeout_s=5),
        only=["lossless-greedy"],
        monotonic=lambda: float(next(seconds)),
    )

    (result,) = report.checks
    assert result.status == "fail"
    assert "longer than 5 s" in result.reason


def test_a_crash_is_one_checks_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception nobody foresaw fails its check with the message, and the others run."""

    def crash(_probe: object) -> str:
        raise ZeroDivisionError("oops")

    monkeypatch.setitem(CHECKS, "models-ready", crash)  # type: ignore[arg-type]

    report = run_smoke(FakeDeployment().client, EXPECT, only=["server-ready", "models-ready", "metadata"])

    assert [(check.status) for check in report.checks] == ["pass", "fail", "pass"]
    assert report.checks[1].reason == "ZeroDivisionError: oops"
    assert report.exit_code == 1


def test_a_failed_request_is_told_with_its_label() -> None:
    """A check that ends with a failed request has the label in its details."""
    deployment = FakeDeployment()
    deployment.http_error_as_200 = True

    (result,) = run_smoke(deployment.client, EXPECT, only=["http-equals-grpc"]).checks

    assert result.details == {"label": "protocol"}


def test_outcomes_are_told_as_they_come() -> None:
    """The caller hears of each outcome once, in order."""
    told: list[CheckResult] = []

    report = run_smoke(FakeDeployment().client, EXPECT, only=["metadata", "server-ready"], on_check=told.append)

    assert tuple(told) == report.checks
    assert [check.name for check in told] == ["server-ready", "metadata"]


def test_selection() -> None:
    """Checks are chosen or left out by name, and keep their order."""
    assert select([], []) == tuple(CHECKS)
    assert select(["seeds", "control"], []) == ("control", "seeds")
    assert select([], ["seeds"]) == tuple(name for name in CHECKS if name != "seeds")
    assert select(["seeds"], ["seeds"]) == ()


@pytest.mark.parametrize(("only", "skip"), [(["sneeds"], []), ([], ["sneeds"])])
def test_a_name_that_is_none_is_an_error(only: list[str], skip: list[str]) -> None:
    """A misspelt check is not silently left out."""
    with pytest.raises(ConfigError, match="sneeds") as caught:
        select(only, skip)
    assert caught.value.hint == "Did you mean 'seeds'?"


def test_a_name_like_no_other_lists_the_checks() -> None:
    """Without a near name the hint lists them."""
    with pytest.raises(ConfigError) as caught:
        select(["qqq"], [])
    assert "lossless-greedy" in caught.value.hint


@pytest.mark.parametrize(
    ("statuses", "lost", "code"),
    [
        (["pass", "pass"], "", 0),
        (["pass", "skip"], "", 0),
        (["pass", "fail"], "", 1),
        (["pass", "fail", "skip"], "gone", 4),
        (["skip"], "", 3),
        ([], "", 3),
    ],
)
def test_exit_codes(statuses: list[str], lost: str, code: int) -> None:
    """A server that is lost is 4, a failure 1, and nothing checked at all is no pass but 3."""
    checks = tuple(
        CheckResult(name=str(index), status=status, duration_s=0.0)  # type: ignore[arg-type]
        for index, status in enumerate(statuses)
    )

    assert SmokeReport(checks=checks, server_lost=lost).exit_code == code


def test_the_document_is_plain_data() -> None:
    """The report can be written as JSON, with its version, its counts, and everything that was seen."""
    deployment = FakeDeployment()
    deployment.not_ready = {"tensorrt_llm"}
    report = run_smoke(deployment.client, EXPECT, only=["server-ready", "models-ready"])

    document = json.loads(json.dumps(report.as_dict()))

    assert (document["schema_version"], document["kind"], document["passed"]) == ("1.0", "smoke", False)
    assert document["counts"] == {"pass": 1, "fail": 1, "skip": 0}
    assert document["checks"][1]["details"] == {"not_ready": ["tensorrt_llm"]}


def test_where_the_number_of_drafts_is_fixed_nothing_is_compared_with_a_control() -> None:
    """What needs the target alone is skipped and says why; everything else runs."""
    deployment = FakeDeployment()
    expected = dataclasses.replace(EXPECT, draft_model=None, fixed_by="medusa")

    report = run_smoke(deployment.client, expected, sleep=lambda seconds: None)

    skipped = {check.name: check.reason for check in report.checks if check.status == "skip"}
    assert skipped.keys() == {"control", "lossless-greedy"}
    assert all("medusa drafts always as it was built to" in reason for reason in skipped.values())
    assert report.count("fail") == 0
    assert report.exit_code == 0


def test_no_more_is_asked_for_than_the_engine_was_built_for() -> None:
    """An engine for three drafts is not compared at seven."""
    deployment = FakeDeployment()

    report = run_smoke(
        deployment.client,
        dataclasses.replace(EXPECT, max_draft_tokens=DRAFTS),
        only=["lossless-greedy"],
        sleep=lambda seconds: None,
    )

    assert report.checks[0].status == "pass"
    assert report.checks[0].reason.endswith("drafts of 1, 3")
