"""Every check by name, in the order in which they run: first whether there is a server, then whether it is right."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.smoke.capabilities import CONTROL, COUNTS, ENGINES, GRPC, IDS, STREAM, TRITON
from specdeploy.smoke.checks import (
    answers,
    edges,
    edges_cancel,
    edges_prompts,
    edges_words,
    golden,
    losslessness,
    refusals,
    server,
    speculation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdeploy.smoke.probe import Probe


@dataclasses.dataclass(frozen=True)
class Check:
    """One question to a deployment.

    Args:
        run: Returns what it saw, in a line; raises ``Broken``, ``Undecided`` or ``NotApplicable``. Its docstring is its
            promise.

        needs: What a server must be able to do; without it the check is skipped, and says so.

        quick: Whether it belongs to ``--quick``, which a readiness gate runs.
    """

    run: Callable[[Probe], str]
    needs: frozenset[str] = frozenset()
    quick: bool = False


def _check(run: Callable[[Probe], str], *needs: str, quick: bool = False) -> Check:
    return Check(run=run, needs=frozenset(needs), quick=quick)


CHECKS: Final[Mapping[str, Check]] = {
    "server-ready": _check(server.server_ready, quick=True),
    "models-ready": _check(server.models_ready, TRITON, quick=True),
    "metadata": _check(server.metadata, TRITON, quick=True),
    "metrics": _check(server.metrics, TRITON),
    "http-equals-grpc": _check(answers.http_equals_grpc, GRPC, IDS, quick=True),
    "stream-http": _check(answers.stream_http, STREAM, quick=True),
    "stream-grpc": _check(answers.stream_grpc, GRPC, STREAM),
    "stream-early": _check(answers.stream_early, STREAM),
    "second-door": _check(answers.second_door, TRITON),
    "speculation-on": _check(speculation.speculation_on, COUNTS, quick=True),
    "self-draft": _check(speculation.self_draft, COUNTS),
    "control": _check(speculation.control, CONTROL, COUNTS),
    "lossless-greedy": _check(losslessness.lossless_greedy, CONTROL, IDS),
    "lossless-batch": _check(losslessness.lossless_batch, CONTROL, IDS),
    "lossless-sampled": _check(losslessness.lossless_sampled, CONTROL, IDS),
    "short-answers": _check(edges.short_answers),
    "stop-word": _check(edges.stop_word),
    "bad-words": _check(edges_words.bad_words, TRITON, IDS),
    "end-id": _check(edges_words.end_id, TRITON, IDS),
    "min-tokens": _check(edges_words.min_tokens, TRITON, IDS),
    "empty-prompt": _check(edges_prompts.empty_prompt),
    "longest-prompt": _check(edges_prompts.longest_prompt),
    "multibyte": _check(edges_prompts.multibyte, STREAM),
    "seeds": _check(edges.seeds),
    "cancellation": _check(edges_cancel.cancellation, TRITON, ENGINES, GRPC, IDS, STREAM),
    "parallel-clients": _check(edges.parallel_clients),
    "refuses-wrong-type": _check(refusals.wrong_type),
    "refuses-wrong-shape": _check(refusals.wrong_shape, TRITON),
    "refuses-missing-input": _check(refusals.missing_input),
    "refuses-zero-tokens": _check(refusals.zero_tokens),
    "refuses-long-prompt": _check(refusals.long_prompt),
    "refuses-unknown-input": _check(refusals.unknown_input, TRITON),
    "refuses-unknown-model": _check(refusals.unknown_model),
    "golden": _check(golden.golden),
}

__all__ = ["CHECKS", "Check"]
