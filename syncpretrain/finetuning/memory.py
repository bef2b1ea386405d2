"""Estimate the memory that fine-tuning needs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from syncpretrain.kernels.arrays import BLOCK, FLOAT_BYTES

__all__ = ["finetuning_bytes"]

TUNED_COPIES = 5  # parameters, the last good, the best, the result; a part's while it is made


def finetuning_bytes(
    layers: Sequence[int],
    *,
    outputs: int | None,
    rows: int,
    labelled: int,
    batch_size: int,
    vectors: int,
    gradients: int,
    shards: int,
    dropout: bool,
    copies: int,
) -> int:
    """Return an upper bound of the bytes that fine-tuning allocates beside data and checkpoints.

    Parameters
    ----------
    layers : sequence of int
        Units of the input and of each layer of the stack.
    outputs : int or None
        Of the head; None unrolls the stack for reconstruction.
    rows, labelled : int
        Examples that are copied, and those with a target.
    batch_size : int
    vectors, gradients : int
        Of the network's size, that the optimizer and the workers hold.
    shards : int
        Of a minibatch, each with scratch for its updates.
    dropout : bool
    copies : int
        Of the stack's parameters that are held beside.
    """
    above = list(layers[-2::-1]) if outputs is None else [outputs]
    chain = [*layers, *above]
    network = sum(v * h + h for v, h in pairwise(chain))
    stack = sum(v * h + v + h for v, h in pairwise(layers))
    parameters = (TUNED_COPIES + vectors + gradients) * network + copies * stack
    parameters += 2 * shards * min(BLOCK, network)
    buffers = 2 * sum(chain[1:]) + (2 * sum(chain[:-1]) if dropout else 0)
    minibatches = batch_size * (chain[0] + chain[-1] + buffers * (2 if gradients > 1 else 1))
    data = rows * layers[0] + 2 * labelled * (outputs or 0)
    return FLOAT_BYTES * (parameters + minibatches + data)
