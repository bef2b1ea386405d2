"""Predict the duration of a streamed run by simulating its schedule on a clock of its own.

Pure: no threads, clocks or arrays. A block takes the seconds of its minibatches, in training or
forward; threads without a block help the lowest layer that shares its steps, as threads of the run
do. A long stream is simulated with fewer minibatches, and its time multiplied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from syncpretrain.schedule.stream import Block, StreamPlan, StreamSchedule

__all__ = ["StreamCost", "Streamed", "play_stream", "simulate_stream"]

MOST_MINIBATCHES = 3_000  # simulated of a stream: many beside what a ring holds


@dataclass(frozen=True, slots=True)
class StreamCost:
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


@dataclass(frozen=True, slots=True)
class Streamed:
    """Predicted result of a stream: its seconds, and the seconds that each layer is busy."""

    seconds: float
    busy: tuple[float, ...]


def simulate_stream(
    plans: Sequence[StreamPlan],
    costs: Sequence[StreamCost],
    *,
    steps: int,
    ring: int,
    block: int,
    workers: int,
    replicas: Sequence[int],
) -> float:
    """Return the seconds of a stream.

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
    """
    return play_stream(
        plans, costs, steps=steps, ring=ring, block=block, workers=workers, replicas=replicas
    ).seconds


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
) -> Streamed:
    """Play a stream to its end, as :func:`simulate_stream` does.

    ``links`` are numbers of layers, counted from 1, that stand for a network's link between the
    layers beside them: they pass minibatches on and take no worker.
    """
    longest = max(plan.end for plan in plans)
    fewer = max(1, longest // MOST_MINIBATCHES)
    short = [StreamPlan(p.skipped // fewer, max(1, p.steps // fewer)) for p in plans]
    run = _Run(short, costs, steps, fewer, workers, replicas)
    schedule = StreamSchedule(short, ring=ring, block=block)
    clock, busy = 0.0, [0.0] * len(plans)
    while not schedule.is_finished:
        while (taken := _next(schedule, run, workers, links)) is not None:
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
    return Streamed(seconds, tuple(whole * own for own in busy))


def _next(
    schedule: StreamSchedule, run: _Run, workers: int, links: Collection[int]
) -> Block | None:
    """Return a block that a free worker may process, or a link."""
    if sum(block.layer not in links for block in run.left) < workers:
        return schedule.take()
    return schedule.take(links) if links else None


class _Run:
    """The blocks that are being processed, and the seconds of one worker left of each."""

    def __init__(
        self,
        plans: Sequence[StreamPlan],
        costs: Sequence[StreamCost],
        steps: int,
        each: int,
        workers: int,
        replicas: Sequence[int],
    ) -> None:
        self._plans, self._costs, self._steps = plans, costs, steps
        self._each = each  # minibatches of the stream that one stands for
        self._workers, self._replicas = workers, replicas
        self.left: dict[Block, float] = {}
        self.handing_over = 0.0  # seconds of all blocks so far

    def begin(self, block: Block) -> None:
        minibatches = block.last - block.first + 1
        self.handing_over += minibatches * self._costs[block.layer - 1].handover
        self.left[block] = sum(
            self._seconds(block.layer - 1, n) for n in range(block.first, block.last + 1)
        )

    def advance(self) -> tuple[float, Block]:
        """Go on until the first block is done; return the seconds, and the block."""
        helping = self._workers - len(self.left)
        speeds = {}
        for block in sorted(self.left, key=lambda block: block.layer):
            speeds[block], used = self._speed(block, helping)
            helping -= used
        others = min(len(self.left), self._workers) - 1  # more of them are links
        slower = others / (self._workers - 1) if self._workers > 1 else 0.0
        for block in speeds:
            speeds[block] /= 1 + (self._costs[block.layer - 1].contention - 1) * slower
        # Until a block ends nobody starts or stops, so all speeds stay as they are: the clock may
        # go to the next end in one step.
        first = min(self.left, key=lambda block: self.left[block] / speeds[block])
        seconds = self.left[first] / speeds[first]
        for block, speed in speeds.items():
            self.left[block] -= seconds * speed
        del self.left[first]
        return seconds, first

    def _seconds(self, i: int, number: int) -> float:
        cost, is_trained = self._costs[i], number <= self._plans[i].end
        ends = number * self._each // self._steps - (number - 1) * self._each // self._steps
        end = cost.epoch_end * ends / self._each
        return (cost.train[1] if is_trained else cost.forward) + cost.handover + end

    def _speed(self, block: Block, helping: int) -> tuple[float, int]:
        """Return how many times faster than alone a block is, and how many helpers it has."""
        i = block.layer - 1
        is_trained = block.first <= self._plans[i].end
        if self._replicas[i] == 1 or not is_trained:
            return 1.0, 0
        own = min(self._replicas[i], 1 + helping)
        train = self._costs[i].train
        size = max(n for n in train if n <= own)
        return train[1] / train[size], own - 1
