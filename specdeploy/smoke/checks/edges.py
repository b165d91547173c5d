"""Does it behave at the edges: very short answers, stop words, seeds, several clients at once?"""

from __future__ import annotations

import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from specdeploy.smoke.compare import require_ids, require_same
from specdeploy.smoke.probe import Broken, NotApplicable
from specdeploy.triton.protocol import join_chunks

if TYPE_CHECKING:
    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import GenerateRequest

_CLIENTS = 4
_SEED = 20_250_611
_OTHER_SEEDS = 4
_TRIES = 4
_SAMPLED_TOKENS = 16


def short_answers(probe: Probe) -> str:
    """``max_tokens`` of 1, of less than the draft's length and of one round more gives exactly that many tokens."""
    drafts = probe.expect.num_draft_tokens
    reference = probe.greedy(drafts=probe.expect.control_drafts)
    lengths = [n for n in sorted({1, max(drafts - 1, 1), drafts + 2}) if n <= len(reference.ids)]
    if not lengths:
        raise Broken("the answer is empty: there is nothing to cut short")
    for length in lengths:
        answer = probe.greedy(max_tokens=length)
        if answer.ids != reference.ids[:length]:
            raise Broken(
                f"max_tokens {length} gave {list(answer.ids)}; expected {list(reference.ids[:length])}",
                {"max_tokens": length, "seen": list(answer.ids), "expected": list(reference.ids[:length])},
            )
        if length < len(reference.ids) and answer.finish_reason != "length":
            raise Broken(f"max_tokens {length}: finish_reason is {answer.finish_reason!r}; expected 'length'")
    return f"max_tokens {', '.join(map(str, lengths))}"


def stop_word(probe: Probe) -> str:
    """The answer ends in front of a stop word, streamed or not, and no part of the word leaks."""
    whole = probe.greedy(drafts=probe.expect.control_drafts)
    found = re.search(r"(?<=\s)\w{3,}(?=\W)", whole.text[1:])
    if found is None:
        raise NotApplicable(f"the answer has no word in its midst to stop at: {whole.text!r}")
    word = found.group()
    expected = whole.text[: whole.text.index(word)]
    request = dataclasses.replace(probe.request(), stop_words=(word,))
    for what, answer in (("whole", probe.whole(request)), ("streamed", probe.joined(request))):
        if answer.text != expected:
            raise Broken(
                f"{what} answer with the stop word {word!r} is {answer.text!r}; expected {expected!r}",
                {"stop_word": word, "seen": answer.text, "expected": expected},
            )
        if answer.finish_reason != "stop_word":
            raise Broken(f"{what} answer: finish_reason is {answer.finish_reason!r}; expected 'stop_word'")
    return f"stopped at {word!r}"


def seeds(probe: Probe) -> str:
    """A sampled request with a seed gives the same answer again, by any way; other seeds give other answers.

    That holds to the letter for the target alone and for drafts accepted by match. Rejection sampling takes the
    draft's probabilities into account, and those of a quantised draft depend a little on what its KV cache happens to
    hold: there one repetition among several is asked for, which an ignored seed would not give.
    """
    alone = probe.expect.control_drafts
    _require_repeatable(probe, "target alone", _sampled(probe, _SEED, drafts=alone))
    _require_repeatable(probe, "drafts accepted by match", _sampled(probe, _SEED, use_draft_logits=False))
    if not _repeats(probe, _sampled(probe, _SEED, use_draft_logits=True)):
        raise Broken(f"drafts accepted by rejection: one seed, sent {_TRIES} times, gave {_TRIES} different answers")
    others = [probe.whole(_sampled(probe, _SEED + n, drafts=alone)).ids for n in range(_OTHER_SEEDS + 1)]
    if len(set(others)) == 1:
        raise Broken(f"{len(others)} seeds gave one and the same answer: is temperature or seed ignored?")
    return f"{len(set(others))} different answers from {len(others)} seeds"


def parallel_clients(probe: Probe) -> str:
    """Clients at the same time each get the answer that they get alone."""
    prompts = [probe.expect.prompts[i % len(probe.expect.prompts)] for i in range(_CLIENTS)]
    alone = [probe.greedy(prompt.text) for prompt in prompts]
    requests = [probe.request(prompt.text) for prompt in prompts]
    with ThreadPoolExecutor(_CLIENTS) as pool:
        together = list(pool.map(lambda request: join_chunks(probe.streamed(request)), requests))
    for prompt, expected, seen in zip(prompts, alone, together, strict=True):
        require_same(f"alone and among {_CLIENTS} clients, prompt {prompt.name}", expected, seen)
    return f"{_CLIENTS} clients"


def _require_repeatable(probe: Probe, what: str, request: GenerateRequest) -> None:
    first = probe.whole(request)
    require_ids(f"sampled, {what}", first)
    require_same(f"{what}: one seed, sent twice", first, probe.whole(request))
    require_same(f"{what}: one seed, streamed", first, probe.joined(request))
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
        probe.request(max_tokens=length, drafts=drafts),
        temperature=1.5,
        top_k=50,
        top_p=0.95,
        seed=seed,
        extra={} if use_draft_logits is None else {"use_draft_logits": use_draft_logits},
    )
