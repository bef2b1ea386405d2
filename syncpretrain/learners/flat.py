"""The parameters of a layer on a device, their gradients and velocities, each in one flat array.

One launch moves them all. Weights, which decay, lie before the biases. Each array begins at
a multiple of 16 bytes, where a product reads its rows fastest; what lies between is 0 and stays so.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.kernels.arrays import Array

__all__ = ["FlatParameters"]

ALIGNED = 4  # numbers, which are 16 bytes


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
        at = self.weights = 0
        for name in sorted(given, key=lambda name: given[name].ndim == 1):
            size, shape = given[name].size, given[name].shape
            self._places[name] = slice(at, at + size), shape
            at += -(-size // ALIGNED) * ALIGNED
            if len(shape) > 1:
                self.weights = at
        self.parameters, self.gradients, self.velocities = (backend.zeros(at) for _ in range(3))
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
