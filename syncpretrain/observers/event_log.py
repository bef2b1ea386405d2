"""Files of a run's events: ``events.jsonl``, with a replay's reads, and ``trace.json``.

chrome://tracing, Perfetto and Speedscope show a trace: who worked when.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from io import SEEK_END, FileIO
from pathlib import Path
from typing import Annotated, Any

import msgspec

from syncpretrain import events
from syncpretrain.errors import ModelFileError
from syncpretrain.events import Event, Progress
from syncpretrain.observers.figures import errors_of

CLOCK_FIELDS = ("time", "started")  # fields on the clock of the run, as opposed to durations


class EventLog:
    """Observer that writes each event but Progress as one line of JSON, at once.

    ``with EventLog(path) as log:`` opens the file. A line is an object with the event's class name
    under ``event``, and its fields; times are seconds since the first event, and a number that is
    not finite is null. ``append`` adds to a file; half a line at its end, left by a process or
    machine that died, is dropped first.

    Events wait in memory while the file cannot be opened or the disk takes none, and are written as
    soon as it takes them; ``report`` is called with a sentence about it, once.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        append: bool = False,
        report: Callable[[str], Any] = lambda message: None,
    ) -> None:
        self._path = Path(path)
        self._append, self._report = append, report
        self._file: FileIO | None = None
        self._is_entered = False
        self._origin: float | None = None
        self._waiting: deque[bytes] = deque()
        self._end = 0  # bytes up to the end of the last whole line
        self._has_warned = False

    def __enter__(self) -> EventLog:
        self._is_entered = True
        self._write()
        return self

    def __exit__(self, *ended: object) -> None:
        self._write()
        if self._waiting:
            lost = len(self._waiting)
            self._report(f"warning: {self._path} lacks the last {lost} events of this run")
        if self._file is not None:
            self._file.close()
        self._file, self._is_entered = None, False

    def __call__(self, event: Event) -> None:
        """Write the event; Progress is left out."""
        if not self._is_entered:
            raise RuntimeError("EventLog: got an event outside its with block")
        if isinstance(event, Progress):
            return
        if self._origin is None:
            self._origin = event.time
        line = msgspec.json.encode(as_dict(event, self._origin), enc_hook=float)
        self._waiting.append(line + b"\n")
        self._write()

    def flush_to_disk(self) -> None:
        """Flush the lines to the disk, before a file is written that relies on them."""
        if self._file is not None:
            with suppress(OSError):  # a pipe has no disk; the lines are written all the same
                os.fsync(self._file.fileno())

    def _opened(self) -> FileIO:
        """Return the file, ready for the next line."""
        if not self._append:
            return FileIO(self._path, "w")
        file = FileIO(self._path, "a")
        try:
            self._end = _whole_lines(self._path)
            file.truncate(self._end)
        except BaseException:
            file.close()
            raise
        return file

    def _write(self) -> None:
        """Write the lines that wait, unbuffered, so that the log of a killed run is complete."""
        try:
            self._file = file = self._file or self._opened()
            while self._waiting:
                rest = memoryview(self._waiting[0])
                while rest:
                    rest = rest[file.write(rest) :]
                self._end += len(self._waiting.popleft())
        except OSError as error:
            if self._file is not None:
                with suppress(OSError):  # on a full disk half a line may have been written
                    self._file.seek(self._end)  # or zeros would fill what is cut off
                    self._file.truncate()
            if not self._has_warned:
                self._has_warned = True
                onward = "the run goes on, and its events are written once they can be"
                reason = f"{error.strerror or error}; {onward}"
                self._report(f"warning: {self._path} could not be written: {reason}")


def _whole_lines(path: Path) -> int:
    """Return where the last whole line of a file ends."""
    with path.open("rb") as file:
        if not file.seek(0, SEEK_END):  # an empty file cannot be mapped
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.rfind(b"\n") + 1


