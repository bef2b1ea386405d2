"""What is measured on: a device, the sizes, and the steps of one layer as an epoch works them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends import cupy_backend
from syncpretrain.backends.base import StepBlock
from syncpretrain.backends.choice import backend_for
from syncpretrain.backends.cuda_fused import has_tensor_cores
from syncpretrain.backends.gpu_check import missing
from syncpretrain.backends.recorder import GraphRecorder
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import FusedDivergence, WholeStep
from syncpretrain.pretraining.build import step_for
from syncpretrain.settings import settings_from

__all__ = [
    "Bench",
    "BlocksOfSteps",
    "NoGPUError",
    "Table",
    "Times",
    "rst_table",
    "seconds_of",
    "whole_steps",
]

Table = tuple[Sequence[str], Iterable[Sequence[str]]]  # a head, and rows


class NoGPUError(Exception):
    """This machine has no GPU to check; the message says what it lacks."""


@dataclass(frozen=True)
class Bench:
    """A device, the sizes that are measured, and what has failed so far.

    Attributes
    ----------
    device : int
        The number of the GPU.
    layers : tuple of int
    batch_size, rows : int
    blocks, repeats : int
        How many blocks of steps are timed together, and how often; the median counts.
    epochs : int
        Epochs of whole runs.
    seconds : float
        Time limit of the part.
    out : Path
        Folder for the part's files.
    failed : list of str
        Names of the measurements that failed, or whose result is wrong.
    """

    device: int
    layers: tuple[int, ...]
    batch_size: int
    rows: int
    blocks: int
    repeats: int
    epochs: int
    seconds: float
    out: Path
    failed: list[str] = field(default_factory=list)

    @cached_property
    def backend(self) -> Any:
        """The backend of the device, made when it is first asked for.

        Raises
        ------
        NoGPUError
            If CuPy cannot compute on the device.
        """
        lacking = missing(self.device)
        if lacking is not None:
            raise NoGPUError(f"GPU {self.device} cannot be checked: {lacking}")
        return backend_for(self.backend_name)

    @property
    def backend_name(self) -> str:
        """The backend's name in the settings of a run."""
        return f"cupy:{self.device}"

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.layers) - 1

    def name(self, layer: int) -> str:
        """Return the name of a layer, counted from 1."""
        return f"{self.layers[layer - 1]}-{self.layers[layer]}"

    def cells(self, name: str, measure: Callable[[], Sequence[str]], count: int = 1) -> list[str]:
        """Return the cells that a function measures; if it raises an error, print that."""
        try:
            return list(measure())
        except Exception:
            return [self._failure(name)] * count

    def rows_of(self, name: str, rows: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        """Yield rows as they are measured; if that raises an error, print it and say so."""
        try:
            yield from rows
        except Exception:
            yield name, self._failure(name)

    def _failure(self, name: str) -> str:
        """Print the error that is handled, and remember what has failed by it."""
        traceback.print_exc()
        self.failed.append(name)
        return "FAILED"

    def verdict(self, name: str, is_right: bool) -> str:
        """Return "yes" or "NO", and remember what is not right."""
        if not is_right:
            self.failed.append(name)
        return "yes" if is_right else "NO"

    def examples(self, layer: int, rows: int) -> NDArray[np.float32]:
        """Return rows that a layer could read; the first layer's are bytes divided by 255."""
        draws, width = np.random.default_rng(layer), self.layers[layer - 1]
        if layer > 1:
            return draws.random((rows, width), dtype=np.float32)
        numbers = draws.integers(0, 256, (rows, width)).astype(np.float32)
        numbers /= np.float32(255)
        return numbers

    def rbm(self, layer: int, precision: str = "float32") -> RBM:
        """Return a layer on the device."""
        settings = settings_from(
            self.layers, batch_size=self.batch_size, momentum="0.5", precision=precision
        ).pretrain
        own = settings.of_layer(layer)
        learner = RBM(layer, self.layers[layer - 1], self.layers[layer], own)
        learner.to(self.backend)
        return learner


@contextmanager
def whole_steps(taken: bool) -> Iterator[None]:
    """Have whole steps taken on GPUs with tensor cores, or steps in parts.

    The library takes steps in parts if a trial fails, or if they are large. Here whole steps are
    measured nevertheless: how wrong or how fast they are is what one wants to know then.
    """

    def are_there(cupy: Any, device: int, *_: Any, tunes: bool = False) -> bool:
        return taken and has_tensor_cores(cupy, device)

    with mock.patch.object(cupy_backend, "has_fused_steps", are_there):
        yield


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
    precision : str

    Raises
    ------
    RuntimeError
        If the blocks cannot be recorded.
    """

    def __init__(
        self, bench: Bench, layer: int, *, whole: bool, recorded: bool, precision: str = "float32"
    ) -> None:
        self._bench, self.rbm = bench, bench.rbm(layer, precision)
        with whole_steps(whole):
            self._step = step_for(self.rbm, 1, "examples") if whole else WholeStep(self.rbm)
        self.is_whole = isinstance(self._step, FusedDivergence)
        assert isinstance(self.rbm.recorder, GraphRecorder), "the backend is that of a device"
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
                rows = self._blocks[number % len(self._blocks)]
                own = (self._bench.batch_size, 1, number * steps, self.rbm.constants(1))
                self.recorder.train(StepBlock(self._step.train_step, self._X, rows, *own))
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
    """Return a simple table of reStructuredText; a row may be shorter than the head."""
    head, rows = table
    padded = ([*row, *[""] * (len(head) - len(row))] for row in rows)
    lines = [head, *([cell or "\\" for cell in row] for row in padded)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([rule, text[0], rule, *text[1:], rule])
