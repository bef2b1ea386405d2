"""Numbers that follow from the number of rows, where the parameters leave them open."""

from __future__ import annotations

from typing import Any

__all__ = ["epochs_for", "minibatch_for"]

AT_LEAST = 40  # in an epoch of few rows
FEWEST, MOST = 10, 100  # rows of a minibatch
UPDATES = {"pretrain": 1000, "finetune": 2000}
FEWEST_EPOCHS = 10


def minibatch_for(rows: int, wanted: int | None) -> int:
    """Return the rows of a minibatch: those wanted, or what suits the rows there are."""
    size = min(MOST, max(FEWEST, rows // AT_LEAST)) if wanted is None else wanted
    return min(size, rows)


def epochs_for(part: str, rows: int, batch_size: int, wanted: Any) -> Any:
    """Return the epochs of a part: those wanted, or enough for its number of updates."""
    if wanted is not None:
        return wanted
    return max(FEWEST_EPOCHS, -(-UPDATES[part] * batch_size // rows))
