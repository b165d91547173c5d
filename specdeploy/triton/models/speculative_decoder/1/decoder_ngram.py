"""Drafts that are looked up in the text so far: what followed its last tokens when they came before.

Prompt lookup (github.com/apoorvumang/prompt-lookup-decoding): free of a draft model, and good where an answer repeats
its prompt, as in editing and summarising. The drafts have no probabilities; the target verifies them by token match,
which is exact for any draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from decoder_loop import NO_DRAFT, Draft

if TYPE_CHECKING:
    from decoder_loop import Ids

_LEAST: Final = 1


class NgramDraft:
    """Proposes what followed the longest ending of the text that occurred before.

    Of several such places it takes the latest that as many tokens follow as are wanted, else the first, which most do.

    Args:
        longest: Tokens of the longest ending that is looked for.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest

    def __call__(self, ids: Ids, count: int, *, seed: int) -> Draft:
        """Propose up to ``count`` tokens that continue ``ids``; none when its ending is new."""
        del seed  # nothing is drawn
        for length in range(min(self._longest, ids.size - 1), _LEAST - 1, -1):
            following = _following(ids, length, count)
            if following is not None:
                return Draft(ids=ids[following : following + count].copy())
        return NO_DRAFT


def _following(ids: Ids, length: int, count: int) -> int | None:
    """Return where the tokens begin that followed the last ``length`` ones before; None when those are new."""
    windows = np.lib.stride_tricks.sliding_window_view(ids[:-1], length)
    following = np.flatnonzero((windows == ids[-length:]).all(axis=1)) + length
    if not following.size:
        return None
    enough = following[following + count <= ids.size]
    return int(enough[-1] if enough.size else following[0])
