"""Training and validation rows of an input."""

from __future__ import annotations

from typing import NamedTuple

from syncpretrain.kernels.arrays import Array


class Split(NamedTuple):
    """Training and validation rows of a layer's input; both go through the same layers.

    The training rows of the lowest layer may be sparse.
    """

    train: Array
    validation: Array
