"""Slots: what is reused, and who is overwritten."""

from __future__ import annotations

import numpy as np
import pytest
from tensorrtllm_cpu.engine import SlotPool

from tests.unit.cpu_backend.table_model import MAX_SEQ_LEN, TableCache, TableEngine, TableModel

CONVERSATION = [1, 2, 3, 4, 5, 6, 1, 2]
OTHER = [6, 5, 4, 3, 2, 1]


def ids(*values: int) -> np.ndarray:
    """Return token ids."""
    return np.array(values, np.int32)


def pool(count: int, *, reuse: bool = True) -> SlotPool:
    """Return a pool of table caches."""
    return SlotPool(TableModel().new_cache, count=count, capacity=MAX_SEQ_LEN, reuse=reuse)


def reused(engine: TableEngine, prompt: list[int], **inputs: object) -> int:
    """Run a short request and say how much of its prompt was found in a cache."""
    return engine.run(prompt, 2, **inputs).answers[0].reused_tokens


def test_the_next_round_of_a_sequence_recomputes_only_what_is_new() -> None:
    """Everything but the last token of the prompt comes from the cache, and rejected drafts are forgotten."""
    engine = TableEngine()
    first = engine.run(CONVERSATION, 9, draft_input_ids=[0, 0, 0]).ids

    assert reused(engine, CONVERSATION + first) == len(CONVERSATION)
    assert engine.model.caches[0].passes[-2:] == [1, 1]


def test_the_last_token_of_the_prompt_is_always_fed() -> None:
    """Its logits are needed, so the same prompt again reuses one token less than it has."""
    engine = TableEngine()
    engine.run(CONVERSATION, 1)

    assert reused(engine, CONVERSATION) == len(CONVERSATION) - 1


def test_without_reuse_every_prompt_is_computed_again() -> None:
    """enable_kv_cache_reuse false is honoured."""
    engine = TableEngine(reuse=False)

    assert [reused(engine, CONVERSATION) for _ in range(2)] == [0, 0]


def test_a_short_common_beginning_does_not_take_another_conversations_slot() -> None:
    """While a slot is unused, a new prompt takes that one; the first conversation is still cached afterwards."""
    engine = TableEngine(slots=2)
    engine.run(CONVERSATION, 1)
    newcomer = [*CONVERSATION[:2], 6, 6, 6]

    assert reused(engine, newcomer) == 0
    assert reused(engine, CONVERSATION) == len(CONVERSATION) - 1


def test_the_least_recently_used_slot_is_overwritten() -> None:
    """With all slots used and nothing to continue, the oldest goes."""
    engine = TableEngine(slots=2)
    for prompt in (CONVERSATION, OTHER, CONVERSATION, [3, 3, 3, 3]):
        engine.run(prompt, 1)

    assert reused(engine, CONVERSATION) == len(CONVERSATION) - 1
    assert len(engine.model.caches) == 2


def test_slots_are_made_when_first_needed() -> None:
    """One client at a time needs one slot, whatever is allowed; each slot costs memory."""
    engine = TableEngine(slots=8)
    for length in (3, 5, 8):
        engine.run(CONVERSATION[:length], 1)

    assert len(engine.model.caches) == 1


def test_a_lent_slot_is_not_lent_twice() -> None:
    """Two requests with one prompt run on two slots; a third has to wait."""
    slots = pool(2)
    first, _ = slots.acquire(ids(1, 2))
    second, _ = slots.acquire(ids(1, 2))

    assert first is not second
    assert not slots.available
    slots.release(first)
    assert slots.available


def test_a_failed_slot_is_replaced() -> None:
    """What it holds is unknown, so a new cache takes its place and nothing is reused from the old one."""
    slots = pool(1)
    slot, _ = slots.acquire(ids(1, 2, 3))
    slot.forward(ids(1, 2, 3))
    slots.discard()

    again, shared = slots.acquire(ids(1, 2, 3))

    assert again is not slot
    assert shared == 0


def test_a_slot_that_cannot_be_rewound_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request fails, and the pool still has as many slots as before."""
    slots = pool(1)
    slot, _ = slots.acquire(ids(1, 2, 3))
    slot.forward(ids(1, 2, 3))
    slots.release(slot)

    def broken(_cache: TableCache, _length: int) -> None:
        raise RuntimeError("cannot rewind")

    with monkeypatch.context() as patch:
        patch.setattr(TableCache, "rewind", broken)
        with pytest.raises(RuntimeError, match="cannot rewind"):
            slots.acquire(ids(1, 2, 4))
    assert slots.available
    assert slots.acquire(ids(1, 2, 4))[1] == 0
