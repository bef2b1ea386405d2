"""The schedule: which layer trains when, on which version, and when a version may be forgotten.

Pure: no threads, clocks or arrays. The driver calls :meth:`Schedule.begin` once and
:meth:`Schedule.finished` after every epoch; both return commands for a runtime to execute.
Layers are numbered from 1 outside, as in the papers; ``_reads`` and ``_done`` start at index 0.

A version n of layer l is its parameters after n epochs together with the activations they make of
the version of layer l-1 it was last trained on. The activations are made by the first reader, in
layer l+1, so a version that nobody takes costs nothing. A version is therefore *held* as long as

1. the layer above trains on it, or may do so once more;
2. the layer above has not begun it yet but will;
3. the layer above published a version that was trained on it and whose activations are still to
   be made by the layer two above.

At most 3 versions of a layer have activations at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncpretrain.errors import ScheduleError
from syncpretrain.schedule.pace import Pace
from syncpretrain.schedule.plan import LayerPlan, Reads

__all__ = ["Command", "Forget", "Past", "Schedule", "Train"]


@dataclass(frozen=True, slots=True)
class Train:
    """Train one epoch of a layer on version ``reads`` of the layer below, then publish it.

    ``below_reads`` is the version of the layer two below that ``reads`` was trained on: its
    activations are what those of ``reads`` are made from. It is 0 where ``reads`` is the data.
    """

    layer: int
    epoch: int
    reads: int
    below_reads: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget a version of a layer; nobody will read it again."""

    layer: int
    version: int


Command = Train | Forget


@dataclass(frozen=True, slots=True)
class Past:
    """What a schedule has decided and seen so far: all it needs to go on.

    For each layer the upstream version of every epoch begun, how many of these are finished, which
    versions are held, and the epochs stipulated, fewer than planned if it stopped early.
    """

    reads: Reads
    done: tuple[int, ...]
    held: Reads
    epochs: tuple[int, ...]


