"""Measures of a reconstruction against its original."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["squared_error"]

Array = NDArray[np.float32]


def squared_error(x: Array, y: Array, *, out: Array) -> float:
    """Return |y - x|^2, summed over units and examples, and leave y - x in ``out``.

    ``out`` may be y itself; it is contiguous.
    """
    np.subtract(y, x, out=out)
    flat = out.reshape(-1)
    return float(np.dot(flat, flat))
