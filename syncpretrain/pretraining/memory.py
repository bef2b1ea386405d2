"""Estimate the memory that pretraining needs, refuse what does not fit, and size streams by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.backends.choice import backend_for
from syncpretrain.backends.rows import buffer_bytes
from syncpretrain.data.blocks import bytes_of, in_bytes
from syncpretrain.data.order import steps_per_epoch
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.parallel.available_memory import check_available
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.schedule.stream import BLOCK_MINIBATCHES, RANK_RING_MINIBATCHES, RING_MINIBATCHES
from syncpretrain.settings.architecture import text_of
from syncpretrain.settings.checks import parsed_waking
from syncpretrain.settings.fields import PretrainFields
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.shapes import LayerShape
from syncpretrain.units.kinds import kind_of
from syncpretrain.workers.worker import PROBE_ROWS

# Copies of a layer's parameters, in units of their size.
COPIES = 8  # parameters, gradient, velocity, and up to 5 published snapshots
DEVICE_COPIES = 3  # on another device: parameters, gradient, velocity
REPLICA_COPIES = 6  # of a replica: the three above, what it fetched, began with, and changed

VERSIONS = 3  # of a layer's activations at a time, at most: see schedule/schedule.py
RING_BYTES = 1 << 28  # of a device, between two layers of a stream
PROCESS_BYTES = 60_000_000  # an interpreter with NumPy
OUTPUTS = 8  # kept by a layer and in its state, and two of them compared in float64


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


def pretraining_bytes(shapes: Sequence[LayerShape], *, examples: int, batch_size: int) -> int:
    """Return an upper bound of the bytes that pretraining allocates beside the data."""
    activations = VERSIONS * examples * sum(shape.hidden for shape in shapes[:-1])
    parameters = COPIES * sum(shape.weights + sum(shape.biases) for shape in shapes)
    minibatches = sum(_minibatch(shape, batch_size) for shape in shapes)
    scratch = sum(shape.lowered + shape.units + shape.weights for shape in shapes if shape.lowered)
    return FLOAT_BYTES * (activations + parameters + minibatches + scratch)


def held_rows(settings: PretrainSettings, backend: Backend, *, steps: int, held_out: int) -> int:
    """Return the number of examples with activations in a stream, to estimate its memory.

    The estimate counts each of them :data:`VERSIONS` times.
    """
    size = stream_size(settings, backend, steps)
    # The activations of a block are computed outside the ring, and then copied into it.
    passes = passes_in_ring(size.ring, steps) + 1
    rows = (size.ring + size.block) * settings.batch_size + passes * held_out
    return -(-rows // VERSIONS)


def run_rows(settings: PretrainSettings, backend: Backend, examples: int, held_out: int) -> int:
    """Return the number of examples with activations in a run, to estimate its memory."""
    if settings.handoff == "epoch":
        return examples + held_out
    steps = steps_per_epoch(examples, settings.batch_size)
    return held_rows(settings, backend, steps=steps, held_out=min(held_out, PROBE_ROWS))


def room_bytes(settings: PretrainSettings, backend: Backend, steps: int) -> int:
    """Return the bytes of a device that rows of the host are copied to, a block at a time."""
    size = stream_size(settings, backend, steps)
    rows = size.block * settings.batch_size if size.steps else 0
    return FLOAT_BYTES * rows * settings.layers[0]


def _minibatch(shape: LayerShape, batch_size: int) -> int:
    """Return the numbers that the step of a layer computes in."""
    return batch_size * (3 * shape.visible + 4 * shape.units)


def chain_bytes(settings: PretrainSettings) -> int:
    """Return the bytes that chains apart from the minibatch compute in."""
    own = zip(settings.shapes, settings.chains, strict=True)
    return FLOAT_BYTES * sum(_minibatch(shape, chains) for shape, chains in own)


def other_bytes(settings: PretrainSettings, steps: int) -> int:
    """Return the bytes of the replicas of an asynchronous run, or of chains apart from the batch.

    ``steps`` are the minibatches of an epoch.
    """
    return replica_bytes(settings, steps) if settings.schedule == ASYNC else chain_bytes(settings)


def shard_bytes(settings: PretrainSettings) -> int:
    """Return the extra bytes of devices that minibatches in shards need."""
    numbers = 0
    for layer, shape in enumerate(settings.shapes, start=1):
        shards, replicas = settings.shards_of(layer), settings.replicas[layer - 1]
        if shards > 1:
            gradients, elsewhere = shards, DEVICE_COPIES * (min(replicas, shards) - 1)
            numbers += (gradients + elsewhere) * (shape.weights + sum(shape.biases))
            numbers += _minibatch(shape, settings.batch_size + shards)
    return FLOAT_BYTES * numbers


def replica_bytes(settings: PretrainSettings, steps: int) -> int:
    """Return the bytes of the replicas of an asynchronous run, and of the changes that wait.

    ``steps`` are the minibatches of an epoch; no change waits at its end.
    """
    late = 0
    if settings.runtime == "serial":
        asked = settings.simulate_staleness
        late = max(settings.replicas) - 1 if asked is None else asked
        vectors = 2 if settings.delay_compensation else 1
        late = vectors * min(late, -(-steps // settings.push_every))
    layers = [
        (REPLICA_COPIES * replicas + late) * (shape.weights + sum(shape.biases))
        for shape, replicas in zip(settings.shapes, settings.replicas, strict=True)
    ]
    needed = FLOAT_BYTES * (max(layers) if settings.handoff == "epoch" else sum(layers))
    is_remote = settings.runtime == "processes"
    return needed + (PROCESS_BYTES * max(settings.replicas) if is_remote else 0)


def check_memory(settings: PretrainSettings, data: Sequence[Any]) -> None:
    """Refuse a run that fits neither this machine nor its devices.

    ``data`` are the examples to train on, and the validation examples.

    Raises
    ------
    SettingsError
        Naming what it needs and what there is.
    """
    shapes, backend, sizes = settings.shapes, backend_for(settings.backend), list(map(len, data))
    free, steps = backend.free_bytes(), steps_per_epoch(sizes[0], settings.batch_size)
    rows, others = run_rows(settings, backend, *sizes), other_bytes(settings, steps)
    held = rows if free is None else 0
    needed = others + pretraining_bytes(shapes, examples=held, batch_size=settings.batch_size)
    if any(settings.settle) or any(map(parsed_waking, settings.refresh_when[1:])):
        needed += FLOAT_BYTES * OUTPUTS * PROBE_ROWS * sum(shape.hidden for shape in shapes)
    if settings.runtime == "processes":  # which share a copy of the data
        shared = sum(sizes) if isinstance(data[0], np.ndarray) else 0
        needed += FLOAT_BYTES * shared * shapes[0].visible + PROCESS_BYTES * len(shapes)
    check_available(needed, text_of(shapes), held)
    if free is not None:
        backend.for_replicas(max(settings.replicas))  # which read each other's memory
        streams = settings.handoff == "minibatch"
        room = room_bytes(settings, backend, steps) if streams else 0
        others += shard_bytes(settings)
        bounded = kind_of(settings.visible_units).is_unit_interval
        check_device_memory(settings, free, data, rows, bounded=bounded, room=room, others=others)


def check_device_memory(
    settings: PretrainSettings,
    free: int,
    data: Sequence[Any],
    rows: int,
    *,
    bounded: bool,
    room: int = 0,
    others: int = 0,
) -> None:
    """Refuse a stack that does not fit the devices, wherever its data stay.

    Parameters
    ----------
    settings : PretrainSettings
    free : int
        Bytes of the devices.
    data : sequence of arrays of shape (n_examples, input units)
    rows : int
        The number of examples with activations.
    bounded : bool
        Whether the layers see the data as they are; else they are standardized.
    room : int
        Bytes that rows of the host are copied to, beside the buffers that they come through.
    others : int
        Bytes beside all these.

    Raises
    ------
    SettingsError
        Naming what it needs and what there is.
    """
    shapes, examples = settings.shapes, sum(map(len, data))
    beside = others + pretraining_bytes(shapes, examples=rows, batch_size=settings.batch_size)
    by_rows = buffer_bytes(examples, shapes[0].visible) + room
    in_memory = isinstance(data[0], np.ndarray)  # not in a file, nor of an iterable
    least = sum(map(bytes_of, data)) if in_memory else by_rows
    if in_memory and beside + least > free:  # as bytes, or a few rows at a time
        own = sum(bytes_of(in_bytes(x)) for x in data) if bounded else least
        least = min(own, by_rows)
    check_available(beside + least, text_of(shapes), examples, free=free, where=" on the GPU")
