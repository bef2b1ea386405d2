"""Placement of layers on ranks: one rank per layer, or a group that shares the minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from syncpretrain.backends.base import deal


@dataclass(frozen=True, slots=True)
class RankShares:
    """Largest number of ranks that may share each layer, by default 1.

    ``one_at_a_time`` is True if the layers train one after another.
    """

    most: tuple[int, ...] = ()
    one_at_a_time: bool = False


def groups_of_layers(
    widths: Sequence[int], size: int, shares: RankShares
) -> dict[int, tuple[int, ...]]:
    """Return the ranks of each layer, out of the ranks 1 to ``size - 1``.

    Each layer gets one rank. The other ranks go one by one to the layer with the most work per
    rank, among the layers that may be shared. Layers that train one after another may each have
    all ranks. The ranks of a group have consecutive numbers, so that they are likely to be on one
    machine.

    Parameters
    ----------
    widths : sequence of int
        Values of an example, then the units of each layer.
    size : int
        Number of ranks, with rank 0.
    shares : RankShares
    """
    # The weights of a layer stand for its cost; heavy layers are dealt first.
    costs = {i: below * own for i, (below, own) in enumerate(pairwise(widths), start=1)}
    alone = dict(enumerate(deal(list(costs.values()), range(1, size)), start=1))
    most = dict(enumerate(shares.most, start=1))
    # Layers that train one after another never need ranks at the same time: every layer may have
    # all ranks.
    if shares.one_at_a_time:
        found = {i: range(1, 1 + min(most.get(i, 1), size - 1)) for i in alone}
        return {i: tuple(own) if len(own) > 1 else alone[i] for i, own in found.items()}
    # Among layers of equal cost per rank the lowest one gets the next rank, since the others wait
    # for it.
    counts = dict.fromkeys(costs, 1)
    for _ in range(size - 1 - len(costs)):
        shareable = [i for i in costs if counts[i] < most.get(i, 1)]
        if shareable:
            counts[max(shareable, key=lambda i: (costs[i] / counts[i], -i))] += 1
    # With fewer ranks than layers, or nothing to share, a rank holds whole layers.
    if max(counts.values()) == 1:
        return alone
    groups, first = dict[int, tuple[int, ...]](), 1
    for i, count in counts.items():
        groups[i] = tuple(range(first, first + count))
        first += count
    return groups


def spread(workers: int, size: int) -> dict[int, tuple[int, ...]]:
    """Return a rank of 1 to ``size - 1`` for each of some workers of equal cost."""
    return dict(enumerate(deal([1] * workers, range(1, size)), start=1))
