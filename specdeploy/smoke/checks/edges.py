"""Does it behave at the edges: very short answers, stop words, seeds, several clients at once?"""

from __future__ import annotations

import dataclasses
import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from specdeploy.smoke.capabilities import CONTROL, GRPC, IDS, STREAM, STREAM_END, TRITON
from specdeploy.smoke.compare import require_content, require_ids, require_same
from specdeploy.smoke.probe import Broken, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk, GenerateRequest

_SEED = 20_250_611
_OTHER_SEEDS = 3
_TRIES = 4
#: Ten of these at a time still end soon.
_CROWD_TOKENS = 4
_SAMPLED_TOKENS = 6
_REPLACEMENT = "\ufffd"
#: So many tokens have a whole character, however many bytes it has.
_WHOLE_CHARACTER = 4
#: A text of as many tokens is not this much shorter than another.
_MUCH_SHORTER = 4
#: Long enough for a word in the midst of the answer.
_STOP_TOKENS = 16
#: A text that no answer to the bundled prompts has.
_NEVER = "~never~written~"


def short_answers(probe: Probe) -> str:
    """``max_tokens`` of 1, of less than the draft's length and of one round more gives exactly that many tokens."""
    drafts = probe.expect.num_draft_tokens
    reference = probe.greedy()
    require_content("there is nothing to cut short", reference)
    most = len(reference.ids) if probe.can(IDS) else probe.expect.usual_tokens
    lengths = [n for n in sorted({1, max(drafts - 1, 1), drafts + 2}) if n <= most]
    if not lengths:
        raise Broken("the answer is empty: there is nothing to cut short")
    for length in lengths:
        for answer in probe.each_way(probe.request(max_tokens=length)).values():
            _require_length(probe, length, reference, answer)
    return f"max_tokens {', '.join(map(str, lengths))}"


def stop_word(probe: Probe) -> str:
    """The answer ends in front of a stop word, streamed or not, and no part of the word leaks.

    Words in the midst of the answer, at its very start, across the border of two pieces, and several at once.
    """
    usual = probe.request(max_tokens=min(probe.expect.max_tokens, _STOP_TOKENS))
    whole = probe.whole(usual)
    require_content("there is nothing to stop at", whole)
    pieces = probe.streamed(usual) if probe.can(STREAM) else []
    cases = _stop_cases(whole.text, [chunk.text for chunk in pieces])
    if not cases:
        raise NotApplicable(f"the answer has nothing to stop at: {whole.text!r}")
    for what, words in cases.items():
        expected = _cut(whole.text, words)
        request = dataclasses.replace(usual, stop_words=tuple(words))
        for way, answer in probe.each_way(request).items():
            _require_stopped(probe, f"{way} answer with the stop word {what}", words, expected, answer)
    return f"stopped at {'; '.join(f'{what}: {list(words)}' for what, words in cases.items())}"


def seeds(probe: Probe) -> str:
    """A sampled request with a seed gives the same answer again, by any way; other seeds give other answers.

    That holds to the letter for the target alone and for drafts accepted by match. Rejection sampling takes the
    draft's probabilities into account, and those of a quantised draft depend a little on what its KV cache happens to
    hold: there one repetition among several is asked for, which an ignored seed would not give.
    """
    alone = probe.alone
    by_match = probe.can(CONTROL) and probe.has_input("use_draft_logits")
    served = "target alone" if alone == 0 else "as served"
    _require_repeatable(probe, served, _sampled(probe, _SEED, drafts=alone), every_way=not by_match)
    if by_match:
        _require_repeatable(probe, "drafts accepted by match", _sampled(probe, _SEED, use_draft_logits=False))
        if not _repeats(probe, _sampled(probe, _SEED, use_draft_logits=True)):
            raise Broken(
                f"drafts accepted by rejection: one seed, sent {_TRIES} times, gave {_TRIES} different answers"
            )
    others = [probe.whole(_sampled(probe, _SEED + n, drafts=alone)) for n in range(_OTHER_SEEDS + 1)]
    different = {(answer.ids, answer.text) for answer in others}
    if len(different) == 1:
        raise Broken(f"{len(others)} seeds gave one and the same answer: is temperature or seed ignored?")
    return f"{len(different)} different answers from {len(others)} seeds"


