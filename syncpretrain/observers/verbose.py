"""Progress of a call from Python, printed as the command line prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from syncpretrain.events import Observer

__all__ = ["observing"]


@contextmanager
def observing(verbose: bool) -> Iterator[list[Observer]]:
    """Yield the observers that print progress on standard error, if any is wanted."""
    if not verbose:
        yield []
        return
    from rich.console import Console  # a silent call does without

    from syncpretrain.observers.progress import progress_observer

    with progress_observer(Console(stderr=True), live=sys.stderr.isatty()) as observer:
        yield [observer]
