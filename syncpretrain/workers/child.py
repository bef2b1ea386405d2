"""The process of one layer that trains on versions: an epoch an order.

The state is kept in the middle of an epoch, and at its end together with the report, before the
report is sent. So if the process is killed, the next one either goes on in the epoch that it is
asked for, or has the report already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from syncpretrain.kernels.program import PhaseRunner
from syncpretrain.learners.epoch import Cursor
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.activations import ActivationSource, activations_from
from syncpretrain.workers.child_start import sendable, serve
from syncpretrain.workers.interface import Failed, Finished, Message
from syncpretrain.workers.kept_state import Keeping, KeptStates
from syncpretrain.workers.shared_memory import (
    SharedNumbers,
    SharedSparse,
    SharedSplits,
)
from syncpretrain.workers.split import Split
from syncpretrain.workers.state import LayerState
from syncpretrain.workers.worker import LayerWorker

__all__ = ["Job", "KeptEpochs", "Order", "Report", "main"]


@dataclass(frozen=True, slots=True)
class Job:
    """Message to a process at its start.

    ``splits`` are the data (number 0) and the activations of the layers that this one reads; it
    writes the activations of the layer below. ``numbers`` begin with a flag, 1 once the workers are
    to stop; then follow the progress of each layer's epoch, and the number of workers of each
    layer. ``parent`` is a process identifier. ``kept`` is where the layer's states are kept for the
    next process; None where no process is replaced.
    """

    layer: int
    worker_factory: Callable[[Any], Any]  # a WorkerFactory
    splits: dict[int, SharedSplits | SharedSparse]
    numbers: SharedNumbers
    blas_threads: int
    parent: int
    kept: KeptStates | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """An epoch to train, and where its input is."""

    command: Train
    source: ActivationSource


@dataclass(frozen=True, slots=True)
class Report:
    """Message of the worker after an order.

    ``computed`` is whether the input was computed; ``trace`` is the traceback of an error.
    """

    message: Message
    computed: bool = False
    trace: str = ""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A layer in an epoch, or after it if there is a report, with the warnings of that epoch."""

    epoch: int
    state: LayerState
    warnings: tuple[str, ...] = ()
    report: Report | None = None


class KeptEpochs:
    """A worker that keeps its states; it first goes to the newest one.

    Parameters
    ----------
    worker : LayerWorker
    kept : KeptStates
    obey : callable
        Has the worker train the epoch of an order; returns the report.
    """

    def __init__(
        self, worker: LayerWorker, kept: KeptStates, obey: Callable[[Order], Report]
    ) -> None:
        self._worker, self._obey, self._keeping = worker, obey, Keeping(kept)
        self._epoch = 0  # the running one
        self._before: tuple[str, ...] = ()  # its warnings, from earlier processes
        found: _Kept | None = kept.newest()
        if found is None:  # keep the start too: a process killed in epoch 1 can be replaced
            found = _Kept(0, worker.state())
            self._keeping.keep(found)
        else:
            worker.load_state(found.state)
        self._found: _Kept | None = found
        worker.keeper = self

    def __call__(self, order: Order) -> Report:
        """Train the epoch of an order, or what is left of it; return its report."""
        found, self._found = self._found, None
        self._epoch, self._before = order.command.epoch, ()
        if found is not None and found.epoch == self._epoch:
            # The process before was killed between keeping its report and sending it.
            if found.report is not None:
                return found.report
            # The process before was killed in the epoch, so the input was computed and is there.
            order = replace(order, source=replace(order.source, snapshot=None))
            self._before = found.warnings
        report = self._obey(order)
        message = report.message
        report = replace(
            report, message=replace(message, warnings=(*self._before, *message.warnings))
        )
        if isinstance(message, Finished):
            state = message.state or self._worker.layer.state(Cursor())
            # Before the report is sent: what the parent knows must never be newer than the state.
            self._keeping.keep(_Kept(self._epoch, state, report=report))
        return report

    @property
    def is_due(self) -> bool:
        """True if a state is due to be kept."""
        return self._keeping.is_due

    def keep(self, state: LayerState, warnings: tuple[str, ...]) -> None:
        """Keep a state in the middle of the running epoch."""
        self._keeping.keep(_Kept(self._epoch, state, (*self._before, *warnings)))


class _SharedInputs:
    """The inputs of a worker, as located by each order."""

    def __init__(self, job: Job) -> None:
        self._splits = {
            # Only the arrays that this process fills can be written to: a stray write elsewhere
            # cannot pass unnoticed.
            number: splits.map(write=0 < number == job.layer - 1)
            for number, splits in job.splits.items()
        }
        self.source = ActivationSource(0)
        self.computed = False

    def activations(
        self,
        layer: int,
        version: int,
        below: int,
        stop: Callable[[], bool],
        run: PhaseRunner,
    ) -> Split | None:
        """Return the activations that the order describes, or None if ``stop`` turned true."""
        found = activations_from(self.source, lambda number, i: self._splits[number][i], stop, run)
        self.computed = found is not None
        return found


def main(descriptor: int) -> None:
    """Work for the parent at the other end of a socket, until it closes that."""
    serve(descriptor, _work, lambda error: _report(Failed(Train(0, 0, 0, 0), error)))


def _work(job: Job, take: Callable[[], Order], send: Callable[[Any], None]) -> None:
    numbers = job.numbers.map()
    inputs = _SharedInputs(job)
    with blas_limit(job.blas_threads):
        worker = job.worker_factory(inputs)
        # From now on the parent reads the progress, and sets the workers, without a message.
        layers = len(numbers) // 2
        worker.progress = numbers[job.layer : job.layer + 1]
        worker.worker_count = numbers[layers + job.layer : layers + job.layer + 1]

        def obey(order: Order) -> Report:
            inputs.source, inputs.computed = order.source, False
            message = worker.execute(order.command, lambda: bool(numbers[0]))
            return _report(message, inputs.computed)

        answer = obey if job.kept is None else KeptEpochs(worker, job.kept, obey)
        while True:
            send(answer(take()))


def _report(message: Message, computed: bool = False) -> Report:
    """Return a report; the error of a failure is replaced by one that can be sent."""
    if not isinstance(message, Failed):
        return Report(message, computed)
    error, trace = sendable(message.error, message.command.layer, message.command.epoch)
    return Report(replace(message, error=error), computed, trace)
