"""``events.jsonl``: a run's events as lines of JSON, and what a replay needs of them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO, Literal

import msgspec

from syncpretrain.errors import ModelFileError
from syncpretrain.events import Event, Progress

__all__ = ["EventLog", "read_reads"]

TIMES = ("time", "started")  # fields on the clock of the run, as opposed to durations


class EventLog:
    """Write each event but Progress as one line of JSON, at once; ``append`` adds to a file.

    ``with EventLog(path) as log:`` gives an observer. A line is an object of the event's class
    name under ``event`` and its fields; times are seconds since the first event, and a number
    that is not finite is null.

    Raises
    ------
    OSError
        If the file cannot be written.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self._path = Path(path)
        self._mode: Literal["ab", "wb"] = "ab" if append else "wb"
        self._file: BinaryIO | None = None
        self._origin: float | None = None

    def __enter__(self) -> EventLog:
        self._file = self._path.open(self._mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __call__(self, event: Event) -> None:
        """Write the event; Progress is left out."""
        if self._file is None:
            raise RuntimeError("EventLog: got an event outside its with block")
        if isinstance(event, Progress):
            return
        if self._origin is None:
            self._origin = event.time
        line = msgspec.json.encode(_as_dict(event, self._origin), enc_hook=float)
        self._file.write(line + b"\n")
        self._file.flush()  # so that a killed run has told what it did


def read_reads(path: str | Path) -> tuple[tuple[int, ...], ...]:
    """Return the upstream version that each layer's each finished epoch used, for a replay.

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
    starts = 0
    for number, line in enumerate(lines, start=1):
        try:
            decoded = msgspec.json.decode(line, type=_Line)
            starts += decoded.event == "RunStarted"
            _take(decoded, reads, resumed=starts > 1)
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            raise ModelFileError(
                f"{path}, line {number}: not an event of a recorded run ({error})"
            ) from None
    if not reads:
        raise ModelFileError(
            f"{path}, line {len(lines) + 1}: the file ends before a run has started"
        )
    return tuple(map(tuple, reads))


class _Line(msgspec.Struct):
    """What a replay wants to know of a line; other fields are ignored."""

    event: str
    layers: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()
    layer: int = 0
    epoch: int = 0
    reads: int = -1


def _take(line: _Line, reads: list[list[int]], *, resumed: bool) -> None:
    """Add a line to the reads of each layer; ValueError if it cannot follow those before it.

    A resumed run does again what came after its checkpoint.
    """
    if line.event == "RunStarted":
        if len(line.layers) < 2:
            raise ValueError("RunStarted without layers")
        if reads and len(reads) != len(line.layers) - 1:
            raise ValueError("a run of other layers starts")
        reads.extend([] for _ in line.layers[1 + len(reads) :])  # those of a resumed run go on
    elif line.event == "EpochFinished":
        if not 1 <= line.layer <= len(reads):
            raise ValueError(f"got layer {line.layer} of {len(reads)}")
        mine = reads[line.layer - 1]
        least = 1 if resumed else len(mine) + 1
        if not least <= line.epoch <= len(mine) + 1:
            raise ValueError(f"got epoch {line.epoch}, expected {len(mine) + 1}")
        del mine[line.epoch - 1 :]
        _check_version(line, reads)
        mine.append(line.reads)


def _check_version(line: _Line, reads: list[list[int]]) -> None:
    # version 0 of layer 0 is the data; above, a version must have been published to be read
    first, last = (0, 0) if line.layer == 1 else (1, len(reads[line.layer - 2]))
    if not first <= line.reads <= last:
        raise ValueError(f"layer {line.layer} reads version {line.reads}, which was not there")


def _as_dict(event: Event, origin: float) -> dict[str, Any]:
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    for name in TIMES:
        if name in values:
            values[name] = round(values[name] - origin, 6)
    return {"event": type(event).__name__, **values}
