"""Predict the duration of a run by simulating its schedule on a clock of its own.

Pure: no threads, clocks or arrays. An epoch is made of parts that follow each other: making the
activations that it reads, where they do not exist yet; the training steps; the validation pass
afterwards. Each part has a duration for each number of workers, with no other core at work. The
number of workers of a layer, and that of busy cores, is determined anew whenever a part ends, as
the driver does whenever an epoch ends:

    time ->    0         4    6
    layer 1    ====2====|-1--|             two workers, then one, since layer 2 woke
    layer 2             |-1--|==2==|
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from syncpretrain.schedule.schedule import Command, Release, Schedule, Train

__all__ = ["EpochCost", "Simulated", "simulate"]

DONE = 1e-9  # of a part: what rounding leaves of it
BySize = Mapping[int, float]  # seconds by the number of workers


@dataclass(frozen=True, slots=True)
class EpochCost:
    """Duration of an epoch of one layer, in seconds.

    Attributes
    ----------
    train, transform : mapping of int to float
        The training steps, and computing a new version of the layer below for it, by the number of
        workers. Between two numbers the lower one counts.
    validation : float
        Seconds of the validation, by one worker when the steps are over.
    contention : float
        Factor by which a worker becomes slower when all others are at work too; 1 for none.
    """

    train: BySize
    transform: BySize
    validation: float = 0.0
    contention: float = 1.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """Predicted result of a run.

    For each layer, ``epochs`` is the number of epochs that it trains, ``buffers`` the number of
    arrays of activations that it needs, ``transforms`` the number of versions of the layer below
    that it computes, and ``busy`` the seconds in which it trains an epoch.
    """

    seconds: float
    epochs: tuple[int, ...]
    buffers: tuple[int, ...]
    transforms: tuple[int, ...] = ()
    busy: tuple[float, ...] = ()


class _Epoch:
    """A running epoch: the parts that are left; the first may be partly done."""

    def __init__(self, cost: EpochCost, *, transforms: bool) -> None:
        self._cost = cost
        self._parts: list[BySize] = [cost.transform] if transforms else []
        self._parts += [cost.train, {1: cost.validation}]
        self._left = 1.0  # of the first part

    @property
    def is_finished(self) -> bool:
        """True if no part is left."""
        return not self._parts

    def cores(self, own: int) -> int:
        """Return the number of cores that it keeps busy, given the number of its own workers."""
        return max(size for size in self._parts[0] if size <= own)

    def speed(self, own: int, busy: int, workers: int) -> float:
        """Return the share of its part done in a second, given the number of busy cores."""
        cores = self.cores(own)
        slower = self._slowdown(busy, workers) / self._slowdown(cores, workers)
        seconds = self._parts[0][cores] * slower
        return 1 / max(seconds, 1e-12)

    def advance(self, share: float) -> None:
        """Do a share of the part, and go on to the next one if that was all."""
        self._left -= share
        if self._left <= DONE:
            self._parts.pop(0)
            self._left = 1.0

    def seconds(self, speed: float) -> float:
        """Return when the part will end at this speed."""
        return self._left / speed

    def _slowdown(self, busy: int, workers: int) -> float:
        if workers == 1:
            return 1.0
        return 1 + (self._cost.contention - 1) * (min(busy, workers) - 1) / (workers - 1)


class _Activations:
    """Versions with activations, and the largest number of them that a layer has at any time.

    ``reads`` counts the versions of the layer below that each layer computes.
    """

    def __init__(self, depth: int) -> None:
        self._computed: list[set[int]] = [set() for _ in range(depth)]
        self.most, self.reads = [0] * depth, [0] * depth

    def compute(self, command: Train) -> bool:
        """Compute the activations that an epoch reads; return False if that was done before."""
        below = command.layer - 2
        if below < 0 or command.reads in self._computed[below]:
            return False
        self._computed[below].add(command.reads)
        self.reads[below + 1] += 1
        self.most[below] = max(self.most[below], len(self._computed[below]))
        return True

    def release(self, command: Release) -> None:
        self._computed[command.layer - 1].discard(command.version)


def simulate(
    schedule: Schedule, costs: Sequence[EpochCost], *, workers: int, replicas: Sequence[int]
) -> Simulated:
    """Play a schedule to its end.

    Parameters
    ----------
    schedule : Schedule
        Not begun yet.
    costs : sequence of EpochCost
        One a layer, from the lowest up.
    workers : int
        Workers of all layers together.
    replicas : sequence of int
        Largest number of workers that each layer takes.
    """
    running: dict[int, _Epoch] = {}
    activations = _Activations(len(costs))

    def execute(commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Release):
                activations.release(command)
                continue
            transforms = activations.compute(command)
            running[command.layer] = _Epoch(costs[command.layer - 1], transforms=transforms)

    clock, busy = 0.0, [0.0] * len(costs)
    execute(schedule.begin())
    while running:
        assigned = schedule.workers_per_layer(workers, replicas)
        seconds = _advance(running, assigned, workers)
        clock += seconds
        for layer in running:
            busy[layer - 1] += seconds
        for layer in sorted(layer for layer, epoch in running.items() if epoch.is_finished):
            del running[layer]
            execute(schedule.finished(layer))
    most, reads = tuple(activations.most), tuple(activations.reads)
    return Simulated(clock, schedule.done, most, reads, tuple(busy))


def _advance(running: Mapping[int, _Epoch], assigned: Mapping[int, int], workers: int) -> float:
    """Let all work until the first part ends; return the seconds."""
    busy = sum(epoch.cores(assigned[layer]) for layer, epoch in running.items())
    speeds = {
        layer: epoch.speed(assigned[layer], busy, workers) for layer, epoch in running.items()
    }
    seconds = min(epoch.seconds(speeds[layer]) for layer, epoch in running.items())
    for layer, epoch in running.items():
        epoch.advance(seconds * speeds[layer])
    return seconds
