"""Prompts at the edges: none at all, as long as fits and one token more, and characters of several bytes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.smoke.budget import Budget
from specdeploy.smoke.capabilities import GRPC, STREAM, TRITON
from specdeploy.smoke.compare import require_same
from specdeploy.smoke.probe import Broken, NotApplicable, Undecided
from specdeploy.smoke.targets import UNTOLD, tells_limit
from specdeploy.triton.client import RequestFailed
from specdeploy.triton.protocol import join_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk, GenerateRequest

#: Failures that say what is wrong with the request.
_CLEAR: Final = ("invalid_argument", "model_error")
_REFERENCE_TOKENS: Final = 4
_WORD: Final = " one"
_FEW_WORDS, _MORE_WORDS = 8, 16
_ROOM: Final = 8
_MOST_FILLED: Final = 8192
_FAR_AWAY: Final = 1_000_000
_REPLACEMENT: Final = "\ufffd"
#: Lengths of answers, the next one where too few characters of several bytes were seen to be sure of anything.
_MULTIBYTE_TOKENS: Final = (16, 32)
_ENOUGH_CHARACTERS: Final = 24
_LAST_ASCII: Final = 127
#: Beginnings that a text goes on with in the same script: two, three and four bytes a character, and then more of them.
_SCRIPTS: Final[Mapping[str, str]] = {
    "cyrillic": "Один, два, три, четыре, пять, шесть,",
    "japanese": "月曜日、火曜日、水曜日、木曜日、",
    "emoji": "😀 🎉 🚀 😀 🎉 🚀 😀 🎉 🚀 😀 🎉",
    "devanagari": "एक, दो, तीन, चार, पाँच,",
    "accents": "Élève, été, forêt, Noël, naïve, garçon, déjà, façade,",
    "greek": "Άλφα, βήτα, γάμμα, δέλτα, έψιλον,",
}
#: So many are always asked for; the others as long as there are so many seconds.
_LEAST_SCRIPTS: Final = 3
_SCRIPTS_S: Final = 4.0


def empty_prompt(probe: Probe) -> str:
    """An empty prompt is answered or refused, clearly and the same by every way, and the server goes on."""
    before = probe.greedy(max_tokens=_REFERENCE_TOKENS)
    seen = {
        way: _outcome(fetch) for way, fetch in _ways(probe, probe.request("", max_tokens=_REFERENCE_TOKENS)).items()
    }
    kinds = {outcome.partition(":")[0] for outcome in seen.values()}
    if len(kinds) > 1:
        raise Broken("; ".join(f"{way}: {outcome}" for way, outcome in seen.items()), {"outcomes": seen})
    require_same("before and after the empty prompt", before, probe.greedy(max_tokens=_REFERENCE_TOKENS))
    return next(iter(seen.values()))


def longest_prompt(probe: Probe) -> str:
    """A prompt that with ``max_tokens`` just fills ``max_seq_len`` is answered; one token more is refused.

    The server's own count of the prompt's tokens is what the limit is reckoned with, so no tokenizer is needed. Where
    the limit is so far that reaching it takes long, a short prompt is only asked to go over it. A server that does not
    speak Triton's protocol may give fewer tokens than were asked for, as long as the prompt is whole; where it does not
    tell its limit, there is none to hold it to.
    """
    most = probe.expect.max_seq_len
    if not tells_limit(probe.expect):
        raise NotApplicable(UNTOLD)
    if most > _FAR_AWAY:
        raise NotApplicable(f"{most} tokens are too many to be asked for")
    if most > _MOST_FILLED:
        tokens = _count_prompt(probe, _WORD * _FEW_WORDS)
        said = _require_over(probe, _WORD * _FEW_WORDS, tokens, most - tokens)
        return f"{said}; {most} tokens are too many to be filled here"
    prompt, tokens = _nearly_full(probe)
    room = most - tokens
    answer = probe.greedy(prompt, max_tokens=room)
    if answer.num_input_tokens != tokens:
        raise Broken(f"a prompt of {tokens} tokens became one of {answer.num_input_tokens}")
    if not (answer.text or answer.ids):
        raise Broken(f"{tokens} tokens and max_tokens {room} just fit into {most}, but the answer is empty")
    return _require_over(probe, prompt, tokens, room)


def _require_over(probe: Probe, prompt: str, tokens: int, room: int) -> str:
    """Ask for one token more than there is room for."""
    try:
        over = probe.greedy(prompt, max_tokens=room + 1)
    except RequestFailed as error:
        if error.label not in _CLEAR or not error.said.strip():
            raise Broken(f"one token over the limit: no clear refusal but {error.message}") from error
        return f"a prompt of {tokens} tokens with max_tokens {room + 1} is refused: {error.said}"
    written = len(over.ids) or over.num_output_tokens
    if not probe.can(TRITON) and over.num_input_tokens == tokens:
        if written is None:
            raise NotApplicable(
                f"a prompt of {tokens} tokens with max_tokens {room + 1} is answered, and is whole; the answer does "
                "not say how many tokens it has"
            )
        if written <= room:
            return f"a prompt of {tokens} tokens with max_tokens {room + 1} is answered with {written}, and is whole"
    raise Broken(
        f"a prompt of {tokens} tokens and max_tokens {room + 1} was answered with "
        f"{'some' if written is None else written} tokens, but max_seq_len is {probe.expect.max_seq_len}: is the "
        "prompt cut silently?",
        {"num_input_tokens": over.num_input_tokens, "max_tokens": room + 1},
    )


def multibyte(probe: Probe) -> str:
    """Characters of several bytes come whole in every piece, in several scripts and as emoji.

    The reference is decoded in one go, by the target alone where that can be had, so that no border of pieces can tear
    it. A model may write bytes that are no character, which are replaced (U+FFFD) in the reference, too; torn ones are
    those that only the pieces have. With another answer, after a near-tie, the part in common is compared, and the
    whole answer with drafts as well. Where more characters are replaced than are not, nothing is known of most.
    """
    probe.require(STREAM)
    for length in _MULTIBYTE_TOKENS:
        answers = _written(probe, min(length, probe.expect.max_seq_len // 2))
        written = "".join(answers)
        replaced = written.count(_REPLACEMENT)
        seen = sum(ord(character) > _LAST_ASCII for character in written) - replaced
        if seen >= _ENOUGH_CHARACTERS:
            break
    if replaced > seen:
        raise Undecided(
            f"{replaced} characters are replaced by U+FFFD, whole and in pieces, and {seen} of several bytes are not: "
            "either the model writes no such text, or the server tears nearly every character",
            {"written": written},
        )
    if not seen:
        raise NotApplicable(f"the model writes no character of several bytes, in {len(answers)} answers")
    slow = "" if len(answers) == len(_SCRIPTS) else f" ({len(_SCRIPTS) - len(answers)} scripts left out: slow server)"
    return f"{seen} characters of several bytes in {len(answers)} answers{slow}, {replaced} that are none"


def _written(probe: Probe, length: int) -> list[str]:
    """Return what the model writes in each script, after comparing it whole and in pieces; not all on a slow server.

    Raises:
        Broken: The pieces are not the answer.
    """
    written: list[str] = []
    budget = Budget(_SCRIPTS_S)
    for name, text in _SCRIPTS.items():
        if len(written) >= _LEAST_SCRIPTS and budget.over:
            break
        request = probe.request(text, max_tokens=length)
        whole = probe.whole(dataclasses.replace(request, num_draft_tokens=probe.alone))
        pieces = probe.streamed(request)
        _require_whole_characters(name, whole, pieces)
        if join_chunks(pieces).ids != whole.ids:
            _require_whole_characters(name, probe.whole(request), pieces)
        if probe.expect.target_precision == "fp32" or probe.alone is None:
            require_same(f"in pieces and in one go, {name}", whole, join_chunks(pieces))
        written.append(whole.text)
    if not any(written):
        raise Broken(f"every one of {len(written)} answers is empty")
    return written


def _require_whole_characters(name: str, whole: Chunk, pieces: list[Chunk]) -> None:
    """Fail when the pieces have more replaced characters than the reference, as far as they are the same answer."""
    common, text = _in_common(whole, pieces)
    torn = common.count(_REPLACEMENT) - text.count(_REPLACEMENT)
    if torn > 0:
        at = next(i for i, piece in enumerate(pieces) if _REPLACEMENT in piece.text)
        raise Broken(
            f"{name}: {torn} characters are torn between pieces, the first around piece {at}: {pieces[at].text!r}; "
            f"whole, the answer is {whole.text!r}",
            {"pieces": [piece.text for piece in pieces], "whole": whole.text},
        )


def _in_common(whole: Chunk, pieces: list[Chunk]) -> tuple[str, str]:
    """Return the text of the pieces whose tokens the reference has as well, and as much of the reference's."""
    joined = join_chunks(pieces)
    if joined.ids == whole.ids:
        return joined.text, whole.text
    common, tokens = "", 0
    for piece in pieces:
        tokens += len(piece.ids)
        if joined.ids[:tokens] != whole.ids[:tokens]:
            break
        common += piece.text
    return common, whole.text[: len(common)]


