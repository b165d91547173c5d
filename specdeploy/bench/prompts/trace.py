"""Reads a trace: requests and when each of them was sent.

Two kinds of JSON Lines, told apart by their keys, line by line. Lines of prompts have ``timestamp`` beside the keys of
a prompt set. Lines of lengths, as in the traces that Mooncake published, have ``timestamp``, ``input_length``,
``output_length`` and, if known, ``hash_ids``: one number for each block of the prompt (512 tokens, the last one may
have fewer), equal in two requests as far as their prompts are equal from the start.

``timestamp`` is in milliseconds from any zero and must not decrease; the trace begins with its first request.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.bench.prompts.fields import json_lines
from specdeploy.bench.prompts.lines import prompt_of, refuse_duplicates
from specdeploy.bench.prompts.prompt import CHATML, Prompt, PromptSet
from specdeploy.bench.prompts.synthetic import miss_findings
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from specdeploy.bench.prompts.fields import Fields
    from specdeploy.bench.prompts.synthetic import Made, Synthesiser
    from specdeploy.findings import Finding

TIMESTAMP: Final = "timestamp"
_INPUT, _OUTPUT, _HASHES = "input_length", "output_length", "hash_ids"
_TEXTS: Final = ("text", "message")
_EXAMPLE: Final = '{"timestamp": 1500, "text": "..."}'
_LENGTHS: Final = '{"timestamp": 1500, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}'
# Milliseconds since 1970 are less until the year 2100; microseconds are more.
_MOST_MS: Final = 4.2e12
_LONGEST_S: Final = 7 * 86_400.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """Requests and when they are sent.

    Args:
        name: Name of the trace in reports.

        offsets_s: Of each request, in seconds after the first one; never decreasing.

        prompts: What each of them sends.

        findings: What a reader of the results should know of how the texts were made.
    """

    name: str
    offsets_s: tuple[float, ...]
    prompts: tuple[Prompt, ...]
    findings: tuple[Finding, ...] = ()

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def prompt_set(self) -> PromptSet:
        """The prompts alone, for a run that keeps another time."""
        return PromptSet(name=self.name, prompts=self.prompts, findings=self.findings)


def parse_trace(
    text: str, *, source: str, name: str, template: str = CHATML, synthesiser: Synthesiser | None = None
) -> Trace:
    """Read a trace.

    Args:
        text: Content of the file; blank lines are skipped.

        source: The file's name, for messages.

        name: Name of the trace in reports.

        template: Chat template of messages: with ``{message}`` in one place.

        synthesiser: Makes the texts of lines that have lengths alone, with a tokenizer; its template goes around them.
            The answer then has exactly ``output_length`` tokens, since an invented text has no natural end.

    Raises:
        ConfigError: A line is malformed, time runs backwards, an id comes twice, there is no request, or a text is
            needed and no synthesiser is there; names file, line and key.
    """
    times: list[float] = []
    prompts: list[Prompt] = []
    made: list[Made] = []
    for number, fields in json_lines(text, source, _EXAMPLE):
        times.append(_time_s(fields, times))
        if _is_lengths(fields):
            made.append(_make(fields, number, synthesiser))
            prompts.append(made[-1].prompt)
        else:
            prompts.append(prompt_of(fields, number, template=template))
    if not prompts:
        raise ConfigError(f"{source} holds no request", hint=f"Write one JSON object a line: {_EXAMPLE}.")
    refuse_duplicates(prompts, source)
    return Trace(
        name=name,
        offsets_s=tuple(time_s - times[0] for time_s in times),
        prompts=tuple(prompts),
        findings=miss_findings(made, source),
    )


def has_lengths(text: str) -> bool:
    """Say whether a trace may have lines of lengths, for which a synthesiser is needed."""
    return f'"{_INPUT}"' in text


def _time_s(fields: Fields, earlier: list[float]) -> float:
    if not fields.has(TIMESTAMP):
        raise fields.missing(TIMESTAMP, f"Every line of a trace has its time in milliseconds: {_EXAMPLE}.")
    time_s = fields.number(TIMESTAMP, most=_MOST_MS, unit="milliseconds") / 1000
    if earlier and time_s < earlier[-1]:
        raise fields.wrong(
            TIMESTAMP, f"{earlier[-1] * 1000:,g} or later, as the line before it", "Sort the lines by 'timestamp'."
        )
    if earlier and time_s - earlier[0] > _LONGEST_S:
        raise fields.wrong(
            TIMESTAMP,
            f"within {_LONGEST_S / 86_400:g} days of the first",
            "'timestamp' is in milliseconds; cut a longer trace into pieces.",
        )
    return time_s


def _is_lengths(fields: Fields) -> bool:
    """Say which kind a line is."""
    texts = [key for key in _TEXTS if fields.has(key)]
    if texts and fields.has(_INPUT):
        raise fields.wrong(_INPUT, f"left out beside {texts[0]!r}, which has a length of its own", f"Drop {_INPUT!r}.")
    if not texts and not fields.has(_INPUT):
        raise fields.missing("text", f"A line is {_EXAMPLE} or {_LENGTHS}.")
    return not texts


def _make(fields: Fields, number: int, synthesiser: Synthesiser | None) -> Made:
    wanted, answer, hashes = fields.tokens(_INPUT), fields.tokens(_OUTPUT), fields.whole_numbers(_HASHES)
    if wanted is None or answer is None:
        raise fields.missing(_OUTPUT, f"A line is {_LENGTHS}.")
    if synthesiser is None:
        raise ConfigError(
            f"{fields.where}: key {_INPUT!r} is {wanted}: a length and no text",
            hint="Texts of a length need the tokenizer of the model: name its folder.",
        )
    blocks = -(-wanted // synthesiser.block_tokens)
    if hashes is not None and len(hashes) != blocks:
        raise fields.wrong(
            _HASHES,
            f"{blocks} numbers, one for each block of {synthesiser.block_tokens} of {wanted} tokens (it has "
            f"{len(hashes)})",
            "Name the block size of the trace, or mend the line.",
        )
    made = synthesiser.prompt(
        wanted,
        id=fields.string("id", default=f"line-{number}"),
        category=fields.string("category", default="trace"),
        key=str(number),
        blocks=hashes or (),
    )
    return made.with_answer(answer)
