"""The rows of a minibatch that are timed, where a step on all of them would take too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["MOST_NUMBERS", "MOST_SECONDS", "PROBES", "PROBES_OF_SIZE", "Sample", "sampled"]

MOST_NUMBERS = 4_000_000  # of a layer's rows: more than caches hold, and soon drawn
MOST_SECONDS = 18.0  # of measuring a stack
PROBES, PROBES_OF_SIZE = 24, 6  # timings of a layer in a round, and more for a number of workers
USUAL_SPEED = 1e10  # operations a second that a core makes, so that most steps need no trial
UPDATE_OPERATIONS = 100  # that a core makes while an update moves a parameter; 83 measured
SLOW_START = 1.0  # seconds of a step on one row, which is not repeated
MOST_TRIED = 30.0  # seconds that one row may take at the usual speed


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows to time steps on.

    Attributes
    ----------
    rows, batch_size : int
    slope : float
        Seconds of one row more, as a share of the seconds of a step on these rows.
    seconds : float or None
        Seconds of the trial step on these rows; None if no trial was needed.
    is_tried : bool
        False if one row would take too long; its seconds are then computed from its operations.
    """

    rows: int
    batch_size: int
    slope: float = 0.0
    seconds: float | None = None
    is_tried: bool = True

    @property
    def is_part(self) -> bool:
        """Whether these are not all rows of a minibatch."""
        return self.rows < self.batch_size

    @property
    def scale(self) -> float:
        """Seconds of a whole minibatch, relative to a step on these rows."""
        return self.scale_to(self.batch_size)

    def scale_to(self, rows: int) -> float:
        """Return the seconds of a step on more rows, relative to a step on these rows."""
        return 1 + (rows - self.rows) * self.slope


def sampled(
    step: Callable[[int], float],
    *,
    batch_size: int,
    operations: float,
    parameters: int,
    seconds: float,
) -> Sample:
    """Return the rows of a minibatch on which a step takes no more than about some seconds.

    Parameters
    ----------
    step : callable
        Makes a step on a number of rows, and returns its seconds.
    batch_size : int
    operations : float
        Operations of the products of a step on one row.
    parameters : int
        Parameters that a step updates.
    seconds : float

    Notes
    -----
    The rows are doubled as long as a step takes less than half of the seconds. What of a step grows
    with its rows follows from the numbers of operations and of parameters: two timings, each as
    disturbed as any, would not show it.
    """
    if operations * batch_size <= seconds * USUAL_SPEED:
        return Sample(batch_size, batch_size)
    if operations > MOST_TRIED * USUAL_SPEED:
        slope = _growing(operations, 1, parameters)
        return Sample(1, batch_size, slope, operations / USUAL_SPEED, is_tried=False)
    rows, longest = 1, step(1)
    if longest < SLOW_START:
        longest = step(1)  # the first one touched the memory
    while rows < batch_size and longest < seconds / 2:
        rows = min(2 * rows, batch_size)
        longest = step(rows)
    return Sample(rows, batch_size, _growing(operations, rows, parameters), max(longest, 1e-9))


def _growing(operations: float, rows: int, parameters: int) -> float:
    """Return the share of a step on some rows that one row more adds."""
    return operations / (operations * rows + UPDATE_OPERATIONS * parameters)
