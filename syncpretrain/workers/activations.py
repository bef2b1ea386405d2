"""Rows of a layer's input, and the activations of a version from the activations below."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from syncpretrain.backends.base import Backend
from syncpretrain.data.sparse_rows import run_of
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import PhaseRunner, in_turn
from syncpretrain.models.layer import Layer

CHUNK_ROWS = 1000  # rows of a chunk: some ms of work
DEVICE_ROWS = 16_384  # the same on a device, where a chunk takes the interpreter some 50 us
DEVICE_NUMBERS = 2**25  # numbers of a chunk on a device, 128 MB: bytes become float32 in a copy
CHUNKS_AT_ONCE = 4  # chunks between two calls of ``stop``


class Split(NamedTuple):
    """Training and validation rows of a layer's input; both go through the same layers.

    The training rows of the lowest layer may be sparse.
    """

    train: Array
    validation: Array


Arrays = Callable[[int, int], Split]  # arrays by layer and number; layer 0 is the data


@dataclass(frozen=True, slots=True)
class ActivationSource:
    """Place of the activations of a version of a layer, or the way to compute them.

    ``layer`` 0 is the data. ``buffer`` is the number of the layer's array. If ``snapshot`` is not
    None, the reader first fills the array through the snapshot, from the array ``buffer_below`` of
    the layer below.
    """

    layer: int
    buffer: int = 0
    snapshot: Layer | None = None
    buffer_below: int = 0

    def activations(self, arrays: Arrays, *how: Any) -> Split | None:
        """Return the activations, or None if the reader was asked to stop.

        ``how`` are the arguments of :func:`transform` from ``stop`` on.
        """
        target = arrays(self.layer, self.buffer)
        if self.snapshot is None:
            return target
        below = arrays(self.layer - 1, self.buffer_below)
        return target if transform([self.snapshot], below, target, *how) else None


def chunk_rows(backend: Backend | None, widths: Sequence[int]) -> int:
    """Return the rows of a chunk for a backend that computes activations; None is NumPy's.

    ``widths`` are the widths of the data and of all layers of a run: activations that are computed
    again from the data have the same bits only with the same chunks in all layers.
    """
    if backend is None or not backend.devices():
        return CHUNK_ROWS
    return max(CHUNK_ROWS, min(DEVICE_ROWS, DEVICE_NUMBERS // max(widths)))


def transform(
    snapshots: Sequence[Layer],
    source: Split,
    target: Split,
    stop: Callable[[], bool],
    run: PhaseRunner = in_turn,
    reader: Backend | None = None,
    rows: int = CHUNK_ROWS,
) -> bool:
    """Fill ``target`` through layers from ``source``; return False if ``stop`` turned true.

    The bits of a chunk of ``rows`` do not depend on the thread that computes it. ``reader`` is the
    backend of ``target``, if the snapshots and ``source`` may be on another device.
    """
    if reader is not None:
        snapshots = [snapshot.to(reader.asarray) for snapshot in snapshots]
        source = Split(*map(reader.to_device_if_fits, source))
    chunks = list(_chunks(source, target, rows))
    first = 0

    def fill(i: int) -> None:
        rows_in, rows_out = chunks[first + i]
        if reader is not None:
            rows_in = reader.asarray(rows_in)
        for snapshot in snapshots[:-1]:
            rows_in = snapshot.up(rows_in)
        # The last layer writes to the target itself, without a copy.
        snapshots[-1].up(rows_in, out=rows_out)

    for first in range(0, len(chunks), CHUNKS_AT_ONCE):
        if stop():
            return False
        run([fill], min(CHUNKS_AT_ONCE, len(chunks) - first))
    return True


def _chunks(source: Split, target: Split, rows: int) -> Iterator[tuple[Array, Array]]:
    for rows_in, rows_out in zip(source, target, strict=True):
        for start in range(0, len(rows_in), rows):
            own = slice(start, start + rows)
            yield run_of(rows_in, own), rows_out[own]
