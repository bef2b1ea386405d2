"""Streamed schedule: which layer processes which minibatches of a stream next.

Pure: no threads, clocks or arrays. Layer 1 reads the data, epoch after epoch, as one stream of
minibatches, counted from 1. Every other layer reads the hidden means that the layer below computed
for the same minibatch, through a ring of a few minibatches. A layer skips the first minibatches,
trains on as many as its plan says, and after that only computes the hidden means that layers above
still need. One that learns no more may train on fewer (:meth:`shorten`).

With a delay of 2 minibatches, 4 to train on and a ring of 2 (``t`` trains, ``f`` forwards)::

    minibatch   1  2  3  4  5  6  7  8
    layer 1     t  t  t  t  f  f  f  f
    layer 2           t  t  t  t  f  f
    layer 3                 t  t  t  t

A layer may process a minibatch when the layer below has, and when the ring above has room for it.
Its result follows from the minibatches alone, so any order that keeps to this gives the same result
(a Kahn network). The lowest layer that may process goes first: it has the longest way to go.

On a device, blocks are cut at the same places whatever the timing: a layer waits until it may
process all of one. No block goes beyond the end of an epoch of the layer, or of a pass over the
data.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import accumulate

from syncpretrain.errors import ScheduleError

RING_MINIBATCHES = 8  # between two layers
RANK_RING_MINIBATCHES = 16  # between ranks, where some are on their way, or not yet known of
BLOCK_MINIBATCHES = 4  # that a layer processes at once: its weights stay in cache


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Minibatches of the stream that a layer skips, and then trains on."""

    skipped: int
    steps: int

    @property
    def end(self) -> int:
        """The last minibatch that the layer trains on."""
        return self.skipped + self.steps

    def at(self, position: int) -> int:
        """Return the minibatches since the layer began, at a place in the stream."""
        return position - self.skipped


@dataclass(frozen=True, slots=True)
class StreamEpochs:
    """Epochs of each layer of a stream, which starts ``delay`` epochs after the layer below."""

    epochs: Sequence[int]
    delay: float

    @property
    def passes(self) -> float:
        """The passes over the data until every layer is trained."""
        return max(i * self.delay + n for i, n in enumerate(self.epochs))

    def plans(self, steps: int) -> list[StreamPlan]:
        """Return the plan of each layer, where an epoch has ``steps`` minibatches."""
        layers = enumerate(self.epochs)
        return [StreamPlan(round(i * self.delay * steps), n * steps) for i, n in layers]

    def notice(self) -> str | None:
        """Return what is to be said of layers that wait until all below have trained."""
        first, idle, end = 0, 0.0, 0.0
        for layer in range(1, len(self.epochs)):  # of the one below, counted from 1
            end = max(end, (layer - 1) * self.delay + self.epochs[layer - 1])
            if layer * self.delay >= end:
                first = first or layer
                idle += layer * self.delay - end
        if not first:
            return None
        own, least = self.epochs[first - 1], min(self.epochs[:-1])
        lost = f"{idle:g} of the {self.passes:g} passes over the data train none"
        return (
            f"with delay {self.delay:g} layer {first + 1} starts after the"
            f" {'only epoch' if own == 1 else f'last of the {own} epochs'} of layer {first}: the"
            f" layers train one after another{f', and {lost}' if idle else ''}; a delay below"
            f" {least}, such as 0.5, lets them train at the same time"
        )


@dataclass(frozen=True, slots=True)
class Block:
    """Successive minibatches of the stream for one layer, counted from 1, as layers are."""

    layer: int
    first: int
    last: int


