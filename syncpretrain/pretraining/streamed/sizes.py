"""Sizes of a stream: how many minibatches wait between two layers, and are processed at once."""

from __future__ import annotations

from typing import NamedTuple

from syncpretrain.backends.base import Backend
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.schedule.stream import (
    BLOCK_MINIBATCHES,
    RANK_RING_MINIBATCHES,
    RING_MINIBATCHES,
)
from syncpretrain.settings.fields import PretrainFields

__all__ = ["StreamSize", "passes_in_ring", "stream_size"]

RING_BYTES = 1 << 28  # of a device, between two layers


class StreamSize(NamedTuple):
    """Minibatches that may wait between two layers, of a block, and of a pass.

    The last are 0 where a block may end anywhere.
    """

    ring: int
    block: int
    steps: int = 0


def passes_in_ring(ring: int, steps: int) -> int:
    """Return from how many passes, of some steps each, the minibatches of a ring may be."""
    # R minibatches touch at most R // S + 1 passes, and one more if they begin within a pass.
    return ring // steps + 2


def stream_size(settings: PretrainFields, backend: Backend, steps: int) -> StreamSize:
    """Return the sizes of a run with ``steps`` minibatches a pass over the data.

    On a device a ring has two blocks, one that is read and one that is filled.
    """
    if backend.steps_at_once == 1:
        ring = RANK_RING_MINIBATCHES if settings.runtime == "mpi" else RING_MINIBATCHES
        return StreamSize(ring, BLOCK_MINIBATCHES)
    # A device works whole blocks: as long ones as may be recorded at once, and as fit twice.
    fitting = RING_BYTES // (FLOAT_BYTES * settings.batch_size * max(settings.layers[:-1]))
    block = max(1, min(backend.steps_at_once, steps, fitting) // 2)
    return StreamSize(2 * block, block, steps)
