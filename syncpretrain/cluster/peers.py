"""Signs of life of the ranks of a job: which of them live, their names, and their clocks."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from syncpretrain.cluster.engine import BOOT_ID

__all__ = ["Beat", "Peers", "has_died", "last_beat", "own_beat"]

SILENT_SECONDS = 30.0  # without one: a rank's threads may all be in one long call
NAMESPACE, PROCESSES = "/proc/self/ns/pid", "/proc"


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life: where the process of a rank is.

    Processes of the same ``machine`` share clock and process identifiers. ``leaves`` is its last.
    """

    host: str
    machine: str
    pid: int
    leaves: bool = False


class Peers:
    """The other ranks of a job by their signs of life: where each is, and whether it still lives.

    Parameters
    ----------
    beat : Beat
        The sign of life of this rank.
    now : float
        As in ``time.monotonic``.
    first_seconds : float
        For the first sign of life of a rank.
    """

    def __init__(self, beat: Beat, now: float, first_seconds: float) -> None:
        self._own, self._started, self._first_seconds = beat, now, first_seconds
        self.silent_seconds = SILENT_SECONDS
        self._beats: dict[int, Beat] = {}
        self._heard: dict[int, float] = {}
        self._offsets: dict[int, float] = {}

    @property
    def beats(self) -> Mapping[int, Beat]:
        """The newest sign of life of each rank."""
        return self._beats

    def hear(self, rank: int, sent: float, now: float) -> None:
        """Record that a rank has sent something at a time by its own clock."""
        # The least difference is of the message that was on its way for the shortest time: the best
        # guess of how far the two clocks are apart.
        self._heard[rank] = now
        self._offsets[rank] = min(self._offsets.get(rank, math.inf), now - sent)

    def wait_anew(self, now: float) -> None:
        """Count the silence of all ranks from now on: this one has not listened before."""
        self._heard = dict.fromkeys(self._heard, now)

    def record(self, rank: int, beat: Beat) -> None:
        """Record a sign of life; there is none after the last."""
        known = self._beats.get(rank)
        if known is None or not known.leaves:
            self._beats[rank] = beat

    def offset(self, rank: int) -> float:
        """Return the seconds to add to times of another rank's clock, a few ms too many."""
        beat = self._beats.get(rank)
        if beat is None or beat.machine == self._own.machine:
            return 0.0
        return self._offsets[rank]

    def first_on_machines(self) -> dict[int, int]:
        """Return the lowest rank on the machine of each rank that was heard."""
        first: dict[str, int] = {}
        for rank in sorted(self._beats):
            first.setdefault(self._beats[rank].machine, rank)
        return {rank: first[beat.machine] for rank, beat in self._beats.items()}

    def have_left(self, ranks: Iterable[int]) -> bool:
        """Return whether all of some ranks have sent their last sign of life."""
        return all(rank in self._beats and self._beats[rank].leaves for rank in ranks)

    def name(self, rank: int) -> str:
        """Return what a message calls a rank."""
        beat = self._beats.get(rank)
        return f"rank {rank}" + (f" on {beat.host}" if beat is not None else "")

    def lost(self, rank: int, now: float) -> str | None:
        """Return how a rank was lost, None if it was not."""
        beat = self._beats.get(rank)
        if beat is None:
            waited = now - self._started > self._first_seconds
            return f"did not come within {self._first_seconds:g} s" if waited else None
        process = f"(process {beat.pid})"
        if beat.leaves:
            return f"{process} has left"
        if beat.machine == self._own.machine and has_died(beat.pid):
            return f"{process} was killed or has crashed"
        if now - self._heard[rank] > self.silent_seconds:
            return f"{process} has not been heard of for {self.silent_seconds:g} s"
        return None


def own_beat(*, leaves: bool = False) -> Beat:
    """Return a sign of life of this process."""
    host = socket.gethostname()
    parts = [host]
    if Path(BOOT_ID).is_file():
        parts += [Path(BOOT_ID).read_text().strip(), str(Path(NAMESPACE).readlink())]
    return Beat(host, " ".join(parts), os.getpid(), leaves)


def last_beat(beat: Beat) -> Beat:
    """Return the sign of life with which a rank leaves."""
    return replace(beat, leaves=True)


def has_died(pid: int) -> bool:
    """Return whether a process of this machine has ended, even if no one knows of it yet."""
    try:
        text = Path(PROCESSES, str(pid), "stat").read_text()
    except FileNotFoundError:
        return Path(PROCESSES, "self").exists()  # else the system has no such files
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in "ZX"
