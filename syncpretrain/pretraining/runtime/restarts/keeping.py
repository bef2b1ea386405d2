"""The times at which a layer's state is kept: so seldom that it costs no more than a percent.

They are measured in processor time of the layer's process: beside other programs, a copy may wait
for a core, and a layer that waits for its input has nothing new to keep.
"""

from __future__ import annotations

import math
import time
from typing import Any

from syncpretrain.pretraining.runtime.restarts.state import KeptStates

__all__ = ["Keeping"]

PAUSES = 100  # between two copies, each as long as a copy takes
LEAST_PAUSE = 0.05  # seconds


class Keeping:
    """Keeps the states of one layer, in the process that trains it.

    Parameters
    ----------
    kept : KeptStates
    """

    def __init__(self, kept: KeptStates) -> None:
        self._kept = kept
        self._due = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether enough time has been used to keep the next state."""
        return time.process_time() >= self._due

    def keep(self, state: Any) -> None:
        """Keep a state; where there is no memory for it, none is kept from now on."""
        if self._due == math.inf:
            return
        started = time.process_time()
        try:
            self._kept.write(state)
        except OSError:  # training goes on; the parent finds that the state is lost
            self._kept.give_up()
            self._due = math.inf
            return
        ended = time.process_time()
        self._due = ended + max(LEAST_PAUSE, PAUSES * (ended - started))
