"""How long answers are."""

from __future__ import annotations

import pytest

from specdeploy.bench.prompts import OutputLength, make_prompt
from specdeploy.errors import ConfigError
from specdeploy.triton.protocol import GenerateRequest


def prompt(most: int | None = None, least: int | None = None):
    """Return a prompt with lengths of its own."""
    return make_prompt("hello", id="a", category="b", max_tokens=most, min_tokens=least)


@pytest.mark.parametrize(
    ("length", "of_prompt", "sent"),
    [
        (OutputLength(max_tokens=64), (None, None), (64, {})),
        (OutputLength(max_tokens=64), (9, None), (9, {})),
        (OutputLength(max_tokens=64), (99, 7), (99, {"min_tokens": 7})),
        (OutputLength(max_tokens=64), (None, 7), (64, {"min_tokens": 7})),
        (OutputLength(max_tokens=64), (9, 9), (9, {"min_tokens": 9})),
        (OutputLength(max_tokens=64), (9, 0), (9, {})),
        (OutputLength(max_tokens=64, fixed=True), (None, None), (64, {"min_tokens": 64})),
        (OutputLength(max_tokens=64, fixed=True), (9, 2), (9, {"min_tokens": 9})),
    ],
)
def test_a_prompts_own_lengths_go_before_the_runs(length: OutputLength, of_prompt: tuple, sent: tuple) -> None:
    """An answer ends where the model ends it, or, if lengths are fixed, is as long as it may be."""
    assert length.apply(prompt(*of_prompt)) == sent


def test_what_is_returned_makes_a_request() -> None:
    """A front door takes it as it is."""
    most, extra = OutputLength(max_tokens=64, fixed=True).apply(prompt())

    body = GenerateRequest(prompt="hello", max_tokens=most, extra=extra).to_json()

    assert (body["max_tokens"], body["min_tokens"]) == (64, 64)


def test_a_prompt_that_wants_more_than_the_run_allows_is_refused() -> None:
    """Nothing is cut in silence."""
    with pytest.raises(ConfigError, match="prompt 'a' wants an answer of at least 70 tokens, the run allows 64"):
        OutputLength(max_tokens=64).apply(prompt(None, 70))


@pytest.mark.parametrize("value", [0, -1, True, float("nan"), 10**400, "64"])
def test_a_length_that_is_none_is_refused(value: object) -> None:
    """The message gives the value and its bounds."""
    with pytest.raises(ConfigError, match="max_tokens is"):
        OutputLength(max_tokens=value)
