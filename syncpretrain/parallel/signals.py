"""A stop asked for by a signal, seen between two minibatches."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from syncpretrain.errors import RunInterrupted

__all__ = ["StopRequest", "interrupted_by_sigterm", "stop_on_signals"]


class StopRequest:
    """False until a stop is requested; ``signum`` is the signal that did.

    Where ``interrupts`` returns True when the signal comes, KeyboardInterrupt is raised as well: in
    the main thread, which then waits for something that may never come.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.interrupts: Callable[[], bool] = lambda: False

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.signum is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request to stop; a second one acts as before.

    Only the main thread receives signals; elsewhere, and where the caller has a handler of its
    own, nothing is installed. What was installed is restored at the end.
    """
    request = StopRequest()
    found: dict[int, Any] = {}

    def restore() -> None:
        while found:
            signum, handler = found.popitem()
            signal.signal(signum, handler)

    def ask(signum: int, frame: FrameType | None) -> None:
        request.signum = signum
        restore()
        if request.interrupts():
            raise KeyboardInterrupt

    known = {
        signal.SIGINT: (signal.default_int_handler,),
        signal.SIGTERM: (signal.SIG_DFL, _interrupt),
    }
    try:
        if threading.current_thread() is threading.main_thread():
            for signum, handlers in known.items():
                handler = signal.getsignal(signum)
                if not request() and handler in handlers:
                    found[signum] = handler  # first: from the next line on it may be restored
                    signal.signal(signum, ask)
        yield request
    finally:
        restore()


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Raise RunInterrupted at SIGTERM, as SIGINT raises KeyboardInterrupt.

    For what is done between two uses of :func:`stop_on_signals`. Where the caller has a handler of
    its own, nothing is installed.
    """
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    )
    if is_ours:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise RunInterrupted("the run was stopped", signum=signum)
