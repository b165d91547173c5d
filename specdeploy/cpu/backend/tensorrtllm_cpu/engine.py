"""Sequence slots: key-value caches that are kept between requests and taken up again by the prefix they hold.

A decoder calls the engine once per round with the whole sequence so far, so nearly all of a request is usually in some
slot already. Knows which ids a cache holds and which cache suits a request. Does not know ONNX, sampling or Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class KvCache(Protocol):
    """One sequence inside a loaded model, with the keys and values of the tokens fed so far."""

    def rewind(self, length: int) -> None:
        """Forget all tokens but the first ``length``."""

    def append(self, ids: NDArray[np.int32]) -> None:
        """Feed ``ids`` after what is there: one forward pass."""

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Return ``[rows, vocab]`` after the last ``rows`` tokens of the last ``append``; valid until the next one."""


class Slot:
    """One cache and the ids in it."""

    def __init__(self, cache: KvCache, capacity: int) -> None:
        self._cache = cache
        self._ids = np.empty(capacity, np.int32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def common_prefix(self, ids: NDArray[np.int32]) -> int:
        """Return how many leading tokens of ``ids`` the cache holds."""
        count = min(self._length, len(ids))
        differs = np.flatnonzero(self._ids[:count] != ids[:count])
        return int(differs[0]) if len(differs) else count

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens only."""
        if length != self._length:
            self._cache.rewind(length)
            self._length = length

    def forward(self, ids: NDArray[np.int32]) -> None:
        """Feed ``ids``: one forward pass."""
        self._cache.append(ids)
        self._ids[self._length : self._length + len(ids)] = ids
        self._length += len(ids)

    def logits(self, rows: int) -> NDArray[np.float32]:
        """Return ``[rows, vocab]`` after the last ``rows`` tokens fed; valid until the next ``forward``."""
        return self._cache.logits(rows)


class SlotPool:
    """At most ``count`` slots, made when first needed; each is lent to one request at a time.

    Args:
        new_cache: Makes an empty cache; may raise when memory is short.
        count: The most sequences at once.
        capacity: Tokens per slot.
        reuse: Whether a request may start from what a slot still holds.
    """

    def __init__(self, new_cache: Callable[[], KvCache], *, count: int, capacity: int, reuse: bool = True) -> None:
        self._new_cache = new_cache
        self._capacity = capacity
        self._reuse = reuse
        self._unmade = count
        self._free: list[Slot] = []  # least recently used first

    @property
    def available(self) -> bool:
        """Whether ``acquire`` would find a slot now."""
        return bool(self._free) or self._unmade > 0

    def acquire(self, prompt: NDArray[np.int32]) -> tuple[Slot, int]:
        """Lend a slot for ``prompt``, rewound to the prefix they share, and say how many tokens that is.

        A slot is continued when it holds more of the prompt than of anything else: then its sequence is most likely
        the prompt's own, earlier one. Otherwise a slot never used is made, or the least recently used one is
        overwritten, so that a short common beginning (a chat template, say) does not cost another conversation its
        cache. The last token of the prompt is never taken from a cache, since its logits are needed.
        """
        slot, shared = self._choose(prompt)
        kept = min(shared, len(prompt) - 1) if self._reuse else 0
        try:
            slot.rewind(kept)
        except Exception:
            self.discard()
            raise
        return slot, kept

    def _choose(self, prompt: NDArray[np.int32]) -> tuple[Slot, int]:
        """Take the slot to continue or to overwrite out of the pool; with it comes the length of the common prefix."""
        shared = [slot.common_prefix(prompt) for slot in self._free]
        best = max(range(len(shared)), key=shared.__getitem__, default=None)
        continues = best is not None and 2 * shared[best] > len(self._free[best])
        if best is None or (self._unmade and not continues):
            return self._make(), 0
        chosen = best if continues else 0
        return self._free.pop(chosen), shared[chosen]

    def _make(self) -> Slot:
        """Return a new, empty slot."""
        slot = Slot(self._new_cache(), self._capacity)
        self._unmade -= 1
        return slot

    def release(self, slot: Slot) -> None:
        """Take ``slot`` back with what it holds."""
        self._free.append(slot)

    def discard(self) -> None:
        """Take back a slot that failed: what it holds is unknown, so another one is made in its place when needed."""
        self._unmade += 1
