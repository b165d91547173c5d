"""One answer, or one piece of it, of an OpenAI-compatible server as a ``Chunk``. Pure.

Beyond OpenAI's fields it reads what some servers add:

* vLLM: ``token_ids`` and ``stop_reason`` of a choice;
* llama.cpp: ``timings.draft_n`` and ``timings.draft_n_accepted``;
* vLLM, started with ``--per-request-spec-decode-metrics``: ``metrics.speculative_decoding``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.triton.protocol import MOST_COUNTED, MOST_POSITIONS, Chunk, MalformedResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

_LENGTH: Final = "length"


def decode_answer(
    answer: Mapping[str, Any], *, stop_words: bool, received_s: float | None = None, final: bool = False
) -> Chunk:
    """Read an answer or an event of a stream.

    Args:
        answer: The JSON object. Without a choice (the event that tells the usage) it gives an empty text.

        stop_words: Whether the request has stop words. OpenAI's ``stop`` means a stop word or the end token; where the
            server does not say which, it is read as ``stop_word`` when there are stop words, else as ``end_id``.

        received_s: As in ``Chunk``.

        final: As in ``Chunk``.

    Raises:
        MalformedResponse: Not OpenAI's shape, a value of another type, a negative count, one beyond 32 bits, or a
            histogram of more than `MOST_POSITIONS`. What was drafted and accepted is given as it was told, for the
            smoke test to judge.
    """
    choice = _choice(answer)
    # Nearly every event of a stream has none of them, and a load test reads very many events.
    counted = answer.get("usage") or answer.get("timings") or answer.get("metrics")
    return Chunk(
        text=_text(choice),
        ids=_row(choice, "token_ids"),
        finish_reason=_finish_reason(choice, stop_words=stop_words),
        final=final,
        received_s=received_s,
        **(_counts(answer) if counted else {}),
    )


def _counts(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chunk that are numbers of tokens and of drafts."""
    usage, metrics = _object(answer, "usage"), _metrics(answer)
    drafted, accepted = _drafts(answer)
    return {
        "acceptance_rate": _rate(drafted, accepted),
        "num_spec_steps": _count(metrics, "num_spec_steps"),
        "total_draft_tokens": drafted,
        "total_accepted_draft_tokens": accepted,
        "histogram": _histogram(metrics),
        "num_input_tokens": _count(usage, "prompt_tokens"),
        "num_output_tokens": _count(usage, "completion_tokens"),
    }


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or (choices and not isinstance(choices[0], dict)):
        raise MalformedResponse(f"the answer has no choices: {answer!r:.200}")
    if len(choices) > 1:
        raise MalformedResponse(f"the answer has {len(choices)} choices; one was asked for")
    return choices[0] if choices else {}


def _text(choice: Mapping[str, Any]) -> str:
    """Return the text of a completion, of a chat message, or of a piece of either."""
    message = choice.get("message") or choice.get("delta")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    if text is not None and not isinstance(text, str):
        raise MalformedResponse(f"the text of the answer is {text!r:.200}")
    return text or ""


def _finish_reason(choice: Mapping[str, Any], *, stop_words: bool) -> str:
    reason = choice.get("finish_reason")
    if reason is None:
        return ""
    if not isinstance(reason, str):
        raise MalformedResponse(f"finish_reason is {reason!r:.200}")
    if reason != "stop":
        return reason
    if isinstance(choice.get("stop_reason"), str):
        return "stop_word"
    # A server that tells the word would have; one that has no such field leaves it open.
    return "stop_word" if stop_words and "stop_reason" not in choice else "end_id"


def _drafts(answer: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return drafted and accepted tokens as the server tells them, possible or not."""
    timings, metrics = _object(answer, "timings"), _metrics(answer)
    if "draft_n" in timings:
        return _number(timings, "draft_n"), _number(timings, "draft_n_accepted")
    return _number(metrics, "num_draft_tokens"), _number(metrics, "num_accepted_draft_tokens")


def _rate(drafted: int | None, accepted: int | None) -> float | None:
    """Return the share that was accepted; None where it is not told, or cannot be true."""
    if not drafted or accepted is None or not 0 <= accepted <= drafted:
        return None
    return accepted / drafted


def _metrics(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return _object(_object(answer, "metrics"), "speculative_decoding")


def _object(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = answer.get(name)
    return value if isinstance(value, dict) else {}


def _count(values: Mapping[str, Any], name: str) -> int | None:
    value = _number(values, name)
    if value is not None and not _is_count(value):
        raise MalformedResponse(f"{name} is {value!r:.200}, less than 0")
    return value


def _number(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise MalformedResponse(f"{name} is {value!r:.200}, not a whole number")
    if value is not None and abs(value) > MOST_COUNTED:
        raise MalformedResponse(f"{name} is {value!r:.30}, which no 32 bits hold")
    return value


def _row(values: Mapping[str, Any], name: str) -> tuple[int, ...]:
    row = values.get(name)
    if not row:
        return ()
    if not isinstance(row, list) or not all(_is_count(item) for item in row):
        raise MalformedResponse(f"{name} is {row!r:.200}, not a list of whole numbers from 0 to {MOST_COUNTED}")
    return tuple(row)


def _histogram(metrics: Mapping[str, Any]) -> tuple[int, ...]:
    row = _row(metrics, "acceptance_histogram")
    if len(row) > MOST_POSITIONS:
        raise MalformedResponse(f"acceptance_histogram has {len(row)} positions, more than {MOST_POSITIONS}")
    return row


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNTED
