"""A stop asked for by a signal, seen between two minibatches.

Guarantees: only the first signal is a request; a second one ends the program as if nothing were
installed. Handlers of the caller are left alone, and all others are restored however the block
ends. The exception is SIGHUP, which a terminal that closes may send twice: after the first one it
is ignored, so that the second one does not end a program that saves what was learned.

Assumption: Python runs handlers in the main thread, between two of its instructions. So a handler
may set plain attributes that other threads read, and takes no lock.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

from syncpretrain.errors import RunInterrupted

ENDING = (signal.SIGTERM, signal.SIGHUP)  # end a program that has no handler for them
STOPPING = (signal.SIGINT, *ENDING)


class StopRequest:
    """False until a stop is requested; ``signum`` is the signal that requested it.

    KeyboardInterrupt is raised as well if ``interrupts`` returns True when the signal comes: the
    main thread then waits for something that may never come.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.interrupts: Callable[[], bool] = lambda: False

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.signum is not None

    def either(self, stop: Callable[[], bool] | None) -> Callable[[], bool]:
        """Return what says whether this or another one asks to stop."""
        return self if stop is None else lambda: self() or stop()


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first of the signals STOPPING into a request to stop; a second one acts as before.

    Only the main thread receives signals; elsewhere, and where the caller has a handler of its
    own, nothing is installed. What was installed is restored at the end.
    """
    request = StopRequest()
    found: dict[int, Any] = {}

    def restore() -> None:
        # Emptied as it is used: the handler and the end of the block may both come here.
        while found:
            signum, handler = found.popitem()
            signal.signal(signum, handler)

    def ask(signum: int, frame: FrameType | None) -> None:
        request.signum = signum
        if signum == signal.SIGHUP:
            found.pop(signum, None)
            signal.signal(signum, signal.SIG_IGN)
        # From here on a second signal acts as it did before: the user need not wait.
        restore()
        if request.interrupts():
            raise KeyboardInterrupt

    known: dict[int, tuple[Any, ...]] = {signal.SIGINT: (signal.default_int_handler,)}
    known |= dict.fromkeys(ENDING, (signal.SIG_DFL, _interrupt))
    try:
        if threading.current_thread() is threading.main_thread():
            for signum, handlers in known.items():
                handler = signal.getsignal(signum)
                if not request() and handler in handlers:
                    # Recorded before it is replaced: a signal may come between the two lines,
                    # and whatever is installed must be restored.
                    found[signum] = handler
                    signal.signal(signum, ask)
        yield request
    finally:
        restore()


@contextmanager
def handled_by(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Handle signals by the given handlers, in the main thread; restore the former ones at the end.

    Only the main thread receives signals; elsewhere nothing is installed.
    """
    found: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for signum, handler in handlers.items():
                # Recorded before it is replaced: a signal may come between the two lines.
                found[signum] = signal.getsignal(signum)
                signal.signal(signum, handler)
        yield
    finally:
        for signum, handler in found.items():
            signal.signal(signum, handler)


def interrupted_by_ending() -> AbstractContextManager[None]:
    """Raise RunInterrupted at SIGTERM and SIGHUP in a block, as SIGINT raises KeyboardInterrupt.

    For work between two uses of :func:`stop_on_signals`. A signal is left alone if the caller has a
    handler of its own for it.
    """
    usual = [signum for signum in ENDING if signal.getsignal(signum) == signal.SIG_DFL]
    return handled_by(dict.fromkeys(usual, _interrupt))


def _interrupt(signum: int, frame: FrameType | None) -> None:
    if signum == signal.SIGHUP:
        signal.signal(signum, signal.SIG_IGN)
    raise RunInterrupted("the run was stopped", signum=signum)
