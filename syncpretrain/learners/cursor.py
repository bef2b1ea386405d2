"""The position in an epoch, and the request to leave it there."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cursor", "Stopped"]


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far an epoch is: its minibatches so far, and the sum of their errors."""

    minibatches: int = 0
    error: float = 0.0


class Stopped(Exception):  # noqa: N818 - not an error: the run was asked to stop
    """The epoch was left after a minibatch because the run is to end.

    ``cursor`` is where, or None if no minibatch of the epoch was looked at.
    """

    def __init__(self, cursor: Cursor | None = None) -> None:
        super().__init__()
        self.cursor = cursor
