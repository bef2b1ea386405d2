"""Naps of a thread that looks for messages: how long it sleeps between two looks."""

from __future__ import annotations

__all__ = ["Naps"]

SHORTEST_NAP, LONGEST_NAP, IDLE_NAP = 0.1e-3, 2e-3, 10e-3  # to wake takes some 50 us of a core
SENDING_NAP = 0.5e-3  # what is on its way rarely needs this rank
RESTING_NAP = 50e-3  # where a bell ends it
IDLE_SECONDS = 0.5
EAGER_NAP = 0.25e-3  # where others wait for what this rank does with a message


class Naps:
    """The length of the next nap, from what the looks have found.

    Each nap is twice as long as the one before, as long as nothing moves. Where a bell rings as a
    message comes, and none is under way, the first one is long already.

    Parameters
    ----------
    now : float
        As in ``time.monotonic``, as everywhere here.
    """

    def __init__(self, now: float) -> None:
        self._nap, self._moved = SHORTEST_NAP, now

    def wake(self) -> None:
        """Begin with short naps: a bell has rung, and what it rang for may come a moment later."""
        self._nap = SHORTEST_NAP / 2

    def after(
        self, now: float, *, moved: bool, rings: bool, is_eager: bool, is_sending: bool
    ) -> float:
        """Return the seconds of the next nap.

        Parameters
        ----------
        now : float
        moved : bool
            Whether the last look found something.
        rings : bool
            Whether a bell will ring as soon as there is something to find.
        is_eager : bool
            Whether looks without a bell are to be close together.
        is_sending : bool
            Whether a message is on its way, which may need this thread to move on.
        """
        rings = rings and not is_sending
        if moved:
            self._moved = now
            self._nap = LONGEST_NAP if rings else SHORTEST_NAP
            if is_sending:
                self._nap = SENDING_NAP
            return self._nap
        longest = EAGER_NAP if is_eager else LONGEST_NAP
        if rings:
            longest = RESTING_NAP
        elif now - self._moved > IDLE_SECONDS and not is_sending:
            longest = IDLE_NAP
        self._nap = min(2 * self._nap, longest)
        return self._nap
