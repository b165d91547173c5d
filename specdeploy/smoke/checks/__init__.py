"""Every check by name, in the order in which they run: first whether there is a server, then whether it is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from specdeploy.smoke.checks import answers, edges, losslessness, refusals, server, speculation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdeploy.smoke.probe import Probe

#: Returns what it saw, in a line; raises ``Broken``, or ``NotApplicable``. Its docstring is its promise.
Check: TypeAlias = "Callable[[Probe], str]"

CHECKS: Final[Mapping[str, Check]] = {
    "server-ready": server.server_ready,
    "models-ready": server.models_ready,
    "metadata": server.metadata,
    "http-equals-grpc": answers.http_equals_grpc,
    "stream-http": answers.stream_http,
    "stream-grpc": answers.stream_grpc,
    "second-door": answers.second_door,
    "speculation-on": speculation.speculation_on,
    "control": speculation.control,
    "lossless-greedy": losslessness.lossless_greedy,
    "short-answers": edges.short_answers,
    "stop-word": edges.stop_word,
    "seeds": edges.seeds,
    "parallel-clients": edges.parallel_clients,
    "refuses-wrong-type": refusals.wrong_type,
    "refuses-missing-input": refusals.missing_input,
    "refuses-zero-tokens": refusals.zero_tokens,
    "refuses-long-prompt": refusals.long_prompt,
    "refuses-unknown-input": refusals.unknown_input,
    "refuses-unknown-model": refusals.unknown_model,
}

__all__ = ["CHECKS", "Check"]
