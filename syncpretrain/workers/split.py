"""Training and validation rows, side by side."""

from __future__ import annotations

from typing import NamedTuple

from syncpretrain.kernels.arrays import Array

__all__ = ["Split"]


class Split(NamedTuple):
    """Training and validation rows of one layer's input, which are transformed alike.

    The training rows of the data may be sparse.
    """

    train: Array
    validation: Array
