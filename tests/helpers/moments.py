"""Observers that act at a known moment of a run, and what a run has told in the end."""

import time
from collections.abc import Iterable

from syncpretrain.events import Event, Notice


class At:
    """Act once, at the n-th event of a kind, counting only those with the given values."""

    def __init__(self, kind, act, n=1, **values):
        self._kind, self._act, self._left, self._values = kind, act, n, values
        self.since = None  # when it acted

    def __call__(self, event):
        names = self._values
        found = isinstance(event, self._kind) and all(getattr(event, x) == names[x] for x in names)
        self._left -= found
        if found and not self._left:
            self.since = time.monotonic()
            self._act()


def notices_of(events: Iterable[Event]) -> list[str]:
    """Return the messages of the notices among events."""
    return [event.message for event in events if isinstance(event, Notice)]


def told_by(function, *arguments, observers=(), **options):
    """Call a function that takes observers; return what it returns, and every notice."""
    events = []
    report = function(*arguments, observers=[*observers, events.append], **options)
    return report, notices_of(events)
