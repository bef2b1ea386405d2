"""Replacement of dead processes: the restarts that a run has left, and the kept states.

A dead process is replaced as long as the run has restarts left. The exception is a layer that made
no progress in several processes in a row: the cause is then in the layer, not in the machine, and
the run fails.

The newest state of a layer is in memory that outlives the process that trains the layer.

Guarantee: a process that is killed at any moment leaves one whole state, if it had ever written a
state. There are two places, written in turn. The writer first marks a place as empty, and marks the
place with the number of the state once the state is whole.

States are kept so seldom that keeping costs at most a percent of the layer's processor time. Wall
time would be a wrong measure: on a busy machine a copy may wait for a core, and a layer that waits
for its input has nothing new to keep.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from syncpretrain.parallel.descriptors import nameless_memory
from syncpretrain.workers.shared_memory import write_array


class Restarts:
    """The restarts that a run has left, and the messages about used restarts.

    Parameters
    ----------
    most : int
        Number of restarts at the begin of the run.
    report : callable, optional
        Called with each message, by the thread that calls :meth:`report_all`.

    Attributes
    ----------
    most : int
    """

    def __init__(self, most: int = 0, report: Callable[[str], None] | None = None) -> None:
        self.most = most
        self._report = report
        self._lock = threading.Lock()  # guards the number of used restarts
        self._used = 0
        # Appending to a deque and taking from it are atomic: no lock.
        self._messages: deque[str] = deque()

    def take(self) -> str | None:
        """Use a restart; return its name, such as "restart 1 of 3", or None if none is left.

        Any thread may call it.
        """
        with self._lock:
            if self._used == self.most:
                return None
            self._used += 1
            return f"restart {self._used} of {self.most}"

    def record(self, message: str) -> None:
        """Keep a message for :meth:`report_all`; any thread may call it."""
        self._messages.append(message)

    def report_all(self) -> None:
        """Report the messages that were recorded."""
        while self._messages:
            message = self._messages.popleft()
            if self._report is not None:
                self._report(message)


MARK = struct.Struct("<q")  # the number of the state
EMPTY, LOST = 0, -1  # instead of the number of a state: not whole; not kept any more
PROTOCOL = 5  # the first protocol of pickles that writes large arrays without a copy


@dataclass(frozen=True, slots=True)
class KeptStates:
    """Memory for the newest state of a layer; can be sent to a process that has the descriptors.

    A state is any object that can be pickled. Its large arrays are written without a copy in
    between.
    """

    descriptors: tuple[int, int]

    @classmethod
    def create(cls) -> KeptStates:
        """Return new memory with no state in it.

        Raises
        ------
        OSError
            If there is not enough memory.
        """
        with ExitStack() as undo:
            first, second = (_opened(undo) for _ in range(2))
            undo.pop_all()
        return cls((first, second))

    @property
    def number(self) -> int:
        """Number of the newest state, from 1; 0 if there is none, LOST if it could not be kept."""
        numbers = [_marked(place) for place in self.descriptors]
        return LOST if LOST in numbers else max(numbers)

    def write(self, state: Any) -> None:
        """Write a newer state over the older of the two.

        Raises
        ------
        OSError
            If there is not enough memory; the newest state is still there then.
        """
        number = self.number + 1
        place = self.descriptors[number % 2]
        # Killed from here to the last line, this place is empty, and the other one is whole.
        _mark(place, EMPTY)
        ForkingPickler(_Writer(place), PROTOCOL).dump(state)
        _mark(place, number)

    def newest(self) -> Any:
        """Return the newest state, in arrays of its own; None if there is none."""
        place = max(self.descriptors, key=_marked)
        if _marked(place) < 1:
            return None
        with (
            mmap.mmap(place, 0, access=mmap.ACCESS_READ) as memory,
            memoryview(memory) as whole,
            whole[MARK.size :] as written,
        ):
            return ForkingPickler.loads(written)

    def give_up(self) -> None:
        """Record that the layer has trained on without a newer state, and cannot be replaced."""
        for place in self.descriptors:
            _mark(place, LOST)

    def close(self) -> None:
        """Close the descriptors."""
        for place in self.descriptors:
            os.close(place)


def _opened(undo: ExitStack) -> int:
    place = nameless_memory()
    undo.callback(os.close, place)
    _mark(place, EMPTY)
    return place


def _mark(place: int, number: int) -> None:
    # 8 bytes in one page that exists already: at a kill they are written whole, or not at all.
    os.pwrite(place, MARK.pack(number), 0)


def _marked(place: int) -> int:
    (number,) = MARK.unpack(os.pread(place, MARK.size, 0))
    return int(number)


class _Writer:
    """A file for the pickler: the bytes of a place behind its mark."""

    def __init__(self, place: int) -> None:
        self._place, self._end = place, MARK.size

    def write(self, data: Any) -> None:
        written = np.frombuffer(data, np.uint8)
        write_array(self._place, written, self._end)
        self._end += len(written)


# A pause 100 times as long as the last copy limits the cost to a percent; the least pause is for
# copies too short to be measured.
PAUSES = 100
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
        """True if the pause after the last kept state is over."""
        return time.process_time() >= self._due

    def keep(self, state: Any) -> None:
        """Keep a state; without memory for the state, keep none from now on."""
        if self._due == math.inf:
            return
        started = time.process_time()
        try:
            self._kept.write(state)
        except OSError:  # training goes on; the parent reads that the state is lost
            self._kept.give_up()
            self._due = math.inf
            return
        ended = time.process_time()
        self._due = ended + max(LEAST_PAUSE, PAUSES * (ended - started))


MOST_IN_VAIN = 3  # processes of a layer in a row that keep no new state


class Replacement:
    """Decides whether a dead process is replaced, and holds the kept states of the layers.

    Parameters
    ----------
    restarts : Restarts
        If the run has no restarts, no state is kept and no process is replaced.
    """

    def __init__(self, restarts: Restarts) -> None:
        self._restarts = restarts
        self._kept: list[KeptStates] = []
        self._lock = threading.Lock()  # guards the next line; each state has one writer
        # By layer: the number of the newest state, and of processes in vain since.
        self._in_vain: dict[int, tuple[int, int]] = {}

    def open(self, layers: int) -> None:
        """Allocate the memory for the states of some layers.

        Raises
        ------
        OSError
            If there is not enough.
        """
        for _ in range(layers if self._restarts.most else 0):
            self._kept.append(KeptStates.create())

    def kept(self, layer: int) -> KeptStates | None:
        """Return the kept states of a layer, counted from 1; None if no states are kept."""
        return self._kept[layer - 1] if self._kept else None

    def takes(self, layer: int, death: BaseException) -> bool:
        """Use a restart for a layer after the death of its process; return False if none is left.

        Any thread may call it.
        """
        with self._lock:
            kept = self.kept(layer)
            if kept is None or (number := kept.number) == LOST:
                return False
            # A process in vain kept no state newer than the state from which it began.
            before, in_vain = self._in_vain.get(layer, (number, 0))
            in_vain = in_vain + 1 if before == number else 1
            self._in_vain[layer] = number, in_vain
            which = self._restarts.take() if in_vain <= MOST_IN_VAIN else None
            if which is None:
                return False
        text = f"warning: {death}; a new process goes on from its last state ({which})"
        self._restarts.record(text)
        return True

    def close(self) -> None:
        """Release the memory."""
        for kept in self._kept:
            kept.close()
        self._kept.clear()
