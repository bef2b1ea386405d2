"""Adding up the gradients of several shards, in an order that never changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["add_tree"]

Array = NDArray[np.float32]


def add_tree(parts: Sequence[Array]) -> Array:
    """Return the sum of arrays, added pairwise in a fixed tree, in the first one; use up the rest.

    ((0 + 1) + (2 + 3)) + ...: the bits do not depend on who computed which of them, and rounding
    grows with the logarithm of their number only.
    """
    live = list(parts)
    while len(live) > 1:
        for left, right in zip(live[::2], live[1::2], strict=False):
            np.add(left, right, out=left)
        live = live[::2]
    return live[0]
