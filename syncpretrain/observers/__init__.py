"""Observers turn events into progress, history and files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from syncpretrain.events import Observer

__all__ = ["observing"]


@contextmanager
def observing(verbose: bool, *, live: bool | None = None) -> Iterator[list[Observer]]:
    """Yield the observers that show progress on standard error: none unless ``verbose``.

    ``live`` redraws lines in place where standard output is a terminal too; None does wherever
    lines can be redrawn.
    """
    if not verbose:
        yield []
        return
    from rich.console import Console  # a silent call does not need it

    from syncpretrain.observers.progress import progress_observer

    console = Console(stderr=True)
    if live is None:
        widgets = all(find_spec(name) is not None for name in ("IPython", "ipywidgets"))
        live = widgets if console.is_jupyter else sys.stderr.isatty()
    else:
        live = live and sys.stdout.isatty() and sys.stderr.isatty()
    with progress_observer(console, live=live) as observer:
        yield [observer]
