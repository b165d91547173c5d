"""Lets a short act run to its end although its caller is being stopped: half of a clean-up is none.

Knows that the ways to stop a thread of ours (``system.signals``) each reach one thread only. Does not know the act.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from specdeploy.system.signals import Endings

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")


def undisturbed(act: Callable[[], _Result]) -> _Result:
    """Return what *act* returns, or raise what it raises, after it has ended by itself.

    It runs in a thread of its own, which gets no signals and which nobody asks to stop. A signal that came meanwhile is
    acted on afterwards.
    """
    with Endings(), ThreadPoolExecutor(max_workers=1) as executor:
        future = executor.submit(act)
    return future.result()
