"""Flat arrays: the parameters of a layer on a device, their gradients and velocities, each in one.

One launch moves them all. Weights, which decay, lie before the biases. Each array begins at
a multiple of 16 bytes, where a product reads its rows fastest; what lies between is 0 and stays so.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.kernels.arrays import Array

__all__ = ["FlatParameters", "Places"]

ALIGNED = 4  # numbers, which are 16 bytes


class Places:
    """The places of some parts in a flat vector, one after the other, on a device with gaps.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of each part.
    backend : Backend

    Attributes
    ----------
    starts : list of int
        Where each part begins, and the vector ends.
    """

    def __init__(self, sizes: Sequence[int], backend: Backend) -> None:
        unit = ALIGNED if backend.devices() else 1
        self.starts = list(accumulate((-(-size // unit) * unit for size in sizes), initial=0))
        self._parts = [slice(at, at + n) for at, n in zip(self.starts, sizes, strict=False)]
        self._count = sum(sizes)

    def packed(self, vector: Array) -> Array:
        """Return a vector of the host without gaps; an empty one, or one without, as it is."""
        if self._count == self.starts[-1] or not vector.size:
            return vector
        return np.concatenate([vector[part] for part in self._parts])

    def spread(self, vector: Array) -> Array:
        """Return a vector of the host with the gaps that :meth:`packed` has left out.

        Raises
        ------
        ValueError
            If it has another number of parameters.
        """
        if self._count == self.starts[-1] or not vector.size:
            return vector
        if vector.shape != (self._count,):
            raise ValueError(f"got {vector.shape}, expected {(self._count,)}")
        spread, at = np.zeros(self.starts[-1], vector.dtype), 0
        for part in self._parts:
            spread[part] = vector[at : at + part.stop - part.start]
            at += part.stop - part.start
        return spread


class FlatParameters:
    """Flat arrays in which the parameters of a layer lie.

    Parameters
    ----------
    given : dict of str to ndarray
        The parameters by name, which are copied to the backend on the current stream.
    backend : Backend

    Attributes
    ----------
    parameters, gradients, velocities : ndarray of shape (n,)
        The last two are 0 at first.
    weights : int
        How many numbers there are before the biases.
    """

    def __init__(self, given: Mapping[str, Array], backend: Backend) -> None:
        self._backend = backend
        self._places: dict[str, tuple[slice, tuple[int, ...]]] = {}
        names = sorted(given, key=lambda name: given[name].ndim == 1)
        starts = Places([given[name].size for name in names], backend).starts
        for name, start in zip(names, starts, strict=False):
            self._places[name] = slice(start, start + given[name].size), given[name].shape
        self.weights = starts[sum(given[name].ndim > 1 for name in names)]
        self.parameters, self.gradients, self.velocities = (
            backend.zeros(starts[-1]) for _ in range(3)
        )
        for name, own in self.views(self.parameters).items():
            np.copyto(own, backend.asarray(given[name]))

    def part(self) -> FlatParameters:
        """Return the same parameters with gradients of a shard."""
        part = copy.copy(self)
        part.gradients = self._backend.zeros(len(self.parameters))
        return part

    def views(self, vector: Array) -> dict[str, Array]:
        """Return by name the arrays that lie in one of the flat ones."""
        return {name: vector[own].reshape(shape) for name, (own, shape) in self._places.items()}
