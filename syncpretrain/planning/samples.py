"""The rows of a minibatch that are timed, where a step on all of them would take too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["MOST_SECONDS", "PROBES", "PROBES_OF_SIZE", "Sample", "sampled"]

MOST_SECONDS = 18.0  # of measuring a stack
PROBES, PROBES_OF_SIZE = 24, 6  # timings of a layer in a round, and more for a number of workers
USUAL_SPEED = 1e10  # operations a second that a core makes, so that most steps need no trial
UPDATE_OPERATIONS = 100  # in the time in which a parameter is read and written by an update
SLOW_START = 1.0  # seconds of a step on one row after which two are not tried


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows to time steps on.

    Attributes
    ----------
    rows, batch_size : int
    slope : float
        Seconds of one row more, as a share of those of a step on these rows.
    seconds : float or None
        Of a step on these rows, as it was tried; None where no trial was needed.
    """

    rows: int
    batch_size: int
    slope: float = 0.0
    seconds: float | None = None

    @property
    def is_part(self) -> bool:
        """Whether these are not all rows of a minibatch."""
        return self.rows < self.batch_size

    @property
    def scale(self) -> float:
        """The seconds of a whole minibatch over those of a step on these rows."""
        return self.scale_to(self.batch_size)

    def scale_to(self, rows: int) -> float:
        """Return the seconds of a step on more rows over those of one on these."""
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
        Of the products of a step on one row.
    parameters : int
        That a step updates.
    seconds : float

    Notes
    -----
    The rows are doubled as long as a step takes less than half of the seconds. A whole minibatch is
    taken to lie on the line through the last two steps, so that an update of many parameters, which
    takes as long on any number of rows, is not counted for each. After a single step on one row the
    update's share is taken from the number of parameters.
    """
    if operations * batch_size <= seconds * USUAL_SPEED:
        return Sample(batch_size, batch_size)
    tried = [(1, step(1))]
    while tried[-1][0] < batch_size and tried[-1][1] < (
        SLOW_START if len(tried) == 1 else seconds / 2
    ):
        rows = min(2 * tried[-1][0], batch_size)
        tried.append((rows, step(rows)))
    rows, longest = tried[-1]
    slope = longest / rows
    if len(tried) == 1:
        slope *= operations / (operations + UPDATE_OPERATIONS * parameters)
    else:
        few, shorter = tried[-2]
        slope = min(slope, max(0.0, longest - shorter) / (rows - few))
    longest = max(longest, 1e-9)
    return Sample(rows, batch_size, slope / longest, longest)
