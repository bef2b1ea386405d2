"""Type of the arrays that the equations compute on, and the sizes that follow from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK", "FLOAT_BYTES", "Array"]

Array = NDArray[np.float32]
FLOAT_BYTES = 4
BLOCK = 65_536  # numbers that a pass takes at a time: several such arrays stay in the L2 cache
