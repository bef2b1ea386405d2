"""``trace.json``: who worked when, for chrome://tracing, Perfetto and Speedscope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from syncpretrain import events


def write_trace(recorded: Sequence[events.Event], path: str | Path) -> None:
    """Write the epochs of a run in the Chrome trace format.

    Each layer has a row (a thread of the format), and fine-tuning has one below them.

    Parameters
    ----------
    recorded : sequence of Event
        Events in the order they happened, such as ``History().events``.
    path : str or Path
        The JSON file; one that is there is replaced.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    origin = recorded[0].time if recorded else 0.0
    starts = [x for x in recorded if isinstance(x, events.RunStarted)]
    finetune_row = max((len(x.epochs) for x in starts), default=0) + 1
    # Layers that hand over minibatches read no versions.
    has_versions = all(x.handoff == "epoch" for x in starts)
    common = origin, finetune_row, has_versions
    entries = [entry for event in recorded for entry in _entries(event, *common)]
    trace = {"displayTimeUnit": "ms", "traceEvents": entries}
    # Errors may be NumPy's numbers, which JSON takes as floats alone.
    Path(path).write_bytes(msgspec.json.encode(trace, enc_hook=float))


def _entries(
    event: events.Event, origin: float, finetune_row: int, has_versions: bool
) -> Iterator[dict[str, Any]]:
    # "ph" is the kind of an entry: "M" describes a row, "X" has a begin and a duration, "i" is an
    # instant, which "s": "t" draws in its row alone. "tid" is the row.
    match event:
        case events.RunStarted(layers=layers):
            for layer in range(1, len(layers)):
                yield from _named_row(layer, f"layer {layer} {layers[layer - 1]}-{layers[layer]}")
        case events.EpochFinished(layer=layer, epoch=epoch, reads=version, started=started):
            start = started - origin
            name = f"epoch {epoch} (version {version})" if has_versions else f"epoch {epoch}"
            yield _slice(layer, name, start, event.time - started, _figures(event))
            # Within the epoch: making its input is its first part.
            if event.transform_seconds > 0:
                yield _slice(layer, "transform", start, event.transform_seconds, {})
        case events.DriftJudged(layer=layer):
            instant = {"ph": "i", "s": "t", "ts": round((event.time - origin) * 1e6)}
            yield {**instant, "pid": 1, "tid": layer, "name": str(event)}
        case events.FinetuneStarted():
            yield from _named_row(finetune_row, "fine-tuning")
        case events.FinetuneEpochFinished(epoch=epoch, seconds=seconds):
            start = event.time - seconds - origin
            yield _slice(finetune_row, f"epoch {epoch}", start, seconds, _figures(event))


def _named_row(row: int, name: str) -> Iterator[dict[str, Any]]:
    """Yield the entries that name a row, and put it at its place from the top."""
    common = {"ph": "M", "pid": 1, "tid": row}
    yield {**common, "name": "thread_name", "args": {"name": name}}
    yield {**common, "name": "thread_sort_index", "args": {"sort_index": row}}


def _slice(
    row: int, name: str, start: float, seconds: float, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": round(start * 1e6), "dur": round(seconds * 1e6)}  # microseconds
    return {"ph": "X", "pid": 1, "tid": row, "name": name, **times, "args": args}


def _figures(event: events.EpochFinished | events.FinetuneEpochFinished) -> dict[str, float | None]:
    """Return the errors after an epoch, and the drift of the layer if it was measured."""
    errors = {"train_error": event.train_error, "validation_error": event.validation_error}
    drift = event.drift if isinstance(event, events.EpochFinished) else None
    return errors if drift is None else errors | {"drift": drift}
