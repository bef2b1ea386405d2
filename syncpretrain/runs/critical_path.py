"""The critical path of a run: the epochs that decided when its pretraining ended."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from syncpretrain.runs.timeline import EpochSpan, Timeline

__all__ = ["critical_path", "path_seconds"]

CLOCK_ERROR = 0.002  # of a run: an epoch may seem to begin before the message that lets it


def critical_path(timeline: Timeline) -> tuple[EpochSpan, ...]:
    """Return the epochs on the critical path, from the first to the last.

    The last one ended last. Each of the others is the one whose end the next one waited for: the
    epoch before it of the same layer, the one that published the version that it reads, or, where
    all workers or all buffers were taken, the one that ended just before it began. A streamed run,
    whose layers wait for minibatches, has none.
    """
    if timeline.is_streamed or not timeline.spans:
        return ()
    slack = CLOCK_ERROR * timeline.seconds
    by_end = sorted(timeline.spans, key=lambda span: (span.end, span.layer))
    path = [by_end[-1]]
    while (before := _waited_for(path[-1], by_end, slack)) is not None:
        path.append(before)
    return tuple(reversed(path))


def _waited_for(span: EpochSpan, by_end: Sequence[EpochSpan], slack: float) -> EpochSpan | None:
    """Return the epoch that ended last before another began; of several the nearest related."""
    able: list[EpochSpan] = []
    for place in reversed(range(bisect_right(by_end, span.start + slack, key=attrgetter("end")))):
        before = by_end[place]
        if able and before.end < able[0].end - slack:
            break
        if before.start < span.start:
            able.append(before)
    return max(able, key=lambda x: (_relation(x, span), x.end, x.layer), default=None)


def _relation(before: EpochSpan, span: EpochSpan) -> int:
    """Return how nearly two epochs are related: the same layer, a version that is read, or not."""
    if before.layer == span.layer:
        return 2
    return int((before.layer, before.epoch) == (span.layer - 1, span.reads))


def path_seconds(path: Sequence[EpochSpan], layers: int) -> list[float]:
    """Return the seconds of a path in each layer."""
    return [sum(x.seconds for x in path if x.layer == n) for n in range(1, layers + 1)]
