"""Predict the duration of a run by simulating its schedule on a clock of its own.

Pure: no threads, clocks or arrays.

Whole epochs (``simulate``): an epoch is made of parts that follow each other: making the
activations that it reads, where they do not exist yet; the training steps; the validation pass
afterwards. Each part has a duration for each number of workers, with no other core at work. The
number of workers of a layer, and that of busy cores, is determined anew whenever a part ends, as
the driver does whenever an epoch ends:

    time ->    0         4    6
    layer 1    ====2====|-1--|             two workers, then one, since layer 2 woke
    layer 2             |-1--|==2==|

Streams (``play_stream``): a block takes the seconds of its minibatches, in training or forward;
threads without a block help the lowest layer that shares its steps, as threads of the run do. A
long stream is simulated with fewer minibatches, and its time multiplied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from syncpretrain.schedule.schedule import Command, Release, Schedule, Train
from syncpretrain.schedule.stream import Block, StreamPlan, StreamSchedule

DONE = 1e-9  # of a part: what rounding leaves of it
BySize = Mapping[int, float]  # seconds by the number of workers


class EpochCost(NamedTuple):
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


class Simulated(NamedTuple):
    """Predicted result of a run.

    For each layer, ``epochs`` is the number of epochs that it trains, ``buffers`` the number of
    arrays of activations that it needs, ``transforms`` the number of versions of the layer below
    that it computes, and ``busy`` the seconds in which it trains an epoch.
    """

    seconds: float
    epochs: tuple[int, ...] = ()
    buffers: tuple[int, ...] = ()
    transforms: tuple[int, ...] = ()
    busy: tuple[float, ...] = ()


def slowdown(contention: float, busy: int, workers: int) -> float:
    """Return the factor by which a worker is slower while some are at work.

    ``contention`` is the factor where all ``workers`` are; more at work are links, which count not.
    """
    return 1 + (contention - 1) * (min(busy, workers) - 1) / max(1, workers - 1)


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
        slower, alone = (slowdown(self._cost.contention, n, workers) for n in (busy, cores))
        return 1 / max(self._parts[0][cores] * (slower / alone), 1e-12)

    def advance(self, share: float) -> None:
        """Do a share of the part, and go on to the next one if that was all."""
        self._left -= share
        if self._left <= DONE:
            self._parts.pop(0)
            self._left = 1.0

    def seconds(self, speed: float) -> float:
        """Return when the part will end at this speed."""
        return self._left / speed


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
        seconds = _advance(running, schedule.workers_per_layer(workers, replicas), workers)
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


MOST_MINIBATCHES = 3_000  # simulated of a stream: many beside what a ring holds


class StreamCost(NamedTuple):
    """Duration of a minibatch of one layer, in seconds.

    Attributes
    ----------
    train : mapping of int to float
        A training step, by the number of workers. Between two numbers the lower one counts.
    forward : float
        Computing only the hidden means.
    epoch_end : float
        Seconds at the end of an epoch: the validation error, the copy of the layer.
    contention : float
        Factor by which a worker becomes slower when all others are at work too; 1 for none.
    handover : float
        Seconds that every minibatch needs too, and that one worker of the run at a time can do.
    """

    train: Mapping[int, float]
    forward: float
    epoch_end: float = 0.0
    contention: float = 1.0
    handover: float = 0.0


def play_stream(
    plans: Sequence[StreamPlan],
    costs: Sequence[StreamCost],
    *,
    steps: int,
    ring: int,
    block: int,
    workers: int,
    replicas: Sequence[int],
    links: Collection[int] = (),
) -> Simulated:
    """Play a stream to its end; return its seconds, and the seconds that each layer is busy.

    Parameters
    ----------
    plans : sequence of StreamPlan
    costs : sequence of StreamCost
        One a layer, as the plans.
    steps : int
        Minibatches of an epoch.
    ring, block : int
        Parameters of :class:`StreamSchedule`.
    workers : int
        Workers of all layers together.
    replicas : sequence of int
        The most workers of a step of each layer.
    links : collection of int
        Numbers of layers, counted from 1, that stand for a network's link between the layers beside
        them: they pass minibatches on and take no worker.
    """
    fewer = max(1, max(plan.end for plan in plans) // MOST_MINIBATCHES)
    short = [StreamPlan(p.skipped // fewer, max(1, p.steps // fewer)) for p in plans]
    run = _Run(short, costs, steps, fewer, workers, replicas)
    schedule = StreamSchedule(short, ring=ring, block=block)
    clock, busy = 0.0, [0.0] * len(plans)

    def next_block() -> Block | None:
        is_free = sum(block.layer not in links for block in run.left) < workers
        return schedule.take(None if is_free else links)

    while not schedule.is_finished:
        while (taken := next_block()) is not None:
            run.begin(taken)
        layers = [block.layer for block in run.left]
        seconds, done = run.advance()
        clock += seconds
        for layer in layers:
            busy[layer - 1] += seconds
        schedule.done(done)
    whole = sum(plan.steps for plan in plans) / sum(plan.steps for plan in short)
    # The interpreter hands over one minibatch at a time: no number of workers is faster than that.
    seconds = max(clock, run.handing_over) * whole
    return Simulated(seconds, busy=tuple(whole * own for own in busy))


@dataclass
class _Run:
    """The blocks that are being processed, and the seconds of one worker left of each."""

    plans: Sequence[StreamPlan]
    costs: Sequence[StreamCost]
    steps: int
    each: int  # minibatches of the stream that one stands for
    workers: int
    replicas: Sequence[int]
    left: dict[Block, float] = field(default_factory=dict)
    handing_over: float = 0.0  # seconds of all blocks so far

    def begin(self, block: Block) -> None:
        i, minibatches = block.layer - 1, range(block.first, block.last + 1)
        self.handing_over += len(minibatches) * self.costs[i].handover
        self.left[block] = sum(self._seconds(i, number) for number in minibatches)

    def advance(self) -> tuple[float, Block]:
        """Go on until the first block is done; return the seconds, and the block."""
        helping = self.workers - len(self.left)
        speeds = {}
        for block in sorted(self.left, key=lambda block: block.layer):
            speeds[block], used = self._speed(block, helping)
            helping -= used
        for block in speeds:
            contention = self.costs[block.layer - 1].contention
            speeds[block] /= slowdown(contention, len(self.left), self.workers)
        # Until a block ends nobody starts or stops, so all speeds stay as they are: the clock may
        # go to the next end in one step.
        first = min(self.left, key=lambda block: self.left[block] / speeds[block])
        seconds = self.left[first] / speeds[first]
        for block, speed in speeds.items():
            self.left[block] -= seconds * speed
        del self.left[first]
        return seconds, first

    def _seconds(self, i: int, number: int) -> float:
        cost, is_trained = self.costs[i], number <= self.plans[i].end
        ends = number * self.each // self.steps - (number - 1) * self.each // self.steps
        end = cost.epoch_end * ends / self.each
        return (cost.train[1] if is_trained else cost.forward) + cost.handover + end

    def _speed(self, block: Block, helping: int) -> tuple[float, int]:
        """Return how many times faster than alone a block is, and how many helpers it has."""
        i = block.layer - 1
        if self.replicas[i] == 1 or block.first > self.plans[i].end:
            return 1.0, 0
        own = min(self.replicas[i], 1 + helping)
        train = self.costs[i].train
        size = max(n for n in train if n <= own)
        return train[1] / train[size], own - 1
