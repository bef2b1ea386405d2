"""Windows as rank 0 sees them: a parameter server without requests to answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from syncpretrain.cluster.transport import Transport
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.server import ParameterServer, Push
from syncpretrain.pretraining.runtime.ranks.messages import ServerPlace
from syncpretrain.pretraining.runtime.ranks.parameter_windows import (
    CLOCK_RANK,
    CLOCK_SIZE,
    ParameterWindows,
    WindowPlaces,
    WindowSlice,
)

__all__ = ["WindowServer"]


class WindowRanks(Protocol):
    """The interface of the ranks of a run; see ``pretraining/runtime/ranks/run.py``."""

    groups: dict[int, tuple[int, ...]]
    transport: Transport
    run: int

    @property
    def is_given_up(self) -> bool:
        """Whether a rank does not answer."""
        ...


class WindowServer:
    """A :class:`~syncpretrain.parallel.replicas.server.Server` without requests to answer.

    Replicas fetch and push by themselves, and answer with what became of their pushes.

    Parameters
    ----------
    own : ParameterServer
        Of which the parameters here are those of the last :meth:`settle`.
    replicas : int
        Numbered from 1; slices have the numbers after theirs, if there are several.
    """

    def __init__(self, own: ParameterServer, replicas: int) -> None:
        self._own, self._replicas = own, replicas
        self._ranks: WindowRanks | None = None
        self._places: WindowPlaces | None = None
        self._parameters: ParameterWindows | None = None
        self._pushes: dict[int, Push] = {}

    def begin(self, ranks: WindowRanks) -> tuple[WindowPlaces, list[ServerPlace]]:
        """Open the windows; return what replicas have to know of them, and no places of servers."""
        self._ranks, windows = ranks, ranks.transport.windows
        lengths, parts = [0] * ranks.transport.size, list[WindowSlice]()
        for number, own in enumerate(self._own.slices, start=self._replicas + 1):
            rank = ranks.groups[number][0] if len(self._own.slices) > 1 else CLOCK_RANK
            parts.append(WindowSlice(rank, lengths[rank], (own.start, own.stop)))
            lengths[rank] += own.stop - own.start
        names = f"parameters of run {ranks.run}", f"clock of run {ranks.run}"
        self._places = WindowPlaces(*names, tuple(parts), self._own.rules)
        windows.open(self._places.parameters, lengths, "float32")
        clock = [CLOCK_SIZE if rank == CLOCK_RANK else 0 for rank in range(len(lengths))]
        windows.open(self._places.clock, clock, "int64")
        self._parameters = ParameterWindows(windows, self._places)
        return self._places, []

    def record(self, number: int, push: Push) -> None:
        """Keep what became of a replica's push, in the thread of the transport."""
        self._pushes[number] = push

    def start(self) -> None:
        """Set the parameters."""
        if self._parameters is not None:
            self._parameters.begin(self._own.parameters)

    def end(self) -> None:
        """Close the windows, unless a rank does not answer: the job is aborted then."""
        parameters, self._parameters = self._parameters, None
        if parameters is None or self._ranks is None or self._ranks.is_given_up:
            return
        assert self._places is not None
        for name in (self._places.parameters, self._places.clock):
            self._ranks.transport.windows.close(name)

    def fetch(self, out: int) -> int:
        """Do nothing: the replica fetches, and knows the clock."""
        return 0

    def push(self, change: int, then: int, fetched: int) -> Push:
        """Return what became of the change that the replica has pushed."""
        push = self._pushes.pop(change)
        if push.is_taken:
            self._own.clock += 1
        else:
            self._own.refused += 1
        return push

    def settle(self) -> None:
        """Bring the parameters here: no replica is at work."""
        assert self._parameters is not None
        self._parameters.read(self._own.parameters)

    def state(self) -> dict[str, Array]:
        """Return nothing: all that the next push depends on is the parameters."""
        return {}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Do nothing: there is no state."""

    def add_late(self, state: Mapping[str, Array]) -> None:
        """Add the changes that wait in a state."""
        self._own.add_late(state)
        self.start()
