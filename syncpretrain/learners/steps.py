"""The protocol of a step in shards."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.phases import Run

__all__ = ["ShardedStep"]

Array = NDArray[np.float32]


class ShardedStep(Protocol):
    """One learner's step in shards."""

    def train_step(
        self, X: Array, rows: NDArray[np.intp], *, epoch: int, step: int, run: Run
    ) -> float:
        """Train on some rows of X; return their summed squared reconstruction error."""
        ...

    def memory(self) -> dict[str, Array]:
        """Return by name what the next step depends on beside the learner's own memory."""
        ...

    def restart(self) -> None:
        """Forget what :meth:`memory` tells of."""
        ...