class Schedule:
    """The state machine of one run.

    Parameters
    ----------
    plans : sequence of LayerPlan
        From the lowest layer up.
    pace : Pace
        What each epoch reads.
    slots : int
        How many layers may train at a time.
    """

    def __init__(self, plans: Sequence[LayerPlan], pace: Pace, *, slots: int) -> None:
        if slots < 1:
            raise ScheduleError(f"slots: got {slots}, expected 1 or more")
        self._plans = tuple(plans)
        self._pace = pace
        self._slots = slots
        self._reads: list[list[int]] = [[] for _ in plans]
        self._done = [0] * len(plans)
        self._epochs = [plan.epochs for plan in plans]
        self._held: list[set[int]] = [set() for _ in plans]

    @property
    def reads(self) -> Reads:
        """For each layer, the upstream version of every epoch begun so far."""
        return tuple(tuple(layer) for layer in self._reads)

    @property
    def done(self) -> tuple[int, ...]:
        """Epochs finished by each layer."""
        return tuple(self._done)

    @property
    def training(self) -> tuple[int, ...]:
        """Layers that are training now, numbered from 1."""
        return tuple(i + 1 for i in range(len(self._plans)) if self._trains(i))

    @property
    def over(self) -> bool:
        """Whether the run has ended: nobody trains and nobody can be woken."""
        return not self.training and not self._ready()

    def ended(self, layer: int) -> bool:
        """Return whether a layer will never train again."""
        i = layer - 1
        if self._trains(i) or self._pace.next_read(i, self._reads, self._done) is not None:
            return False
        return i == 0 or self._pace.over(self._reads, self._done) or self.ended(layer - 1)

    @property
    def past(self) -> Past:
        """What has been so far; :meth:`resume` goes on from it."""
        held = tuple(tuple(sorted(versions)) for versions in self._held)
        return Past(self.reads, self.done, held, tuple(self._epochs))

    def begin(self) -> list[Command]:
        """Return the first commands."""
        return self._assign()

    def resume(self, past: Past) -> list[Command]:
        """Go on from a past; return the first commands: the epochs that were begun, then others.

        Where more were begun than there are slots now, they all train; others wait until slots are
        free.

        Raises
        ------
        ScheduleError
            If it is the past of other layers.
        """
        if {len(past.reads), len(past.done), len(past.held)} != {len(self._plans)}:
            raise ScheduleError(f"resume: the past is of {len(past.reads)} layers")
        for i, epochs in enumerate(past.epochs):
            if epochs < self._epochs[i]:
                self._pace.shorten(i, epochs)
                self._epochs[i] = epochs
        self._reads = [list(reads) for reads in past.reads]
        self._done = list(past.done)
        self._held = [set(versions) for versions in past.held]
        again: list[Command] = [self._train(i) for i in range(len(self._plans)) if self._trains(i)]
        return [*again, *self._assign()]

    def finished(self, layer: int, *, stops: bool = False) -> list[Command]:
        """Take note that a layer finished its epoch and published it; return what follows.

        ``stops`` says that the layer has learned enough: its stipulated epochs end here. Newer
        versions below still wake it for refreshes.

        Raises
        ------
        ScheduleError
            If the layer was not training, or if everybody sleeps before the run's end.
        """
        i = layer - 1
        if not self._trains(i):
            raise ScheduleError(f"layer {layer} finished without training; {self._story()}")
        self._done[i] += 1
        self._held[i].add(self._done[i])
        if stops and self._done[i] < self._epochs[i]:
            self._pace.shorten(i, self._done[i])
            self._epochs[i] = self._done[i]
        commands = self._assign()
        if not self.training and not self._complete():
            raise ScheduleError(f"every layer sleeps before the end; {self._story()}")
        return commands

    def shares(self, workers: int, most: Sequence[int]) -> dict[int, int]:
        """Return how many workers each training layer has.

        Each has one. What is left over goes to those with the longest way to go, up to the
        ``most`` that each layer takes.
        """
        shares = dict.fromkeys(self.training, 1)
        spare = workers - len(shares)
        for layer in sorted(shares, key=lambda x: self._critical_path(x - 1), reverse=True):
            more = max(0, min(spare, most[layer - 1] - 1))
            shares[layer] += more
            spare -= more
        return shares

    def _assign(self) -> list[Command]:
        """Give free slots to the ready layers with the longest way to go; forget the rest."""
        trains: list[Command] = []
        while len(self.training) < self._slots and (ready := self._ready()):
            i = max(ready, key=self._critical_path)
            version = self._pace.next_read(i, self._reads, self._done)
            if version is None:
                raise ScheduleError(f"layer {i + 1} is ready to read nothing; {self._story()}")
            self._reads[i].append(version)
            trains.append(self._train(i))
        return [*self._forget(), *trains]

    def _train(self, i: int) -> Train:
        """Return the command of the epoch that a layer has begun."""
        version = self._reads[i][-1]
        below_reads = self._reads[i - 1][version - 1] if i else 0
        return Train(i + 1, len(self._reads[i]), version, below_reads)

    def _trains(self, i: int) -> bool:
        return len(self._reads[i]) > self._done[i]

    def _ready(self) -> list[int]:
        return [i for i in range(len(self._plans)) if not self._trains(i) and self._can_start(i)]

    def _can_start(self, i: int) -> bool:
        version = self._pace.next_read(i, self._reads, self._done)
        published = version is not None and (i == 0 or version <= self._done[i - 1])
        return published and self._pace.may_start(i, self._reads, self._done)

    def _critical_path(self, i: int) -> float:
        """Return the longest chain of epochs from here to the end, each waiting for the last.

        A chain climbs the layers once and spends its repeats in the costliest one.
        """
        above = range(i, len(self._plans))
        climb = sum(self._plans[j].cost for j in above)
        repeats = (self._plans[j].cost * (self._pace.remaining(j, self._reads) - 1) for j in above)
        return climb + max(0.0, *repeats)

    def _forget(self) -> list[Command]:
        freed: list[Command] = []
        for i in range(len(self._plans)):
            dropped = self._held[i] - self._live(i)
            self._held[i] -= dropped
            freed += [Forget(i + 1, version) for version in sorted(dropped)]
        return freed

    def _live(self, i: int) -> set[int]:
        """Return the versions of a layer that somebody may still read (module docstring)."""
        if i + 1 == len(self._plans):
            return set()
        live = set(self._pace.unread(i, self._reads, self._done))  # 2
        above = self._reads[i + 1]
        if above and not self.ended(i + 2):
            live.add(above[-1])  # 1
        if i + 2 < len(self._plans):
            pending = set(self._pace.unread(i + 1, self._reads, self._done))
            if self._trains(i + 2):
                pending.add(self._reads[i + 2][-1])
            live |= {above[version - 1] for version in pending}  # 3
        return live

    def _complete(self) -> bool:
        return all(self.ended(i + 1) for i in range(len(self._plans)))

    def _story(self) -> str:
        rows = zip(self._done, self._reads, strict=True)
        return "so far " + "; ".join(
            f"layer {i}: {done} epochs done, read versions {reads[-8:]}"
            for i, (done, reads) in enumerate(rows, start=1)
        )