def parallel_clients(probe: Probe) -> str:
    """Clients at the same time each get the answer that they get alone, and none gets another's.

    To the letter where the target computes in fp32 on Triton. Elsewhere the size of a batch may turn a near-tie, as
    ``lossless-batch`` tells; there an answer must begin more like its own than like that to any other prompt, and most
    must begin as their own. Whatever the precision, none is empty, and none ends earlier than it does alone.
    """
    clients = probe.expect.clients
    prompts = [probe.expect.prompts[i % len(probe.expect.prompts)] for i in range(clients)]
    size = min(probe.expect.usual_tokens, _CROWD_TOKENS)
    alone = {prompt.text: probe.greedy(prompt.text, max_tokens=size) for prompt in dict.fromkeys(prompts)}
    requests = [probe.request(prompt.text, max_tokens=size) for prompt in prompts]
    with ThreadPoolExecutor(clients) as pool:
        together = list(pool.map(probe.joined if probe.can(STREAM) else probe.whole, requests))
    exact = probe.expect.target_precision == "fp32" and probe.can(TRITON)
    astray = 0
    for prompt, seen in zip(prompts, together, strict=True):
        what, own = f"alone and among {clients} clients, prompt {prompt.name}", alone[prompt.text]
        require_content(f"alone, prompt {prompt.name}", own)
        require_content(f"among {clients} clients, prompt {prompt.name}", seen)
        if exact or not _is_nearest(seen, own, alone.values()):
            require_same(what, own, seen)
        _require_as_long(what, own, seen, told=probe.can(STREAM_END))
        astray += not _in_common(seen, own)
    if 2 * astray > clients:
        raise Broken(f"{astray} of {clients} clients got an answer with another beginning than alone")
    return f"{clients} clients"


def _require_as_long(what: str, own: Chunk, seen: Chunk, *, told: bool) -> None:
    """Fail when an answer ends before it does alone.

    After a near-tie it is another answer, which may end by itself where the first goes on.

    Args:
        what: The two sides in words, for the reason.

        own: The answer alone.

        seen: The answer among others.

        told: Whether both say why they ended.
    """
    tokens, expected = _tokens(seen), _tokens(own)
    reasons = {own.finish_reason, seen.finish_reason} if told else {"unknown"}
    shown = {"seen": seen.text, "expected": own.text, "tokens": tokens, "expected_tokens": expected}
    if _is_beginning(seen, own) or _is_beginning(own, seen):
        raise Broken(f"{what}: {own.text!r} became {seen.text!r}: one of them ends in its midst", shown)
    if len(reasons) > 1 and (_is_same(seen, own) or "end_id" not in reasons):
        raise Broken(f"{what}: finish_reason {own.finish_reason!r} became {seen.finish_reason!r}", shown)
    if "end_id" in reasons:
        return
    if told and tokens is not None and expected is not None:
        if tokens != expected:
            raise Broken(f"{what}: {expected} tokens became {tokens}, and no end token says why", shown)
    elif _MUCH_SHORTER * len(seen.text) < len(own.text):
        raise Broken(f"{what}: {own.text!r} became {seen.text!r}, which is much shorter", shown)


def _tokens(answer: Chunk) -> int | None:
    """Return how many tokens an answer has; None where it does not say."""
    return len(answer.ids) or answer.num_output_tokens


def _is_same(left: Chunk, right: Chunk) -> bool:
    return left.ids == right.ids if left.ids and right.ids else left.text == right.text


def _is_beginning(part: Chunk, whole: Chunk) -> bool:
    """Say whether an answer is the beginning of another, and no more."""
    if part.ids and whole.ids:
        return len(part.ids) < len(whole.ids) and part.ids == whole.ids[: len(part.ids)]
    left, right = part.text.rstrip(_REPLACEMENT), whole.text.rstrip(_REPLACEMENT)
    return len(left) < len(right) and right.startswith(left)


def _is_nearest(seen: Chunk, own: Chunk, all_alone: Iterable[Chunk]) -> bool:
    """Say whether an answer has as long a beginning in common with its own as with any other."""
    return _in_common(seen, own) >= max(_in_common(seen, answer) for answer in all_alone)


