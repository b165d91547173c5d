"""Looking again: how sure each look has to be, how much is measured before the next one, and whether that can help.

Who measures on until a test is significant finds a difference where there is none: looked at five times at 5 %, chance
alone does it in a seventh of all cases. So the looks share the rate of errors: the first may spend a half of it, the
next a quarter, and so on without an end (`share_of`), which adds up to no more than all of it, however the looks depend
on each other (Bonferroni; as a spending function of group-sequential tests, Lan and DeMets 1983). Each look has twice
the data of the one before, so the narrower error costs less than the data bring. How much is measured next depends on
what there is, on the rules and on the time, never on how a comparison stands.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError
from specdeploy.gate.claims import Count, more_needed
from specdeploy.gate.defaults import LEAST_PAIRS
from specdeploy.gate.requests import claimed_share, is_claim

if TYPE_CHECKING:
    from specdeploy.gate.outcome import RuleVerdict, Verdict

#: The last part is no smaller than this share of what there is.
LEAST_GROWTH: Final = 0.25
_SECONDS: Final = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_WRITTEN: Final = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|m|h)\s*", re.ASCII)


def parse_budget(text: str) -> float:
    """Read a time such as ``90s``, ``20min`` or ``1.5h``, and return it in seconds.

    Raises:
        ConfigError: It cannot be read, or is no time at all.
    """
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise ConfigError(f"cannot read --repeat-until {text!r}", hint="Write a time such as 90s, 20min or 1.5h.")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not seconds:
        raise ConfigError(f"--repeat-until is {text.strip()}: no time to measure in", hint="Write 20min, for example.")
    return seconds


def share_of(look: int) -> float:
    """Return which share of the rate of errors a look may spend; the first is 1."""
    return math.ldexp(1.0, -look)


def least_pairs(verdict: Verdict, pairs: int) -> int:
    """Return how many pairs the next look needs, so that it may decide: five, or what claims about percentiles take.

    A claim about a share needs so many requests even if none is over the limit, and with fewer a look is spent for
    nothing. How many were over does not count here.

    Args:
        verdict: Of this look.

        pairs: What it had at each load.
    """
    least, confidence = LEAST_PAIRS, 1 - (1 - verdict.confidence) / 2
    for one in verdict.rules:
        seen = one.numbers.get("fewest_requests", one.numbers.get("kept", 0) + one.numbers.get("over", 0))
        if seen and not one.rule.advisory and is_claim(one.rule):
            needed = more_needed(Count(kept=0, over=0), claimed_share(one.rule), confidence)
            least = max(least, math.ceil(pairs * (needed or 0) / seen))
    return least


def more_pairs(pairs: int, took_s: float, left_s: float, *, least: int = LEAST_PAIRS) -> int:
    """Return how many pairs to measure before the next look: as many as there are, or what the time allows.

    0 where that is so little that the next look, which has to be surer, would see less than this one.

    Args:
        pairs: What was measured at each load.

        took_s: Seconds that it took.

        left_s: Seconds that are left.

        least: So many pairs the next look needs.
    """
    fit = pairs if took_s <= 0 else math.floor(max(left_s, 0.0) / took_s * pairs)
    return min(max(pairs, least - pairs), fit) if fit >= max(LEAST_GROWTH * pairs, 1) else 0


def beyond_help(verdict: Verdict) -> tuple[RuleVerdict, ...]:
    """Return the rules that did not pass, and that measuring more of the same load does not decide."""
    deciding = (one for one in verdict.rules if not one.rule.advisory)
    return tuple(one for one in deciding if one.status not in {"pass", "fail"} and not one.more_decides)
