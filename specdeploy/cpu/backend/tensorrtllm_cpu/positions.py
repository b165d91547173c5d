"""The positions of one forward pass: at each, what the target (and the draft model) says comes next.

Position 0 follows the last known token, position ``i`` follows the first ``i`` drafts, as if they were accepted. All
that depends on what came before (penalties, bad words, minimum length) is applied with that history, so a verified
token is chosen exactly as a plainly decoded one would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tensorrtllm_cpu import sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Positions:
    """Logits ``rows`` ``[len(drafts) + 1, vocab]`` and what is needed to choose by them.

    ``draft_rows`` is ``[len(drafts), vocab]``, or has no rows when the draft model's logits are not known. ``known``
    are all ids before position 0, of which ``generated`` are new. ``uniform`` gives random numbers in [0, 1).
    """

    rows: NDArray[np.float32]
    drafts: tuple[int, ...]
    draft_rows: NDArray[np.float32]
    known: NDArray[np.int32]
    generated: int
    params: sampling.SamplingParams
    uniform: Callable[[], float]

    def adjusted(self, position: int) -> NDArray[np.float32]:
        """Return the target's adjusted logits, ``[vocab]``."""
        return self._adjust(self.rows[position], position)

    def most_likely(self, position: int) -> int:
        """Return the target's most likely token."""
        return sampling.most_likely(self.adjusted(position))

    def drawn(self, position: int) -> int:
        """Return a token drawn from the target's distribution; one random number each time."""
        return sampling.draw(self.target(position), self.uniform())

    def target(self, position: int) -> NDArray[np.float64]:
        """Return the target's probabilities, ``[vocab]``."""
        return sampling.distribution(self.adjusted(position), self.params)

    def draft(self, position: int) -> NDArray[np.float64]:
        """Return the draft model's probabilities, made from its logits as the target's are from its own."""
        return sampling.distribution(self._adjust(self.draft_rows[position], position), self.params)

    def _adjust(self, row: NDArray[np.float32], position: int) -> NDArray[np.float32]:
        """Adjust one row by the history of its position."""
        if not self.params.adjusts:
            return row
        history = np.concatenate([self.known, np.asarray(self.drafts[:position], np.int32)])
        return sampling.adjust(row, history, self.generated + position, self.params)
