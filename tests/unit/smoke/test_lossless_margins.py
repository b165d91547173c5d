"""When two logits count as equal."""

from __future__ import annotations

import numpy as np
import pytest

from specdeploy.planning.precision import precision
from specdeploy.smoke.margins import TIE_MARGINS, TopTwo, is_tie, tie_margin, top_two


def best(margin: float) -> TopTwo:
    """Tokens 4 and 9, this far apart."""
    return TopTwo(ids=(4, 9), logits=(20.0, 20.0 - margin))


def test_every_precision_of_the_configuration_has_a_threshold() -> None:
    """One that is forgotten would silently be judged as bfloat16."""
    for name in TIE_MARGINS:
        assert precision(name).name == name
    with_error = [name for name in ("fp32", "fp16", "bf16", "int8", "int4", "fp8", "nvfp4") if name not in TIE_MARGINS]
    assert with_error == []


def test_coarser_numbers_have_wider_ties() -> None:
    """Two steps of float16 and of bfloat16 between 16 and 32; float32 is much finer."""
    assert tie_margin("fp16") == 2 * (np.nextafter(np.float16(16), np.float16(17)) - np.float16(16))
    assert tie_margin("fp32") < tie_margin("fp16") < tie_margin("bf16") < tie_margin("fp8")


def test_the_configuration_overrides_the_precision() -> None:
    """And a precision that is not known counts as bfloat16."""
    assert tie_margin("fp32", 0.5) == 0.5
    assert tie_margin("of tomorrow") == tie_margin("bf16")


def test_the_two_best_are_found_among_many() -> None:
    """In any shape and precision, of equal ones the lower id first."""
    assert top_two(np.array([[1.0, 7.5, 7.0, -3.0]], np.float16)) == TopTwo(ids=(1, 2), logits=(7.5, 7.0))
    assert top_two(np.array([2.0, 5.0, 5.0])) == TopTwo(ids=(1, 2), logits=(5.0, 5.0))


@pytest.mark.parametrize("row", [[], [1.0], [0.0, 0.0, 0.0], [np.nan, 1.0, 2.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_what_is_no_logits_is_none(row: list[float]) -> None:
    """Zeros, NaN and infinities come from engines that do not gather logits; nothing follows from them."""
    assert top_two(np.array(row)) is None


@pytest.mark.parametrize(
    ("tokens", "margin", "expected"),
    [
        ((4, 9), 0.0, True),
        ((9, 4), 0.0009, True),
        ((4, 9), 0.0011, False),
        ((4, 5), 0.0, False),
        ((9,), 0.0, True),
        ((5,), 0.0, False),
        ((), 0.0, False),
    ],
)
def test_a_tie_needs_both_tokens_and_a_small_margin(tokens: tuple[int, ...], margin: float, expected: bool) -> None:
    """A third token is no tie however near the two best are, and nothing is a tie of nothing."""
    assert is_tie(best(margin), tokens, 0.001) is expected