class StreamSchedule:
    """State machine of one streamed run.

    Parameters
    ----------
    plans : sequence of StreamPlan
        From the lowest layer up. No layer skips fewer minibatches than the layer below.
    ring : int
        Minibatches that may wait between two layers.
    block : int
        The most minibatches that a layer processes at once.
    steps : int
        Minibatches of a pass over the data, where only whole blocks are to be processed; else 0.
    epoch : int
        Minibatches of an epoch, beyond which no block goes, so that a stop in a block finds no
        epoch that has ended in it; 0 where blocks may.

    Raises
    ------
    ScheduleError
        If a number is out of range.
    """

    def __init__(
        self, plans: Sequence[StreamPlan], *, ring: int, block: int, steps: int = 0, epoch: int = 0
    ) -> None:
        delays = [plan.skipped for plan in plans]
        if min(ring, block) < 1 or min(plan.steps for plan in plans) < 1:
            raise ScheduleError(f"ring, block, steps: got {ring}, {block}; expected 1 or more")
        if delays != sorted(delays) or delays[0] < 0:
            raise ScheduleError(f"delays: got {delays}, expected numbers that rise from layer 1")
        if steps and ring < 2 * block - 1:  # two layers could wait for each other
            raise ScheduleError(f"ring: got {ring} with whole blocks of {block}")
        self._plans, self._ring, self._block, self._steps = list(plans), ring, block, steps
        self._epoch = epoch
        self.ends = self._last_needed()
        self._longest = list(self.ends)  # if no layer stops early
        self._positions = delays
        self._running: dict[int, Block] = {}

    def go_to(self, positions: Sequence[int]) -> None:
        """Continue where each layer has processed a minibatch last."""
        self._positions = list(positions)

    @property
    def positions(self) -> tuple[int, ...]:
        """The last minibatch that each layer has processed."""
        return tuple(self._positions)

    @property
    def running(self) -> tuple[int, ...]:
        """The layers that process a block now, from the lowest up."""
        return tuple(i + 1 for i in sorted(self._running))

    @property
    def is_finished(self) -> bool:
        """Whether every layer has processed all of its minibatches."""
        positions = zip(self._positions, self.ends, strict=True)
        return not self._running and all(position >= end for position, end in positions)

    def take(self, among: Container[int] | None = None) -> Block | None:
        """Return minibatches that a layer may process now; None to wait for :meth:`done`.

        ``among`` are the numbers, from 1, of the layers to choose from; by default all.

        Raises
        ------
        ScheduleError
            If no layer processes any, none may, and the stream has not ended.
        """
        for i in range(len(self._plans)):
            if i in self._running or (among is not None and i + 1 not in among):
                continue
            last = self._last_of_block(i)
            if last > self._positions[i]:
                self._running[i] = block = Block(i + 1, self._positions[i] + 1, last)
                return block
        if among is None and not self._running and not self.is_finished:
            raise ScheduleError(f"no layer may process; they are at {self._positions}")
        return None

    def done(self, block: Block, plan: StreamPlan | None = None) -> None:
        """Record that a layer has processed a block; and its plan, shorter after an early stop.

        Raises
        ------
        ScheduleError
            If the layer was not processing it.
        """
        if self._running.get(block.layer - 1) != block:
            raise ScheduleError(f"got {block}, which was not taken")
        del self._running[block.layer - 1]
        self._positions[block.layer - 1] = block.last
        if plan is not None and plan != self._plans[block.layer - 1]:
            self.shorten(block.layer, plan)

    def shorten(self, layer: int, plan: StreamPlan) -> None:
        """Record that a layer, counted from 1, trains on fewer minibatches than was planned."""
        self._plans[layer - 1] = plan
        self.ends = self._last_needed()

    def _last_needed(self) -> list[int]:
        """Return the last minibatch that each layer processes, for itself or those above."""
        return list(accumulate((plan.end for plan in reversed(self._plans)), max))[::-1]

    def _last_of_block(self, i: int) -> int:
        """Return the last minibatch of the block that a layer may process, its place for none."""
        position, limit, steps = self._positions[i], self._limit(i), self._steps
        if not steps:
            in_epoch = self._plans[i].at(position) % self._epoch if self._epoch else 0
            left = min(self._block, self._epoch - in_epoch) if self._epoch else self._block
            return min(position + left, limit)
        # Whole blocks are counted from the begin of the layer's epoch or of the pass, whichever
        # came later, and end with either. With a delay of 2, 6 minibatches a pass, and blocks of 4:
        #
        #     minibatch   1  2  3  4  5  6  7  8  9 10 11 12 13 14
        #     pass       [              ][                ][
        #     epoch            [                ][                ]
        #     block            [         ][    ][         ][     ]
        #
        # A resumed layer may be within a block: it first does the rest of it.
        in_epoch, in_pass = self._plans[i].at(position) % steps, position % steps
        done = min(in_epoch, in_pass) % self._block
        left = min(self._block - done, steps - in_epoch, steps - in_pass)
        last = min(position + left, self.ends[i])
        return last if last <= limit else position

    def _limit(self, i: int) -> int:
        """Return the last minibatch that a layer may process, by its input and the ring above."""
        limit = min(self.ends[i], self._positions[i - 1]) if i else self.ends[i]
        if i + 1 < len(self._plans) and self._positions[i + 1] < self.ends[i + 1]:
            filled = self._positions[i + 1] + self._ring
            # Minibatches that the layer above will never read go into no ring, and need no room.
            if filled < self._longest[i + 1]:
                limit = min(limit, filled)
        return limit
