"""``trace.json``: who worked when, for chrome://tracing, Perfetto and Speedscope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from syncpretrain.events import (
    DriftJudged,
    EpochFinished,
    Event,
    FinetuneEpochFinished,
    FinetuneStarted,
    RunStarted,
)

__all__ = ["write_trace"]


def write_trace(events: Sequence[Event], path: str | Path) -> None:
    """Write the epochs of a run in the Chrome trace format, one row a layer.

    Parameters
    ----------
    events : sequence of Event
        Events in the order they happened, such as ``History().events``.
    path : str or Path
        The JSON file; one that is there is replaced.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    origin = events[0].time if events else 0.0
    starts = [x for x in events if isinstance(x, RunStarted)]
    row = max((len(x.epochs) for x in starts), default=0) + 1
    versions = all(x.handoff == "epoch" for x in starts)
    entries = [entry for event in events for entry in _entries(event, origin, row, versions)]
    trace = {"displayTimeUnit": "ms", "traceEvents": entries}
    Path(path).write_bytes(msgspec.json.encode(trace, enc_hook=float))


def _entries(
    event: Event, origin: float, finetune_row: int, versions: bool
) -> Iterator[dict[str, Any]]:
    match event:
        case RunStarted(layers=layers):
            for layer in range(1, len(layers)):
                yield from _row(layer, f"layer {layer} {layers[layer - 1]}-{layers[layer]}")
        case EpochFinished(layer=layer, epoch=epoch, reads=reads, started=started):
            start = started - origin
            name = f"epoch {epoch} (version {reads})" if versions else f"epoch {epoch}"
            yield _slice(layer, name, start, event.time - started, _errors(event))
            if event.transform_seconds > 0:
                yield _slice(layer, "transform", start, event.transform_seconds, {})
        case DriftJudged(layer=layer):
            instant = {"ph": "i", "s": "t", "ts": round((event.time - origin) * 1e6)}
            yield {**instant, "pid": 1, "tid": layer, "name": str(event)}
        case FinetuneStarted():
            yield from _row(finetune_row, "fine-tuning")
        case FinetuneEpochFinished(epoch=epoch, seconds=seconds):
            start = event.time - seconds - origin
            yield _slice(finetune_row, f"epoch {epoch}", start, seconds, _errors(event))


def _row(row: int, name: str) -> Iterator[dict[str, Any]]:
    common = {"ph": "M", "pid": 1, "tid": row}
    yield {**common, "name": "thread_name", "args": {"name": name}}
    yield {**common, "name": "thread_sort_index", "args": {"sort_index": row}}


def _slice(
    row: int, name: str, start: float, seconds: float, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": round(start * 1e6), "dur": round(seconds * 1e6)}  # microseconds
    return {"ph": "X", "pid": 1, "tid": row, "name": name, **times, "args": args}


def _errors(event: EpochFinished | FinetuneEpochFinished) -> dict[str, float | None]:
    errors = {"train_error": event.train_error, "validation_error": event.validation_error}
    change = event.drift if isinstance(event, EpochFinished) else None
    return errors if change is None else errors | {"drift": change}
