"""Words and tokens that an answer must not have, or that end it: bad words, the end token, the least length."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import TYPE_CHECKING

from specdeploy.smoke.capabilities import IDS, STREAM_END
from specdeploy.smoke.compare import require_same
from specdeploy.smoke.probe import Broken, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk, GenerateRequest

_LOOKED_AT = 10
_AT_LEAST_MORE = 3
_LETTERS = re.compile(r" ?[A-Za-z]+")
#: What begins a word of its own for every tokenizer, so that it joins no token with the letters in front of it.
_APART = re.compile(r" [A-Za-z]+|[!?,;:()\[\]{}<>=+*/]")


@dataclasses.dataclass(frozen=True)
class _Piece:
    """One token of an answer and its text."""

    token: int
    text: str


def bad_words(probe: Probe) -> str:
    """A greedy answer avoids a banned word, of one token or of two, with drafts as without.

    The word is one that the answer has without the ban. Tokenizers differ in whether a word begins with its space, so
    it is banned with the space and without.
    """
    probe.require(IDS)
    probe.require_input("bad_words")
    pieces = _pieces(probe)
    said = []
    for words in (_single(pieces), _pair(pieces)):
        if not words:
            continue
        text = "".join(piece.text for piece in words)
        request = _with(probe.request(), bad_words=sorted({text, text.strip()}))
        answer = _same_every_way(probe, f"with the bad word {text!r}", request)
        banned = tuple(piece.token for piece in words)
        at = _find(banned, answer.ids)
        if at is not None:
            raise Broken(
                f"the bad word {text!r} (tokens {list(banned)}) is in the answer at token {at}: {answer.text!r}",
                {"bad_word": text, "tokens": list(banned), "position": at, "seen": list(answer.ids)},
            )
        said.append(f"{text!r} ({len(banned)} tokens)" if len(banned) > 1 else repr(text))
    if not said:
        raise NotApplicable(f"the answer has no plain word to ban: {''.join(piece.text for piece in pieces)!r}")
    return f"avoided {', '.join(said)}"


def end_id(probe: Probe) -> str:
    """An answer ends at the token that the request names as ``end_id``, whole, streamed and without drafts.

    Whether that token is the last of ``output_ids`` or is left out depends on the engine: NVIDIA's leave it out, the
    CPU engines keep it. Either is right; its text must not follow, and nothing after it.
    """
    probe.require(IDS)
    probe.require_input("end_id")
    reference = probe.greedy()
    at = _middle_token(reference.ids)
    end = reference.ids[at]
    answer = _same_every_way(probe, f"with end_id {end}", _with(probe.request(), end_id=end))
    if answer.ids not in (reference.ids[:at], reference.ids[: at + 1]):
        raise Broken(
            f"end_id {end}: the answer has the tokens {list(answer.ids)}; expected {list(reference.ids[: at + 1])}, "
            "with or without the last",
            {"end_id": end, "seen": list(answer.ids), "expected": list(reference.ids[: at + 1])},
        )
    _require_reason(probe, f"end_id {end}", answer)
    kept = "kept" if len(answer.ids) == at + 1 else "left out"
    return f"ended at token {at}, which is {kept}"


def min_tokens(probe: Probe) -> str:
    """With ``min_tokens`` the answer does not end at an end token that comes earlier, with drafts as without."""
    probe.require(IDS)
    probe.require_input("end_id", "min_tokens")
    reference = probe.greedy()
    at = _middle_token(reference.ids[: max(len(reference.ids) - _AT_LEAST_MORE - 1, 0)])
    end, least = reference.ids[at], at + _AT_LEAST_MORE
    request = _with(probe.request(), end_id=end, min_tokens=least)
    answer = _same_every_way(probe, f"with min_tokens {least}", request)
    if answer.ids[:at] != reference.ids[:at]:
        raise Broken(
            f"min_tokens {least} changes the answer before its end token: {list(answer.ids[:at])} instead of "
            f"{list(reference.ids[:at])}"
        )
    if len(answer.ids) < least or end in answer.ids[: least - 1]:
        raise Broken(
            f"min_tokens {least}: the end token {end} is taken too early, the answer is {list(answer.ids)}",
            {"end_id": end, "min_tokens": least, "seen": list(answer.ids)},
        )
    return f"end token {end} refused at token {at}, {len(answer.ids)} tokens of at least {least}"


def _with(request: GenerateRequest, **inputs: object) -> GenerateRequest:
    """Add inputs that requests seldom have."""
    extra: Mapping[str, object] = {**request.extra, **inputs}
    return dataclasses.replace(request, extra=extra)


def _same_every_way(probe: Probe, what: str, request: GenerateRequest) -> Chunk:
    """Return the answer, the same whole, streamed and, where that can be had, by the target alone.

    With a target of lower precision a near-tie may make a difference there, which is for ``lossless-greedy`` to judge.
    """
    ways = probe.each_way(request)
    answer = ways["whole"]
    require_same(f"whole and streamed, {what}", answer, ways.get("streamed", answer))
    if probe.alone is not None and probe.expect.target_precision == "fp32":
        alone = dataclasses.replace(request, num_draft_tokens=probe.alone)
        require_same(f"the target alone and with drafts, {what}", probe.whole(alone), answer)
    return answer


def _require_reason(probe: Probe, what: str, answer: Chunk) -> None:
    if probe.can(STREAM_END) and answer.finish_reason != "end_id":
        raise Broken(f"{what}: finish_reason is {answer.finish_reason!r}; expected 'end_id'")


def _middle_token(ids: Sequence[int]) -> int:
    """Return where in the midst of the answer a token stands for the first time.

    Raises:
        NotApplicable: The answer is too short, or repeats its beginning.
    """
    firsts = [at for at, token in enumerate(ids) if at and token not in ids[:at]]
    if not firsts:
        raise NotApplicable(f"the answer has no token in its midst that is new: {list(ids)}")
    return min(firsts, key=lambda at: abs(at - len(ids) // 2))


def _pieces(probe: Probe) -> list[_Piece]:
    """Return the first tokens of the greedy answer with the text of each, learnt from answers of growing length.

    As many as it takes to have something to ban.
    """
    found: list[_Piece] = []
    text = ""
    for length in range(1, min(_LOOKED_AT, probe.expect.max_tokens) + 1):
        answer = probe.greedy(max_tokens=length)
        if len(answer.ids) != length:
            break
        found.append(_Piece(answer.ids[-1], answer.text.removeprefix(text)))
        text = answer.text
        if _single(found) and _pair(found):
            break
    return found


def _single(pieces: Sequence[_Piece]) -> tuple[_Piece, ...]:
    return next(((piece,) for piece in pieces if _LETTERS.fullmatch(piece.text)), ())


def _pair(pieces: Sequence[_Piece]) -> tuple[_Piece, ...]:
    return next(_pairs(pieces), ())


def _pairs(pieces: Sequence[_Piece]) -> Iterator[tuple[_Piece, ...]]:
    """Yield neighbours that a tokenizer writes as these two tokens again."""
    for left, right in itertools.pairwise(pieces):
        if _LETTERS.fullmatch(left.text) and _APART.fullmatch(right.text):
            yield left, right


def _find(part: Sequence[int], ids: Sequence[int]) -> int | None:
    """Return where a run of tokens begins in an answer; None when it is not there."""
    size = len(part)
    return next((at for at in range(len(ids) - size + 1) if tuple(ids[at : at + size]) == tuple(part)), None)
