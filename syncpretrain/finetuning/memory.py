"""Estimate the memory that fine-tuning needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from syncpretrain.kernels.arrays import BLOCK, FLOAT_BYTES
from syncpretrain.kernels.lowering import scratch_size
from syncpretrain.shapes import ConvolutionShape, LayerShape

__all__ = ["finetuning_bytes"]

TUNED_COPIES = 5  # parameters, the last good, the best, the result; a part's while it is made

COPIES_LOWERED, COPIES_MAPS = 2, 6  # of the forms in NumPy


def finetuning_bytes(
    shapes: Sequence[LayerShape],
    *,
    outputs: int | None,
    rows: int,
    labelled: int,
    batch_size: int,
    lowered: bool,
    vectors: int,
    split: str,
    shards: int,
    dropout: bool,
    copies: int,
) -> int:
    """Return an upper bound of the bytes that fine-tuning allocates beside data and checkpoints.

    Parameters
    ----------
    shapes : sequence of LayerShape
        Of the layers of the stack.
    outputs : int or None
        Of the head; None unrolls the stack for reconstruction.
    rows, labelled : int
        Examples that are copied, and those with a target.
    batch_size : int
    lowered : bool
        Whether what filters see of a whole minibatch is laid out at once, as NumPy's forms do.
    vectors : int
        Of the network's size, that the optimizer holds.
    split : str
    shards : int
        Of a minibatch, each with scratch for its updates.
    dropout : bool
    copies : int
        Of the stack's parameters that are held beside.
    """
    top = shapes[-1].hidden
    head = 0 if outputs is None else top * outputs + outputs
    halves = 2 if outputs is None else 1
    network = head + sum(halves * x.weights + sum(x.biases[-halves:]) for x in shapes)
    stack = sum(shape.weights + sum(shape.biases) for shape in shapes)
    convolutions = [shape for shape in shapes if isinstance(shape, ConvolutionShape)]
    above = [shape.visible for shape in reversed(shapes)] if outputs is None else [outputs]
    chain = [shapes[0].visible, *(shape.hidden for shape in shapes), *above]
    buffers = 2 * sum(chain[1:]) + (2 * sum(chain[:-1]) if dropout else 0)
    parameters = (TUNED_COPIES + vectors + 1) * network + copies * stack
    parameters += 2 * shards * min(BLOCK, network)
    if convolutions:
        local = sum(halves * x.weights + sum(x.biases[-halves:]) for x in convolutions)
        own = {"examples": network, "hybrid": local, "columns": local}.get(split, 0)
        kinds = [replace(x, pooling=kind) for x in convolutions for kind in ("max", "mean")]
        parameters += (shards - 1) * own + shards * max(map(scratch_size, kinds))
        buffers += chain[0] + chain[-1] + sum(shape.hidden for shape in convolutions)
        if lowered:
            buffers += max(COPIES_LOWERED * x.lowered + COPIES_MAPS * x.units for x in convolutions)
    elif split == "examples":
        parameters += shards * network
        buffers *= 2
    minibatches = batch_size * (chain[0] + chain[-1] + buffers)
    data = rows * chain[0] + 2 * labelled * (outputs or 0)
    return FLOAT_BYTES * (parameters + minibatches + data)
