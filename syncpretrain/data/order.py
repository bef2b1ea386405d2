"""The minibatch order: shuffled anew every epoch, a function of its address alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from syncpretrain.rng import Purpose, generator

MIXED_BLOCKS = 16  # blocks with their rows shuffled together


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """Return the number of minibatches in an epoch; the last one may be smaller."""
    return -(-examples // batch_size)


def shuffled(examples: int, *, seed: int, layer: int, epoch: int) -> NDArray[np.int64]:
    """Return the row numbers of an epoch in their order.

    ``layer`` 0 stands for the whole stack (fine-tuning).
    """
    return generator(seed, Purpose.ORDER, layer=layer, epoch=epoch).permutation(examples)


def minibatches(
    examples: int, batch_size: int, *, seed: int, layer: int, epoch: int
) -> Iterator[NDArray[np.intp]]:
    """Yield the row numbers of each minibatch of an epoch, in the order of :func:`shuffled`.

    Every row comes once.
    """
    rows = shuffled(examples, seed=seed, layer=layer, epoch=epoch)
    for start in range(0, examples, batch_size):
        yield rows[start : start + batch_size]


class PassOrder:
    """The order of one pass of a stream over the data.

    Without blocks it is the order of :func:`minibatches` for layer 1. With blocks, the blocks of
    consecutive rows are shuffled, and then the rows of each 16 blocks among themselves, so that a
    file is read block by block.

    Parameters
    ----------
    examples, batch_size, seed : int
    number : int
        Number of the pass, counted from 1.
    block : int
        Rows of a block; 0 shuffles all rows.
    """

    def __init__(
        self, examples: int, batch_size: int, *, seed: int, number: int, block: int = 0
    ) -> None:
        self._examples, self._batch_size, self._block = examples, batch_size, block or examples
        self._address = {"layer": 1, "epoch": number}
        self._seed = seed
        blocks = -(-examples // block) if block else 1
        order = np.zeros(1, dtype=np.intp)
        if block:
            order = generator(seed, Purpose.ORDER, **self._address).permutation(blocks)
        # Groups of equal size: the rows of a much smaller group would be mixed less.
        self._groups = np.array_split(order, -(-blocks // MIXED_BLOCKS))
        numbers = range(len(self._groups))
        sizes = [sum(run.stop - run.start for run in self.blocks(n)) for n in numbers]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._first_step = 1 if block else 0  # step 0 is the address of the blocks' own order
        self._drawn: dict[int, NDArray[np.intp]] = {}

    def minibatch(self, step: int) -> NDArray[np.intp]:
        """Return the row numbers of a minibatch, counted from 0."""
        first = step * self._batch_size
        last = min(first + self._batch_size, self._examples)
        groups = range(self.group(step), self._group_at(last - 1) + 1)
        self._drawn = {n: self._drawn[n] if n in self._drawn else self._draw(n) for n in groups}
        start = self._starts[groups[0]]
        rows = [self._drawn[n] for n in groups]
        whole = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return whole[first - start : last - start]

    def rows(self) -> NDArray[np.intp]:
        """Return the row numbers of the pass, minibatch after minibatch."""
        return np.concatenate([self._draw(n) for n in range(len(self._groups))])

    def group(self, step: int) -> int:
        """Return the number of the group that a minibatch begins in."""
        return self._group_at(step * self._batch_size)

    def blocks(self, group: int) -> list[slice]:
        """Return the blocks of a group as runs of rows; none for a group beyond the last."""
        if group >= len(self._groups):
            return []
        starts = (int(n) * self._block for n in self._groups[group])
        return [slice(start, min(start + self._block, self._examples)) for start in starts]

    def _group_at(self, position: int) -> int:
        return int(np.searchsorted(self._starts, position, side="right")) - 1

    def _draw(self, group: int) -> NDArray[np.intp]:
        draws = generator(self._seed, Purpose.ORDER, step=self._first_step + group, **self._address)
        if not self._first_step:
            return draws.permutation(self._examples)
        rows = [np.arange(run.start, run.stop) for run in self.blocks(group)]
        return draws.permutation(np.concatenate(rows))