def _in_common(left: Chunk, right: Chunk) -> int:
    pairs = zip(left.ids, right.ids, strict=False) if left.ids else zip(left.text, right.text, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _require_length(probe: Probe, length: int, reference: Chunk, answer: Chunk) -> None:
    """Fail unless an answer is the beginning of the reference, of that many tokens, and says why it ended."""
    if probe.can(IDS):
        fits = answer.ids == reference.ids[:length]
    else:
        counted = answer.num_output_tokens
        fits = reference.text.startswith(answer.text.rstrip(_REPLACEMENT)) and counted in (None, length)
        fits = fits and bool(answer.text or length < _WHOLE_CHARACTER)
    if not fits:
        seen, expected = list(answer.ids), list(reference.ids[:length])
        raise Broken(
            f"max_tokens {length} gave {seen or repr(answer.text)}; expected {expected or repr(reference.text)}",
            {"max_tokens": length, "seen": seen, "expected": expected},
        )
    cut = length < len(reference.ids)
    if cut and probe.can(STREAM_END) and answer.finish_reason != "length":
        raise Broken(f"max_tokens {length}: finish_reason is {answer.finish_reason!r}; expected 'length'")


def _stop_cases(text: str, pieces: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return what to stop at, by where it is: what the answer offers of it, without characters that are not whole."""
    cases: dict[str, Sequence[str]] = {}
    if (inside := _word_inside(text)) is not None:
        cases["in its midst"] = [inside]
        later = text[text.index(inside) + len(inside) :].strip()[:3].strip()
        cases["among several"] = [word for word in (later, _NEVER, inside) if word and _REPLACEMENT not in word]
    start = text[:3]
    if start.strip() and _REPLACEMENT not in start:
        cases["at its start"] = [start]
    border = _across_a_border(pieces)
    if border is not None and border in text:
        cases["across two pieces"] = [border]
    return cases


def _cut(text: str, words: Sequence[str]) -> str:
    """Return what is left of a text when it stops at the word that is complete first."""
    ends = [(text.index(word) + len(word), text.index(word)) for word in words if word in text]
    return text[: min(ends)[1]]


def _word_inside(text: str) -> str | None:
    found = re.search(r"(?<=\s)\w{3,}(?=\W)", text[1:])
    return found.group() if found else None


def _across_a_border(pieces: Sequence[str]) -> str | None:
    """Return the last two characters of a piece and the first two of the next, after the first two pieces."""
    for left, right in itertools.pairwise(pieces[1:]):
        word = left[-2:] + right[:2]
        if left and right and word.strip() == word and _REPLACEMENT not in word:
            return word
    return None


def _require_stopped(probe: Probe, what: str, words: Sequence[str], expected: str, answer: Chunk) -> None:
    if answer.text != expected:
        raise Broken(
            f"{what} ({', '.join(map(repr, words))}) is {answer.text!r}; expected {expected!r}",
            {"stop_words": list(words), "seen": answer.text, "expected": expected},
        )
    if probe.can(STREAM_END) and answer.finish_reason != "stop_word":
        raise Broken(f"{what}: finish_reason is {answer.finish_reason!r}; expected 'stop_word'")


def _require_repeatable(probe: Probe, what: str, request: GenerateRequest, *, every_way: bool = True) -> None:
    first = probe.whole(request)
    if probe.can(IDS):
        require_ids(f"sampled, {what}", first)
    require_same(f"{what}: one seed, sent twice", first, probe.whole(request))
    if not every_way:
        return
    if probe.can(STREAM):
        require_same(f"{what}: one seed, streamed", first, probe.joined(request))
    if probe.can(GRPC):
        require_same(f"{what}: one seed, over HTTP", first, probe.whole_http(request))


def _repeats(probe: Probe, request: GenerateRequest) -> bool:
    """Say whether one answer comes twice within a few tries."""
    seen = set()
    for _ in range(_TRIES):
        ids = probe.whole(request).ids
        if ids in seen:
            return True
        seen.add(ids)
    return False


def _sampled(
    probe: Probe, seed: int, *, drafts: int | None = None, use_draft_logits: bool | None = None
) -> GenerateRequest:
    length = min(probe.expect.max_tokens, _SAMPLED_TOKENS)
    return dataclasses.replace(
        # Prose goes on in more ways than code does.
        probe.request(probe.expect.prompts[:2][-1].text, max_tokens=length, drafts=drafts),
        temperature=1.5,
        top_k=50,
        top_p=0.95,
        seed=seed,
        extra={} if use_draft_logits is None else {"use_draft_logits": use_draft_logits},
    )
