"""Reads conversations as ShareGPT has them: a JSON list of ``{"id": ..., "conversations": [{"from", "value"}, ...]}``.

The first human turn is the prompt. How many tokens its answer has follows only with a tokenizer, which the caller has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.bench.prompts.fields import MOST_TOKENS, Fields, json_object, read_json
from specdeploy.bench.prompts.prompt import CHATML, Prompt, PromptSet, make_prompt
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Sized

_EXAMPLE: Final = '{"id": "...", "conversations": [{"from": "human", "value": "..."}]}'
_TURN: Final = '{"from": "human", "value": "..."}'
_HUMAN: Final = frozenset({"human", "user"})
_CATEGORY: Final = "sharegpt"


def parse_sharegpt(
    text: str,
    *,
    source: str,
    name: str,
    template: str = CHATML,
    count_tokens: Callable[[str], int] | None = None,
) -> PromptSet:
    """Read the first human turn of every conversation.

    Conversations that have none are left out, and a finding says how many; so it is told how many have no answer whose
    length is wanted. An id that comes again gets the number of its entry behind it.

    Args:
        text: Content of the file.

        source: The file's name, for messages.

        name: Name of the set in reports.

        template: Chat template of a prompt's text: with ``{message}`` in one place.

        count_tokens: Counts the tokens of a text: the answer that the file has then sets ``max_tokens``. None leaves
            the length of the answers to the run.

    Raises:
        ConfigError: The file is not of this shape, or holds no human turn; names file, entry and key.
    """
    entries = read_json(text, source, f"The file is one JSON list: [{_EXAMPLE}, ...].")
    if not isinstance(entries, list):
        raise ConfigError(f"{source}: a {type(entries).__name__}, not a list", hint=f"Write [{_EXAMPLE}, ...].")
    prompts: dict[str, Prompt] = {}
    for number, entry in enumerate(entries, start=1):
        fields = json_object(entry, f"{source}: entry {number}", _EXAMPLE)
        turns = _first_turns(fields)
        if turns:
            ident = fields.string("id", default=f"entry-{number}")
            ident = f"{ident}#{number}" if ident in prompts else ident
            most = _answer_tokens(turns, count_tokens)
            prompts[ident] = make_prompt(turns[0], id=ident, category=_CATEGORY, template=template, max_tokens=most)
    if not prompts:
        raise ConfigError(f"{source} holds no prompt", hint=f"At least one entry needs a human turn: {_TURN}.")
    unanswered = sum(prompt.max_tokens is None for prompt in prompts.values()) if count_tokens is not None else 0
    findings = (*_skipped(len(entries) - len(prompts), len(entries), source), *_unanswered(unanswered, prompts, source))
    return PromptSet(name=name, prompts=tuple(prompts.values()), findings=findings)


def _first_turns(fields: Fields) -> Sequence[str]:
    """Return the first human turn and, where it has one, its answer; nothing where no human says anything."""
    turns = fields.data.get("conversations")
    if not isinstance(turns, list):
        if "conversations" not in fields.data:
            raise fields.missing("conversations", f"An entry is {_EXAMPLE}.")
        raise fields.wrong("conversations", "a list of turns", f"A turn is {_TURN}.")
    said = [_turn(turn, f"{fields.where}, turn {number}") for number, turn in enumerate(turns, start=1)]
    for at, (human, value) in enumerate(said):
        if human and value.strip():
            return [value, *(answer for other, answer in said[at + 1 : at + 2] if not other)]
    return []


def _turn(turn: object, where: str) -> tuple[bool, str]:
    """Return whether a human says it, and what is said, which may be nothing."""
    fields = json_object(turn, where, _TURN)
    for key in ("from", "value"):
        if key not in fields.data:
            raise fields.missing(key, f"A turn is {_TURN}.")
    # Real files have turns in which nothing is said.
    value = fields.string("value", default="") if fields.data["value"] not in ("", None) else ""
    return fields.string("from", default="nobody") in _HUMAN, value


def _answer_tokens(turns: Sequence[str], count_tokens: Callable[[str], int] | None) -> int | None:
    if count_tokens is None or len(turns) == 1:
        return None
    # No tokens is no length that could be asked for: the run decides, as for an answer that is not there.
    return min(count_tokens(turns[1]), MOST_TOKENS) or None


def _skipped(skipped: int, total: int, source: str) -> tuple[Finding, ...]:
    if not skipped:
        return ()
    return (
        Finding(
            severity="info",
            code="load.conversations-skipped",
            message=f"{skipped} of {total} conversations have no human turn and are left out",
            where=source,
        ),
    )


def _unanswered(unanswered: int, prompts: Sized, source: str) -> tuple[Finding, ...]:
    if not unanswered:
        return ()
    return (
        Finding(
            severity="info",
            code="load.answers-not-recorded",
            message=(
                f"{unanswered} of {len(prompts)} conversations have no recorded answer: load.max_tokens says how long "
                "theirs may be"
            ),
            where=source,
        ),
    )
