"""The process of one layer that trains on versions: an epoch an order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from syncpretrain.kernels.program import PhaseRunner
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.pretraining.runtime.activations import ActivationSource, activations_from
from syncpretrain.pretraining.runtime.child_loop import sendable, serve
from syncpretrain.pretraining.runtime.messages import Failed, Message
from syncpretrain.pretraining.runtime.process_messages import Job, Order, Report
from syncpretrain.pretraining.runtime.restarts.epochs import KeptEpochs
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.schedule.epochs import Train

__all__ = ["main"]


class _SharedInputs:
    """The inputs of a worker, as located by each order."""

    def __init__(self, job: Job) -> None:
        self._splits = {
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
    """Return a report, of which a failure is always fit to be sent."""
    if not isinstance(message, Failed):
        return Report(message, computed)
    error, trace = sendable(message.error, message.command.layer, message.command.epoch)
    return Report(replace(message, error=error), computed, trace)
