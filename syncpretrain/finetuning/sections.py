"""The sections of a network of links, each split in one way, and the arrays it is worked in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from syncpretrain.finetuning.chain import Link, Site
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import Pair
from syncpretrain.shapes import common_groups

__all__ = ["Buffers", "Section", "sections_of"]


class Section(NamedTuple):
    """Links, by their numbers, that are split in one way.

    ``columns`` is the number of columns, 1 by examples, 0 by units.
    """

    links: range
    columns: int


def sections_of(chain: Sequence[Link], split: str) -> list[Section]:
    """Return the sections of a chain that is split in a way; see :class:`LinkedNetwork`."""
    numbers = range(len(chain))
    if split not in ("hybrid", "columns"):
        return [Section(numbers, int(split == "examples"))]
    columns = common_groups(link.groups for link in chain) if split == "columns" else 1
    found = []
    for is_local, run in groupby(numbers, key=lambda number: chain[number].is_local):
        links = list(run)
        found.append(Section(range(links[0], links[-1] + 1), columns if is_local else 0))
    return found


@dataclass(frozen=True, slots=True)
class Buffers:
    """All arrays of a network, for as many examples as its largest minibatch has.

    Attributes
    ----------
    links : sequence of Link
    sections : list of Section
    starts : list of int
        Where the parameters of each link begin in the flat vector, and where the last ends.
    chain : list of (weight, bias)
    gradients : list of list of (weight, bias)
        Those of a shard's rows in sections split by examples; else the same for all shards.
    activations, deltas, places : list of ndarray
    masks, inputs : list of ndarray or None
        Of dropout: what is left out of what each link reads, and what is left of it.
    scratch : list of ndarray
        One a shard.
    loss : str
    """

    links: Sequence[Link]
    sections: list[Section]
    starts: list[int]
    chain: list[Pair]
    gradients: list[list[Pair]]
    activations: list[Array]
    deltas: list[Array]
    places: list[Array]
    masks: list[Array | None]
    inputs: list[Array | None]
    scratch: list[Array]
    loss: str

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self.scratch)

    def site(self, link: int, x: Array, rows: slice, shard: int, *, drops: bool = True) -> Site:
        """Return the arrays in which a shard works some rows of a link; x is the minibatch."""
        left = self.inputs[link] if drops else None
        below = self.activations[link - 1] if link else x
        places = self.places[link]
        return Site(
            *self.chain[link],
            *self.gradients[shard][link],
            (below if left is None else left)[rows],
            self.activations[link][rows],
            self.deltas[link][rows],
            places[rows] if places.size else places,
            self.scratch[shard],
        )
