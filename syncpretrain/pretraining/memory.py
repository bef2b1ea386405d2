"""Estimate the memory that pretraining needs, and refuse what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from syncpretrain.backends.host_rows import buffer_bytes
from syncpretrain.data.byte_rows import bytes_of, in_bytes
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.parallel.available_memory import check_available
from syncpretrain.settings.architecture import text_of
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.shapes import LayerShape

__all__ = [
    "check_device_memory",
    "check_memory",
    "pretraining_bytes",
    "replica_bytes",
    "shard_bytes",
    "streamed_rows",
]

DEVICE_COPIES = 3  # of another device: parameters, gradient, velocity
WAITING = 2  # minibatches between layers: VERSIONS times as many are more than any ring has
VERSIONS = 3  # a layer's activations at a time, at most
PROCESS_BYTES = 60_000_000  # an interpreter with NumPy
OUTPUTS = 8  # kept by a layer and in its state, and what compares two of them in float64
REPLICA_COPIES = (
    6  # of an asynchronous replica: as of a layer, what it fetched, began with, changed
)
COPIES = 8  # parameters, gradient, velocity and up to 5 published snapshots, the newest included


def pretraining_bytes(shapes: Sequence[LayerShape], *, examples: int, batch_size: int) -> int:
    """Return an upper bound of the bytes that pretraining allocates beside the data."""
    activations = VERSIONS * examples * sum(shape.hidden for shape in shapes[:-1])
    parameters = COPIES * sum(shape.weights + sum(shape.biases) for shape in shapes)
    minibatches = sum(_minibatch(shape, batch_size) for shape in shapes)
    scratch = sum(shape.lowered + shape.units + shape.weights for shape in shapes if shape.lowered)
    return FLOAT_BYTES * (activations + parameters + minibatches + scratch)


def _minibatch(shape: LayerShape, batch_size: int) -> int:
    """Return the numbers that the step of a layer computes in."""
    return batch_size * (3 * shape.visible + 4 * shape.units)


def shard_bytes(settings: PretrainSettings) -> int:
    """Return the bytes of devices that minibatches in shards need beside those of whole ones."""
    numbers = 0
    for layer, shape in enumerate(settings.shapes, start=1):
        shards, replicas = settings.shards_of(layer), settings.replicas[layer - 1]
        if shards > 1:
            gradients, elsewhere = shards, DEVICE_COPIES * (min(replicas, shards) - 1)
            numbers += (gradients + elsewhere) * (shape.weights + sum(shape.biases))
            numbers += _minibatch(shape, settings.batch_size + shards)
    return FLOAT_BYTES * numbers


def streamed_rows(batch_size: int, held_out: int) -> int:
    """Return as many examples as a stream has activations of: those that wait in its rings."""
    return WAITING * (batch_size + held_out)


def replica_bytes(settings: PretrainSettings, steps: int) -> int:
    """Return the bytes of the replicas of an asynchronous run, and of the changes that wait.

    ``steps`` are the minibatches of an epoch, at the end of which no change waits.
    """
    late = 0
    if settings.runtime == "serial":
        asked = settings.simulate_staleness
        late = max(settings.replicas) - 1 if asked is None else asked
        late = min(late, -(-steps // settings.push_every)) * (
            2 if settings.delay_compensation else 1
        )
    layers = [
        (REPLICA_COPIES * replicas + late) * (shape.weights + sum(shape.biases))
        for shape, replicas in zip(settings.shapes, settings.replicas, strict=True)
    ]
    needed = FLOAT_BYTES * (max(layers) if settings.handoff == "epoch" else sum(layers))
    is_remote = settings.runtime == "processes"
    return needed + (PROCESS_BYTES * max(settings.replicas) if is_remote else 0)


def check_memory(
    shapes: Sequence[LayerShape],
    *,
    examples: int,
    batch_size: int,
    processes: bool = False,
    shared: int | None = None,
    sampled: int = 0,
    others: int = 0,
) -> None:
    """Refuse a stack that cannot fit; ``processes`` share a copy of the data and need their own.

    ``shared`` is the number of examples in that copy, by default all. ``sampled`` is of how many
    examples outputs are kept, to measure drift. ``others`` are bytes beside all these.

    Raises
    ------
    SettingsError
        Naming what it needs and what there is.
    """
    needed = others + pretraining_bytes(shapes, examples=examples, batch_size=batch_size)
    needed += FLOAT_BYTES * OUTPUTS * sampled * sum(shape.hidden for shape in shapes)
    if processes:
        needed += FLOAT_BYTES * (examples if shared is None else shared) * shapes[0].visible
        needed += PROCESS_BYTES * len(shapes)
    check_available(needed, text_of(shapes), examples)


def check_device_memory(
    shapes: Sequence[LayerShape],
    free: int,
    data: Sequence[Any],
    *,
    batch_size: int,
    bounded: bool,
    others: int = 0,
) -> None:
    """Refuse a stack that does not fit the devices, wherever its data stay.

    Parameters
    ----------
    shapes : sequence of LayerShape
    free : int
        Bytes of the devices.
    data : sequence of arrays of shape (n_examples, input units)
    batch_size : int
    bounded : bool
        Whether the layers see the data as they are; else they are standardized.
    others : int
        Bytes beside all these.

    Raises
    ------
    SettingsError
        Naming what it needs and what there is.
    """
    examples = sum(map(len, data))
    beside = others + pretraining_bytes(shapes, examples=examples, batch_size=batch_size)
    least = sum(map(bytes_of, data))
    if beside + least > free:  # as bytes, or a few rows at a time
        own = sum(bytes_of(in_bytes(rows)) for rows in data) if bounded else least
        least = min(own, buffer_bytes(examples, shapes[0].visible))
    check_available(beside + least, text_of(shapes), examples, free=free, where=" on the GPU")
