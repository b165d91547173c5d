"""What speculation did for one request, as far as the LLM API says it. Absent is not zero.

Three places say it, and each release fills other ones. From the best down:

* ``spec_dec_totals`` with ``per_pos_drafted`` and ``per_pos_accepted`` on the result: everything, exactly. Entry ``k``
  of the two is the number of steps that drafted, or accepted, more than ``k`` tokens.
* ``request_perf_metrics.speculative_decoding`` on the last completion: accepted and drafted tokens. The PyTorch engine
  left zeros there until the middle of 2026 (NVIDIA/TensorRT-LLM pull request 17082), drafted or not.
* ``decoding_iter`` on the result: an iteration yields one token of the target and the accepted drafts, so what is
  beyond one token per iteration was accepted. How many were drafted stays unknown.

All but the last count what was verified, even where the end token or the length then cut the answer.

Knows the names of the LLM API's attributes and which may be missing; knows nothing of tokens and text.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from decoder_stats import Statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

# The LLM API's own classes; which attributes they have depends on the release.
RequestOutput: TypeAlias = Any

NOTHING_KNOWN: Final = Statistics(steps=None, drafted=None, accepted=None, histogram=None)
NO_SPECULATION: Final = Statistics(steps=0, drafted=0, accepted=0, histogram=(0,))


def read_acceptance(result: RequestOutput, *, tokens: int, longest_draft: int) -> Statistics:
    """Read the counts of a speculating request.

    Args:
        result: The ``RequestOutput``.
        tokens: Ids of the answer so far, an end token included.
        longest_draft: The most tokens that one step drafts.
    """
    totals = _totals(result)
    if totals is None:
        iterations = getattr(result, "decoding_iter", 0)
        beyond = max(tokens - iterations, 0) if iterations else None
        return dataclasses.replace(NOTHING_KNOWN, accepted=beyond)
    accepted, drafted = totals
    histogram = _histogram(result, longest_draft)
    if histogram is None or sum(j * steps for j, steps in enumerate(histogram)) != accepted:
        return Statistics(steps=None, drafted=drafted, accepted=accepted, histogram=None)
    return Statistics(steps=sum(histogram), drafted=drafted, accepted=accepted, histogram=histogram)


def _totals(result: RequestOutput) -> tuple[int, int] | None:
    """Return accepted and drafted tokens; a drafted 0 is what is reported where nobody counted."""
    pair = getattr(result, "spec_dec_totals", None)
    if pair is None:
        metrics = getattr(result.outputs[0], "request_perf_metrics", None)
        counted = getattr(metrics, "speculative_decoding", None)
        if counted is None:
            return None
        pair = (counted.total_accepted_draft_tokens, counted.total_draft_tokens)
    accepted, drafted = (int(count) for count in pair)
    return (accepted, drafted) if 0 <= accepted <= drafted and drafted else None


def _histogram(result: RequestOutput, longest_draft: int) -> tuple[int, ...] | None:
    """Make steps by accepted drafts out of steps that accepted more than ``k``; None where that does not work out."""
    drafted = getattr(result, "per_pos_drafted", None)
    accepted = getattr(result, "per_pos_accepted", None)
    if drafted is None or accepted is None or len(drafted) == 0:
        return None
    more_than = _padded(accepted, longest_draft)
    histogram = tuple(more - less for more, less in pairwise((int(drafted[0]), *more_than, 0)))
    return histogram if min(histogram) >= 0 else None


def _padded(counts: Sequence[int], length: int) -> list[int]:
    return [int(count) for count in (*counts, *[0] * length)][:length]
