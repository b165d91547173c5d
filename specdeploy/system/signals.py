"""Ctrl-C, SIGTERM and SIGHUP, held back until a block can be left cleanly: whoever started something gets to end it.

Knows Python's signal handlers, and how a thread that runs programs is asked to stop, which gets no signals itself. Does
not know what is to be cleaned up; that is in the ``finally`` clauses of others.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType, TracebackType

_ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: So many signals wait.
_PATIENT: Final = 2
_THREAD: Final = threading.local()


class Stopped(BaseException):
    """This thread was asked to stop; unwinds like Ctrl-C."""


@contextlib.contextmanager
def stopped_by(asked: threading.Event) -> Iterator[None]:
    """Let *asked* stop this thread wherever it can be left cleanly, as a signal stops the main thread."""
    _THREAD.asked = asked
    try:
        yield
    finally:
        del _THREAD.asked


class _Handlers:
    """Puts a handler of ours in the place of others for the time of a block; in the main thread, which gets signals.

    ``before`` has those that were there; they are put back at the end of the block.

    Args:
        numbers: The signals.

        ours: The handler.

        replaced: Says of a handler whether ours takes its place.
    """

    def __init__(
        self,
        numbers: Iterable[signal.Signals],
        ours: Callable[[int, FrameType | None], None],
        replaced: Callable[[Any], bool],
    ) -> None:
        self._numbers = numbers
        self._ours = ours
        self._replaced = replaced
        self.before: dict[signal.Signals, Any] = {}

    def put_in(self) -> None:
        """Put ours in the place of those that are replaced."""
        self.before = {}
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if self._replaced(signal.getsignal(number)):
                    self.before[number] = signal.signal(number, self._ours)

    def put_back(self) -> None:
        """Put back what was there."""
        for number, handler in self.before.items():
            signal.signal(number, handler)


class Endings:
    """Notes the signals during the block instead of acting on them in the middle of a statement.

    The block asks with :meth:`raise_if_asked` where it can be left; a signal that comes later is acted on when the
    block is left. Acting means calling the handler that was there before (for SIGINT usually Python's own, which raises
    KeyboardInterrupt), or raising SystemExit(128 + number) where there was none, so that every ``finally`` on the way
    out runs. Ignored signals stay ignored. Handlers run in the main thread only; in any other, the event of
    :func:`stopped_by` takes their place.
    """

    def __init__(self) -> None:
        self._seen: signal.Signals | None = None
        # None: a handler that was not installed from Python, which could not be put back.
        self._handlers = _Handlers(_ENDING_SIGNALS, self._note, lambda there: there not in {signal.SIG_IGN, None})

    def __enter__(self) -> Self:
        self._handlers.put_in()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handlers.put_back()
        if error is None:
            self.raise_if_asked()

    def raise_if_asked(self) -> None:
        """Act on the signal that came, if one did; this returns only when its earlier handler does.

        Raises:
            Stopped: Another thread asked this one to stop.
        """
        asked: threading.Event | None = getattr(_THREAD, "asked", None)
        if asked is not None and asked.is_set():
            raise Stopped
        number, self._seen = self._seen, None
        if number is None:
            return
        handler = self._handlers.before[number]
        if not callable(handler):
            raise SystemExit(128 + number)
        handler(number, None)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._seen = signal.Signals(number)


class Held:
    """Lets Ctrl-C and SIGTERM act as ever until there is something to lose; from then on they wait for the block's end.

    A signal that waited is acted on by :meth:`deliver`, or when the block ends without an error; the third one acts at
    once, so that a block which takes too long can be left. In any other thread
    than the main one, which gets no signals, this does nothing; neither does it for signals without a handler of
    Python's.
    """

    def __init__(self) -> None:
        self.seen: signal.Signals | None = None
        self._holding = False
        self._waiting = 0
        self._handlers = _Handlers((signal.SIGINT, signal.SIGTERM), self._on_signal, callable)

    def __enter__(self) -> Self:
        self.seen, self._holding, self._waiting = None, False, 0
        self._handlers.put_in()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handlers.put_back()
        if error is None:
            self.deliver()

    def hold(self) -> None:
        """Let signals wait from now on."""
        self._holding = True

    def deliver(self, note: str = "") -> None:
        """Act on the signal that came first, if one did.

        Args:
            note: Added to what its handler raises.
        """
        number, self.seen = self.seen, None
        if number is None:
            return
        try:
            self._handlers.before[number](number, None)
        except BaseException as error:
            if note:
                error.add_note(note)
            raise

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._holding and self._waiting < _PATIENT:
            self._waiting += 1
            self.seen = self.seen or signal.Signals(number)
        else:
            self._handlers.before[signal.Signals(number)](number, frame)
