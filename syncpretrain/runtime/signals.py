"""A stop asked for by a signal, seen between two minibatches."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["StopRequest", "stop_on_signals"]


class StopRequest:
    """False until somebody asks to stop; ``signum`` is the signal that did."""

    def __init__(self) -> None:
        self.signum: int | None = None

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

    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    try:
        if threading.current_thread() is threading.main_thread():
            for signum, default in defaults.items():
                if not request() and signal.getsignal(signum) == default:
                    found[signum] = default  # first: from the next line on it may be restored
                    signal.signal(signum, ask)
        yield request
    finally:
        restore()