def _nearly_full(probe: Probe) -> tuple[str, int]:
    """Return a prompt that leaves room for a few tokens, and its length in tokens as the server counts.

    Raises:
        NotApplicable: The server does not count the prompt's tokens, or a repeated word has no constant length.
    """
    few, more = (_count_prompt(probe, _WORD * words) for words in (_FEW_WORDS, _MORE_WORDS))
    each = (more - few) // (_MORE_WORDS - _FEW_WORDS)
    most = probe.expect.max_seq_len
    words = _FEW_WORDS + (most - max(_ROOM, each) - few) // each if each else 0
    tokens = few + (words - _FEW_WORDS) * each
    if words < 1 or not 0 < tokens < most:
        raise NotApplicable(f"no repeated word fills {most} tokens: {_FEW_WORDS} are {few}, {_MORE_WORDS} are {more}")
    return _WORD * words, tokens


def _count_prompt(probe: Probe, prompt: str) -> int:
    count = probe.greedy(prompt, max_tokens=1).num_input_tokens
    if count is None:
        raise NotApplicable("the answers do not say how many tokens the prompt has")
    return count


def _ways(probe: Probe, request: GenerateRequest) -> dict[str, Callable[[], Chunk]]:
    ways: dict[str, tuple[Callable[[], Chunk], tuple[str, ...]]] = {
        "HTTP generate": (lambda: probe.whole_http(request), ()),
        "HTTP generate_stream": (lambda: join_chunks(probe.streamed_http(request)), (STREAM,)),
        "gRPC": (lambda: probe.whole(request), (GRPC,)),
        "gRPC stream": (lambda: probe.joined(request), (GRPC, STREAM)),
    }
    return {way: fetch for way, (fetch, needs) in ways.items() if all(probe.can(need) for need in needs)}


def _outcome(fetch: Callable[[], Chunk]) -> str:
    """Return ``answered: TEXT`` or ``refused: WHY``.

    Raises:
        Broken: Neither: a time-out, a lost connection, an error without a word.
    """
    try:
        answer = fetch()
    except RequestFailed as error:
        if error.label not in _CLEAR or not error.said.strip():
            raise Broken(f"the empty prompt: no clear refusal but {error.message}", {"label": error.label}) from error
        return f"refused: {error.said}"
    return f"answered: {answer.text!r}"