def read_reads(path: str | Path) -> tuple[tuple[int, ...], ...]:
    """Return the version of the layer below that each finished epoch read, for a replay.

    Parameters
    ----------
    path : str or Path
        An ``events.jsonl`` that :class:`EventLog` wrote.

    Returns
    -------
    tuple of one tuple a layer
        Entry k of layer l is the version of layer l - 1 that epoch k + 1 trained on.

    Raises
    ------
    ModelFileError
        If the file is missing, empty or damaged; the message names the line.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot read these events: {error}") from error
    reads: list[list[int]] = []
    starts, repeats = 0, False
    for number, line in enumerate(lines, start=1):
        try:
            decoded = msgspec.json.decode(line, type=_Line)
            if decoded.event == "RunStarted":
                _begin_reads(decoded, reads)
                repeats = starts > 0 and decoded.past_reads is None
                starts += 1
            else:
                _add_read(decoded, reads, repeats=repeats)
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            what = f"not an event of a recorded run ({error})"
            raise ModelFileError(f"{path}, line {number}: {what}") from None
    if not reads:
        end = f"{path}, line {len(lines) + 1}"
        raise ModelFileError(f"{end}: the file ends before a run has started")
    return tuple(map(tuple, reads))


class _Line(msgspec.Struct):
    """The fields of a line that a replay reads; others are ignored."""

    event: str
    layers: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()
    past_reads: tuple[tuple[int, ...], ...] | None = None  # None in the oldest logs
    layer: int = 0
    epoch: int = 0
    reads: int = -1


def _begin_reads(line: _Line, reads: list[list[int]]) -> None:
    """Begin the reads of a run: empty, or with the reads in its checkpoint.

    Records of later epochs are dropped. The oldest logs do not say what a checkpoint contained;
    there the resumed run overwrites the epochs that it repeats.
    """
    depth = len(line.layers) - 1
    if depth < 1:
        raise ValueError("RunStarted without layers")
    if reads and len(reads) != depth:
        raise ValueError("a run of other layers starts")
    if line.past_reads is None:
        reads.extend([] for _ in range(depth - len(reads)))
        return
    past = line.past_reads or ((),) * depth
    if len(past) != depth:
        raise ValueError(f"got the past of {len(past)} layers, expected {depth}")
    reads[:] = [[] for _ in past]
    for layer, versions in enumerate(past, start=1):
        for version in versions:
            _check_version(layer, version, reads)
            reads[layer - 1].append(version)


def _add_read(line: _Line, reads: list[list[int]], *, repeats: bool) -> None:
    """Add the read of a finished epoch; ValueError if it cannot follow the reads before it.

    With ``repeats`` it may replace an earlier record of the same epoch.
    """
    if line.event == "EpochFinished":
        if not 1 <= line.layer <= len(reads):
            raise ValueError(f"got layer {line.layer} of {len(reads)}")
        mine = reads[line.layer - 1]
        least = 1 if repeats else len(mine) + 1
        if not least <= line.epoch <= len(mine) + 1:
            raise ValueError(f"got epoch {line.epoch}, expected {len(mine) + 1}")
        del mine[line.epoch - 1 :]
        _check_version(line.layer, line.reads, reads)
        mine.append(line.reads)


def _check_version(layer: int, version: int, reads: list[list[int]]) -> None:
    # version 0 of layer 0 is the data; above, a version must have been published to be read
    first, last = (0, 0) if layer == 1 else (1, len(reads[layer - 2]))
    if not first <= version <= last:
        raise ValueError(f"layer {layer} reads version {version}, which was not there")


def as_dict(event: Event, origin: float) -> dict[str, Any]:
    """Return an event as it is written: its kind, and its fields on a clock that begins at 0."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    for name in CLOCK_FIELDS:
        if name in values:
            values[name] = round(values[name] - origin, 6)
    return {"event": type(event).__name__, **values}


def write_trace(recorded: Sequence[Event], path: str | Path) -> None:
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
    common = origin, finetune_row, all(x.handoff == "epoch" for x in starts)
    entries = [entry for event in recorded for entry in _entries(event, *common)]
    trace = {"displayTimeUnit": "ms", "traceEvents": entries}
    # Errors may be NumPy's numbers, which JSON takes as floats alone.
    Path(path).write_bytes(msgspec.json.encode(trace, enc_hook=float))


def _entries(
    event: Event, origin: float, finetune_row: int, has_versions: bool
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
            yield _slice(layer, name, start, event.time - started, errors_of(event))
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
            yield _slice(finetune_row, f"epoch {epoch}", start, seconds, errors_of(event))


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
