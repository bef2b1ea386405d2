"""What is measured on: a device, the sizes, and the steps of one layer as an epoch works them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.recorder import Recorder
from syncpretrain.learners.rbm import RBM, RBMSettings
from syncpretrain.learners.select import step_for
from syncpretrain.learners.steps import FusedDivergence, WholeStep
from syncpretrain.settings import MomentumSchedule

__all__ = ["Bench", "BlocksOfSteps", "Table", "Times", "rst_table", "seconds_of"]

Table = tuple[Sequence[str], Iterable[Sequence[str]]]  # a head, and rows


@dataclass(frozen=True)
class Bench:
    """A device and the sizes that are measured.

    Attributes
    ----------
    backend : CupyBackend
    layers : tuple of int
    batch_size, rows : int
    blocks, repeats : int
        How many blocks of steps are timed together, and how often; the median counts.
    epochs : int
        Of whole runs.
    """

    backend: Any
    layers: tuple[int, ...]
    batch_size: int
    rows: int
    blocks: int
    repeats: int
    epochs: int

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.layers) - 1

    def name(self, layer: int) -> str:
        """Return how a layer is called, counted from 1."""
        return f"{self.layers[layer - 1]}-{self.layers[layer]}"

    def examples(self, layer: int, rows: int) -> NDArray[np.float32]:
        """Return rows that a layer could read; those of the first are bytes divided by 255."""
        draws, width = np.random.default_rng(layer), self.layers[layer - 1]
        if layer > 1:
            return draws.random((rows, width), dtype=np.float32)
        numbers = draws.integers(0, 256, (rows, width)).astype(np.float32)
        numbers /= np.float32(255)
        return numbers

    def rbm(self, layer: int) -> RBM:
        """Return a layer on the device."""
        settings = RBMSettings(
            batch_size=self.batch_size,
            learning_rate=0.1,
            momentum=MomentumSchedule("0.5"),
            weight_decay=2e-4,
        )
        learner = RBM(layer, self.layers[layer - 1], self.layers[layer], settings)
        learner.to(self.backend)
        return learner


class Times(NamedTuple):
    """Microseconds of one step: until it was queued, and until it was done."""

    queued: float
    done: float


class BlocksOfSteps:
    """The steps of one layer, in blocks.

    Parameters
    ----------
    bench : Bench
    layer : int
    whole : bool
        Whether steps are launched as a whole, where the device can, or in parts.
    recorded : bool
        Whether blocks are launched as graphs, or launch by launch.

    Raises
    ------
    RuntimeError
        If the blocks cannot be recorded.
    """

    def __init__(self, bench: Bench, layer: int, *, whole: bool, recorded: bool) -> None:
        self._bench, self.rbm = bench, bench.rbm(layer)
        self._step = step_for(self.rbm, 1, "examples") if whole else WholeStep(self.rbm)
        self.is_whole = isinstance(self._step, FusedDivergence)
        assert isinstance(self.rbm.recorder, Recorder), "the backend is that of a device"
        self.recorder = self.rbm.recorder
        if not recorded:
            self.recorder.reason = "it is timed as it is"
        size = bench.batch_size * bench.backend.steps_at_once
        count = max(bench.rows, size)
        X, numbers = bench.examples(layer, count), np.random.default_rng(0).permutation(count)
        with self.rbm.stream:
            self._X = bench.backend.examples(X)
            order = bench.backend.order(self._X, numbers)
            self.rbm.stream.synchronize()
        self._blocks = [order[at : at + size] for at in range(0, count - size + 1, size)]
        self._done = 0
        self.work(3)  # compiles and allocates, records, and launches what was recorded
        self.rbm.stream.synchronize()
        if recorded and self.recorder.reason is not None:
            raise RuntimeError(f"{bench.name(layer)} is not recorded: {self.recorder.reason}")

    def work(self, blocks: int) -> None:
        """Queue the next blocks."""
        steps = self._bench.backend.steps_at_once
        with self.rbm.stream:
            for number in range(self._done, self._done + blocks):
                self.recorder.train(
                    *(self._step.train_step, self._X, self._blocks[number % len(self._blocks)]),
                    batch_size=self._bench.batch_size,
                    epoch=1,
                    step=number * steps,
                    constants=self.rbm.constants(1),
                )
        self._done += blocks

    def times(self) -> Times:
        """Return the medians of the times of a step."""
        found = []
        for _ in range(self._bench.repeats):
            started = perf_counter()
            self.work(self._bench.blocks)
            queued = perf_counter() - started
            self.rbm.stream.synchronize()
            found.append((queued, perf_counter() - started))
        return Times(*(self.of_a_step(median(times)) for times in zip(*found, strict=True)))

    def of_a_step(self, seconds: float) -> float:
        """Return the microseconds of a step, where ``Bench.blocks`` blocks take so many seconds."""
        steps: int = self._bench.blocks * self._bench.backend.steps_at_once
        return 1e6 * seconds / steps


def seconds_of(work: Callable[[], None], repeats: int) -> float:
    """Return the median of the seconds that some work takes, without its first time."""
    found = []
    for _ in range(repeats + 1):
        started = perf_counter()
        work()
        found.append(perf_counter() - started)
    return median(found[1:])


def rst_table(table: Table) -> str:
    """Return a simple table of reStructuredText."""
    head, rows = table
    lines = [head, *([cell or "\\" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([rule, text[0], rule, *text[1:], rule])
