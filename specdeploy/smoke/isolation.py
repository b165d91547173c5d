"""Calls that can be left behind: no server, however stuck, holds up whoever waits for the smoke test.

A check waits in sockets, in gRPC, or for a pool of threads of its own. A signal ends none of these waits before its
deadline, and what hangs below Python (a name that does not resolve) has none. So a check may run in a thread beside the
main one, which stays free to go.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from specdeploy.smoke.probe import Broken
from specdeploy.system.signals import Endings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

#: What a call may take beyond its limit, to close its client and to be told (seconds).
GRACE_S = 1.0
# How soon a signal ends a wait (seconds).
_LOOK_EVERY_S = 0.05
_NAME = "smoke-check"


class Caller(Protocol):
    """How a call is made: at once, or so that it can be left behind."""

    def __call__(self, work: Callable[[], T], limit_s: float, /) -> T:
        """Return what *work* returns, or raise what it raises."""


def directly(work: Callable[[], T], _limit_s: float, /) -> T:
    """Call in the thread that asks; the deadlines of the work itself are the limit."""
    return work()


@contextlib.contextmanager
def interruptible() -> Iterator[Caller]:
    """Yield a way to call apart. In the block a signal acts where such a call waits, and nowhere else.

    An exception in the middle of a statement could end anywhere: in a lock that is then let go twice, or while results
    are written. The first signal ends the wait; whatever follows until the block is left is not disturbed by another.
    """
    with Endings() as endings:

        def call(work: Callable[[], T], limit_s: float, /) -> T:
            return apart(work, limit_s, endings.raise_if_asked)

        yield call


def apart(work: Callable[[], T], limit_s: float, look: Callable[[], None] | None = None, /) -> T:
    """Call in a thread of its own, and leave it behind when it is late or when *look* raises.

    Args:
        work: What is called.

        limit_s: What it may take (seconds).

        look: Called every now and then while it waits.

    Raises:
        Broken: The work is still not done when its time and ``GRACE_S`` are over.
    """
    done = threading.Event()
    returned: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again by the thread that waits
            raised.append(error)
        finally:
            done.set()

    # A daemon: it must not keep the interpreter from exiting.
    threading.Thread(target=run, name=_NAME, daemon=True).start()
    ends_at = time.monotonic() + limit_s + GRACE_S
    while not done.wait(max(min(_LOOK_EVERY_S, ends_at - time.monotonic()), 0.0)):
        if look is not None:
            look()
        if time.monotonic() >= ends_at:
            raise Broken(f"it does not end: it was left behind {GRACE_S:g} s after its {limit_s:g} s were over")
    if look is not None:
        look()
    if raised:
        raise raised[0]
    return returned[0]


def left_behind() -> bool:
    """Say whether a call is still at work that nobody waits for."""
    return any(thread.name == _NAME for thread in threading.enumerate())
