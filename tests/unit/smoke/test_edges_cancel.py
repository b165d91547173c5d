"""Cancellation: a request that goes on is found, and what cannot be told is not said."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.smoke.deployment import DECODER, DECODER_INPUTS, EXPECT, FakeDeployment
from tests.unit.smoke.faults import Fault, ids_of, outcome, require_found, setting

if TYPE_CHECKING:
    from collections.abc import Iterator


def astray_afterwards(deployment: FakeDeployment) -> None:
    """Answer otherwise once a request has been cancelled."""
    deployment.change = lambda chunks, context: (
        [dataclasses.replace(chunk, ids=(1,)) for chunk in chunks] if deployment.target_requests else chunks
    )


def never_at_rest(deployment: FakeDeployment) -> None:
    """Go on and on after a cancelled request."""
    statistics = deployment._statistics

    def moving(model: str) -> dict[str, Any]:
        deployment.target_requests += bool(deployment.target_requests)
        return statistics(model)

    deployment._statistics = moving  # type: ignore[method-assign]


FAULTS: tuple[Fault, ...] = (
    ("cancellation", "goes on", setting(goes_on_when_cancelled=True), "decoded on to its end, in 3 of 3 tries"),
    ("cancellation", "never at rest", never_at_rest, "does not come to rest"),
    ("cancellation", "server astray afterwards", astray_afterwards, "before and after a cancelled request"),
)


@pytest.mark.parametrize("fault", FAULTS, ids=ids_of(FAULTS))
def test_a_broken_deployment_fails(fault: Fault) -> None:
    """The check notices the fault, and says what it saw."""
    require_found(fault)


def test_a_client_that_was_too_slow_once_tries_again() -> None:
    """An answer that was complete before it could be cancelled says nothing; the next one does."""
    deployment = FakeDeployment()
    deployment.goes_on_when_cancelled = True
    decode, asked = deployment._decode, []

    def recover(*arguments: Any) -> Iterator[Any]:
        deployment.goes_on_when_cancelled = not asked
        asked.append(arguments)
        return decode(*arguments)

    deployment._decode = recover  # type: ignore[method-assign, assignment]

    assert outcome("cancellation", deployment).status == "pass"
    assert len(asked) == 2


def test_without_a_decoder_to_ask_the_check_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ensemble does not pass a cancellation on, so without the model behind it nothing can be told."""
    monkeypatch.delitem(DECODER_INPUTS, "input_ids")

    result = outcome("cancellation", FakeDeployment())

    assert result.status == "skip"
    assert "takes token ids and answers text" in result.reason


def test_a_decoder_that_is_not_expected_is_not_asked() -> None:
    """The models of the deployment are those that it is said to have."""
    models = tuple(name for name in EXPECT.models if name != DECODER)

    assert outcome("cancellation", FakeDeployment(), expect=dataclasses.replace(EXPECT, models=models)).status == "skip"


def test_an_answer_that_ends_at_once_cannot_be_cancelled() -> None:
    """An engine for very short texts shows nothing."""
    expect = dataclasses.replace(EXPECT, max_seq_len=2)

    assert outcome("cancellation", FakeDeployment(), expect=expect).status == "skip"
