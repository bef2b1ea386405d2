"""The minibatch order: shuffled anew every epoch, a function of its address alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.rng import Purpose, generator

__all__ = ["minibatches", "steps_per_epoch"]


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """Return the number of minibatches in an epoch; the last one may be smaller."""
    return -(-examples // batch_size)


def minibatches(
    examples: int,
    batch_size: int,
    *,
    seed: int,
    layer: int,
    epoch: int,
    device: Callable[[Any], Any] | None = None,
) -> Iterator[NDArray[np.intp]]:
    """Yield the row numbers of each minibatch of an epoch; every row comes once.

    ``layer`` 0 stands for the whole stack (fine-tuning). ``device`` is given those of the whole
    epoch first, to bring them to a device at once.
    """
    rows = generator(seed, Purpose.ORDER, layer=layer, epoch=epoch).permutation(examples)
    if device is not None:
        rows = device(rows)
    for start in range(0, examples, batch_size):
        yield rows[start : start + batch_size]
