"""The process of one layer: it starts, follows its orders, and ends with its parent.

The process is a new interpreter that imports only what the worker needs, never the caller's
script. One socket connects it with its parent; each detects the end of the other by the closed
socket.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from syncpretrain.errors import WorkerError
from syncpretrain.kernels.program import PhaseRunner
from syncpretrain.learners.cursor import Stopped
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.pretraining.runtime.activations import ActivationSource, activations_from
from syncpretrain.pretraining.runtime.messages import Failed
from syncpretrain.pretraining.runtime.process_messages import DUMP_SIGNAL, Job, Order, Report
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.schedule.machine import Train

__all__ = ["main"]

PARENT_LOOK_SECONDS = 5.0  # how often a sleeping process looks whether its parent still lives
FAILED_STATUS = 1


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
    # A terminal's Ctrl-C reaches all processes; the parent, which gets it too, says what to do.
    # Both signals were blocked when it started this process.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    faulthandler.register(DUMP_SIGNAL)
    connection = Connection(descriptor)
    try:
        job: Job = connection.recv()
        orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        threading.Thread(target=_receive, args=(connection, orders, job), daemon=True).start()
        _work(connection, orders, job)
    except EOFError:
        os._exit(0)  # the run ended before this began
    except BaseException as error:  # construction failed; the parent reports it
        with contextlib.suppress(OSError):
            report = Report(Failed(Train(0, 0, 0, 0), error))
            connection.send_bytes(_packed(report))
        os._exit(FAILED_STATUS)


def _work(connection: Connection, orders: queue.SimpleQueue[Order], job: Job) -> None:
    numbers = job.numbers.map()
    inputs = _SharedInputs(job)
    with blas_limit(job.blas_threads):
        worker = job.worker_factory(inputs)
        layers = len(numbers) // 2
        worker.progress = numbers[job.layer : job.layer + 1]
        worker.worker_count = numbers[layers + job.layer : layers + job.layer + 1]
        while True:
            order = orders.get()
            inputs.source, inputs.computed = order.source, False
            message = worker.execute(order.command, lambda: bool(numbers[0]))
            connection.send_bytes(_packed(Report(message, inputs.computed)))


def _receive(connection: Connection, orders: queue.SimpleQueue[Order], job: Job) -> None:
    """Take orders; end the process at once, whatever it does, when the parent has ended."""
    try:
        while True:
            # A fork of the parent may hold the socket open after its death.
            while not connection.poll(PARENT_LOOK_SECONDS):
                if os.getppid() != job.parent:
                    os._exit(0)
            orders.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(FAILED_STATUS)


def _packed(report: Report) -> Any:
    """Return a report's bytes, of which a failure is always fit to be sent."""
    message = report.message
    if not isinstance(message, Failed):
        return ForkingPickler.dumps(report)
    error = message.error
    if not isinstance(error, Stopped):
        report = replace(report, trace="".join(traceback.format_exception(error)))
    try:
        packed = ForkingPickler.dumps(report)
        ForkingPickler.loads(packed)
    except BaseException:  # whatever its own methods raise
        described = WorkerError(
            f"layer {message.command.layer} failed in epoch {message.command.epoch}:"
            f" {type(error).__name__}: {error!r}"
        )
        return ForkingPickler.dumps(replace(report, message=replace(message, error=described)))
    return packed
