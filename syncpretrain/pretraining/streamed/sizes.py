"""Sizes of a stream: how many minibatches wait between two layers, and are processed at once."""

from __future__ import annotations

from typing import NamedTuple

from syncpretrain.backends.base import Backend
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.pretraining.memory import VERSIONS, streamed_rows
from syncpretrain.pretraining.schedule.stream import (
    BLOCK_MINIBATCHES,
    RANK_RING_MINIBATCHES,
    RING_MINIBATCHES,
)
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["StreamSize", "held_rows", "passes_in_ring", "room_bytes", "stream_size"]

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
    return ring // steps + 2


def stream_size(settings: PretrainSettings, backend: Backend, steps: int) -> StreamSize:
    """Return the sizes of a run, whose passes have some steps.

    On a device a ring has two blocks, one that is read and one that is filled.
    """
    if backend.steps_at_once == 1:
        ring = RANK_RING_MINIBATCHES if settings.runtime == "mpi" else RING_MINIBATCHES
        return StreamSize(ring, BLOCK_MINIBATCHES)
    fitting = RING_BYTES // (FLOAT_BYTES * settings.batch_size * max(settings.layers[:-1]))
    block = max(1, min(backend.steps_at_once, steps, fitting) // 2)
    return StreamSize(2 * block, block, steps)


def held_rows(settings: PretrainSettings, backend: Backend, *, steps: int, held_out: int) -> int:
    """Return as many examples as a stream has activations of, for the estimate of its memory.

    The estimate takes each of them :data:`VERSIONS` times.
    """
    size = stream_size(settings, backend, steps)
    if not size.steps:
        return streamed_rows(settings.batch_size, held_out)
    # Those of a block are computed beside the ring, and validation examples too.
    rows = (size.ring + size.block) * settings.batch_size + (
        passes_in_ring(size.ring, steps) + 1
    ) * held_out
    return -(-rows // VERSIONS)


def room_bytes(settings: PretrainSettings, backend: Backend, steps: int) -> int:
    """Return the bytes of a device that rows of the host are copied to, a block at a time."""
    size = stream_size(settings, backend, steps)
    rows = size.block * settings.batch_size if size.steps else 0
    return FLOAT_BYTES * rows * settings.layers[0]
