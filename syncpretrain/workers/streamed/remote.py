"""Streamed layers in processes or on ranks, as the pool and the driver use them here.

A worker has one order at a time. If it dies and is replaced, the next one gets the same order
again, and goes on from the same minibatch; else its death is a failure of the layer: of the block
that it was given, or found by :meth:`LinkedStream.check`. Every wait for an answer ends: with the
end of the worker, or, after a request to stop, with a deadline. How long no layer may move is the
driver's matter.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.program import PhaseRunner, Phases, in_turn
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import TIMEOUTS, Closing, Timeouts
from syncpretrain.schedule.stream import Block, StreamPlan
from syncpretrain.workers.link import (
    Job,
    Link,
    Place,
    Raised,
    death_of,
    failure_of,
)
from syncpretrain.workers.processes import Processes
from syncpretrain.workers.restarts import Restarts
from syncpretrain.workers.shared_memory import SharedSplits
from syncpretrain.workers.split import Split
from syncpretrain.workers.state import StreamedLayerState
from syncpretrain.workers.streamed.base import (
    BaseStreamedLayer,
    EpochResult,
    Sharing,
    Stream,
    StreamedLayerFactory,
)
from syncpretrain.workers.streamed.inputs import RingSize
from syncpretrain.workers.streamed.job import (
    GiveLayer,
    GiveState,
    Processed,
    StreamJob,
    StreamOrder,
    TakeState,
)

__all__ = ["LentThreads", "LinkedStream", "RemoteLayer", "Stopping", "stream_in_processes"]


class LentThreads:
    """Threads of this process that sleep, so that a layer in another one may have more of its own.

    Parameters
    ----------
    number : ndarray of shape (1,), float64
        Number of threads that the other process may have for a step, in memory that it shares: a
        thread more for each one that sleeps here.
    times : Timeouts
        Only ``sleep`` is used.
    """

    def __init__(self, number: NDArray[np.float64], times: Timeouts) -> None:
        self._number, self._times = number, times
        self._changed = threading.Condition()  # guards the number and the calls
        self._calls = 0

    @property
    def calls(self) -> int:
        """How often the threads have been called away."""
        return self._calls

    def run(self, phases: Phases, shards: int) -> None:
        """Run the phases of a step here, where no thread can help."""
        in_turn(phases, shards)

    def help(self, calls: int) -> bool:
        """Sleep until called away; return False if that took long."""
        with self._changed:
            self._number[0] += 1
            try:
                return self._changed.wait_for(lambda: self._calls != calls, self._times.sleep)
            # A thread that is called away may still be counted for one step of the other process:
            # a helper too many for a moment, which costs time, never a bit.
            finally:
                self._number[0] -= 1

    def call(self) -> None:
        """Call the threads away: there is other work for them."""
        with self._changed:
            self._calls += 1
            self._changed.notify_all()


class Stopping:
    """Request to stop to all workers of a run, with the deadline for their last answer.

    Parameters
    ----------
    request : callable
        Asks every worker to stop after its minibatch.
    times : Timeouts
        Only ``failed_drain`` is used.

    Attributes
    ----------
    deadline : float
        Time by which all must have answered, as in ``time.monotonic``; infinite until a layer has
        failed.
    """

    def __init__(self, request: Callable[[], None], times: Timeouts) -> None:
        self.request, self._times = request, times
        self.deadline = math.inf

    def record_failure(self) -> None:
        """Ask every worker to stop, which is not waited for: nothing is saved any more."""
        self.request()
        self.deadline = min(self.deadline, time.monotonic() + self._times.failed_drain)


def _unasked() -> None:
    """Ask nobody to stop: there is no worker."""


def _unreplaced(death: WorkerError) -> None:
    """Replace no worker."""


class RemoteLayer(BaseStreamedLayer):
    """A streamed layer in another process or on a rank.

    Parameters
    ----------
    number, plan, steps
        See :class:`BaseStreamedLayer`.
    initial : callable
        Returns the layer as it is before its first epoch.
    times : Timeouts
    """

    def __init__(
        self,
        number: int,
        plan: StreamPlan,
        steps: int,
        initial: Callable[[], Layer],
        times: Timeouts,
    ) -> None:
        super().__init__(number, plan, steps)
        self._times, self._initial = times, initial
        self._lock = threading.Lock()  # guards what follows: one order at a time
        self._link: Link | None = None
        self._stopping, self._lent = Stopping(_unasked, times), np.zeros(1)
        self._newest: Layer | None = None
        self._is_newest_last = False  # it will not change any more
        self._error: BaseException | None = None  # the newest answer, or the death
        self._answered = plan.skipped  # the last minibatch of the newest block with an answer
        self._former_seconds = 0.0  # of workers that died
        self._replaced: Callable[[WorkerError], Link | None] = _unreplaced

    def connect(
        self,
        link: Link,
        stopping: Stopping,
        progress: NDArray[np.float64],
        lent: NDArray[np.float64],
        replaced: Callable[[WorkerError], Link | None] = _unreplaced,
    ) -> None:
        """Use a worker, its numbers in shared memory, and the request to all of the run to stop.

        ``replaced`` returns the link to a worker in place of one that died, if there is one.
        """
        self._link, self._stopping, self._replaced = link, stopping, replaced
        self.progress, self._lent = progress, lent
        self.progress[0] = self._answered  # where the worker begins

    def disconnect(self) -> None:
        """Go on without the worker, which was ended, as the layer is known here."""
        with contextlib.suppress(StalledError), self._turn(self._times.join):
            self._link = None
        self._stopping, self._lent = Stopping(_unasked, self._times), np.zeros(1)
        self._replaced = _unreplaced
        self.progress = self.progress.copy()

    def sharing(self, times: Timeouts) -> Sharing:
        """Return what lends threads to the process."""
        return LentThreads(self._lent, times)

    def process(
        self, block: Block, stop: Callable[[], bool], run: PhaseRunner = in_turn
    ) -> list[EpochResult]:
        """Have the process do it, which runs the phases itself: ``run`` is not used."""
        if stop():
            raise Stopped
        try:
            with self._turn():
                answer: Processed = self._answer(block, math.inf, stop)
                self.busy_seconds = answer.busy_seconds
                self._newest = answer.layer or self._newest
                is_last = any(result.is_last for result in answer.results)
                self._is_newest_last |= is_last and answer.layer is not None
        except Stopped:
            raise
        except BaseException:
            self._stopping.record_failure()
            raise
        for result in answer.results:
            if result.is_last:
                self.shorten(result.epoch)
        return list(answer.results)

    def current(self) -> Layer:
        """Return the layer as it is, or was when its process was last heard of."""
        if not self._is_newest_last:
            self.refresh()
        if self._newest is None:
            self._newest = self._initial()
        return self._newest

    def refresh(self) -> bool:
        """Ask for the layer as it is; return whether the process answered."""
        # Locked, a thread waits for the answer to a block, which may take any time.
        if self._link is None or self._lock.locked():
            return False
        with contextlib.suppress(WorkerError):  # then the newest layer that is known stays
            self._newest = self._asked(GiveLayer(), self._times.drain)
            return True
        return False

    def state(self, above: int | None) -> StreamedLayerState:
        """Return the state; see the base class.

        Raises
        ------
        WorkerError
            If the process is lost.
        """
        state: StreamedLayerState = self._asked(GiveState(above), self._times.stall)
        return state

    def load_state(self, state: StreamedLayerState) -> None:
        """Continue from a state; see the base class."""
        self._asked(TakeState(state), self._times.stall, plain=(KeyError, ValueError))
        self._take_steps(state)
        self._newest, self._is_newest_last = state.state.layer, False

    def check(self) -> None:
        """Raise what ended the process, unless a thread waits for it, which will."""
        if self._link is None or not self._link.has_ended or self._lock.locked():
            return
        try:
            with self._turn():
                if not self._link.has_ended:  # a thread has replaced it
                    return
                if self._error is not None:  # a thread has had its last answer
                    raise self._error
                self._receive()
                self._replace(self._death(is_busy=False))
        except BaseException as error:
            self._stopping.record_failure()
            failure = failure_of(self.number, self.epoch, error)
            raise failure from failure.__cause__

    @contextlib.contextmanager
    def _turn(self, seconds: float | None = None) -> Iterator[None]:
        limit = self._times.stall if seconds is None else seconds
        if not self._lock.acquire(timeout=limit):
            raise StalledError(f"layer {self.number} took more than {limit:g} s")
        try:
            yield
        finally:
            self._lock.release()

    def _asked(
        self, order: StreamOrder, seconds: float, plain: tuple[type[Exception], ...] = ()
    ) -> Any:
        """Return the answer to an order; an error is that of a run, unless it is a plain one."""
        try:
            with self._turn():
                return self._answer(order, seconds)
        except plain:
            raise
        except BaseException as error:
            failure = failure_of(self.number, self.epoch, error)
            raise failure from failure.__cause__

    def _answer(
        self, order: StreamOrder, seconds: float, stop: Callable[[], bool] = lambda: False
    ) -> Any:
        """Return the answer of the process to an order, or raise its error."""
        link, is_block = self._link, isinstance(order, Block)
        if link is None:
            raise WorkerError(f"layer {self.number} has no worker any more")
        # Two deadlines. This order's own: infinite for a block until the run is asked to stop,
        # since a stall is the driver's matter. And the run's, set when any layer has failed: by
        # then all have to answer, since nothing will be saved.
        deadline, is_stopping = time.monotonic() + seconds, False
        link.send(order)
        while not link.poll(self._times.tick):
            if not is_stopping and stop():
                is_stopping, deadline = True, time.monotonic() + self._times.drain
                self._stopping.request()
            if time.monotonic() > min(deadline, self._stopping.deadline):
                link.kill()  # else its answer would be taken for the answer to the next order
                link.ending()
                if is_block:
                    raise Stopped
                raise StalledError(f"layer {self.number} did not answer within {seconds:g} s")
        answer = self._receive()
        if answer is None:
            # It died. If another process has taken its place, the order goes there, in what is left
            # of the time. A run has a bounded number of restarts, so this recursion ends.
            self._replace(self._death(is_busy=is_block))
            return self._answer(order, deadline - time.monotonic(), stop)
        return self._known(order, answer, link.offset)

    def _known(self, order: StreamOrder, answer: Any, offset: float) -> Any:
        """Return an answer by the clock here, after a record of where the layer is with it."""
        if isinstance(order, TakeState):
            self._answered = order.state.position
        if not isinstance(answer, Processed):
            return answer
        if answer.position is not None:
            self.progress[0] = answer.position
        assert isinstance(order, Block)
        self._answered = order.last
        seconds = self._former_seconds + answer.busy_seconds
        return replace(answer.shifted(offset), busy_seconds=seconds)

    def _replace(self, death: WorkerError) -> None:
        """Have another worker go on where this one's last answer was, or raise the death."""
        self.progress[0] = self._answered  # which the other one reads as it starts
        link = None if self._stopping.deadline < math.inf else self._replaced(death)
        if link is None:
            raise death
        self._link, self._error, self._former_seconds = link, None, self.busy_seconds

    def _receive(self) -> Any:
        """Return the next answer, None if the worker has ended without one; raise an error."""
        answer = None if self._link is None else self._link.receive()
        if isinstance(answer, Raised):
            self._error = answer.error
            raise answer.error
        return answer

    def _death(self, *, is_busy: bool) -> WorkerError:
        own = self.plan.at(self.position)
        is_running = own < self.plan.steps and (is_busy or own % self._steps)
        assert self._link is not None
        self._error = death_of(
            self.number,
            self._link.ending(),
            running=self.epoch if is_running else 0,
            done=self.epochs_done,
        )
        return self._error


class LinkedStream(Closing, Stream):
    """Streamed layers of workers in a place.

    Parameters
    ----------
    place : Place
    layers : sequence of RemoteLayer
        From the lowest up.
    jobs : callable
        Returns the job of each layer, as the workers are started.
    times : Timeouts
    restarts : Restarts, optional
        Restarts that the place uses, to be reported.
    """

    def __init__(
        self,
        place: Place,
        layers: Sequence[RemoteLayer],
        jobs: Callable[[], Sequence[Job]],
        times: Timeouts,
        restarts: Restarts | None = None,
    ) -> None:
        Closing.__init__(self, times)
        Stream.__init__(self, layers)
        self._place, self._remote_layers, self._jobs = place, layers, jobs
        self._restarts = restarts or Restarts()

    def check(self) -> None:
        """Look for a worker that was lost while it had nothing to do."""
        for layer in self._remote_layers:
            layer.check()
        self._restarts.report_all()

    def settle(self) -> bool:
        """Return whether every worker answers; one that does not in time is killed."""
        return all(layer.refresh() for layer in self._remote_layers)

    def abandon(self) -> None:
        """Write on stderr where every thread of every worker stands, and end what can be ended."""
        self._place.dump_stacks()
        super().abandon()
        self._place.kill()

    def _open(self) -> None:
        place, stopping = self._place, Stopping(self._place.stop, self._times)
        links = place.start(self._jobs())
        for layer, link in zip(self._remote_layers, links, strict=True):
            i = layer.number
            numbers = place.progress[i : i + 1], place.workers[i : i + 1]
            layer.connect(link, stopping, *numbers, partial(place.replace, i))

    def _close(self) -> list[str]:
        self._place.kill()
        for layer in self._remote_layers:
            layer.disconnect()
        alive = self._place.end()
        self._restarts.report_all()
        return alive


def stream_in_processes(
    layer_factories: Sequence[StreamedLayerFactory],
    layers: Sequence[RemoteLayer],
    data: Split,
    sizes: Sequence[RingSize],
    replicas: Sequence[int],
    times: Timeouts = TIMEOUTS,
    restarts: Restarts | None = None,
    reread: Sequence[int] = (),
) -> LinkedStream:
    """Return streamed layers in a process each, which share the data and the rings.

    Parameters
    ----------
    layer_factories : sequence of callable
        From the lowest layer up, each fit to be sent to a process.
    layers : sequence of RemoteLayer
        The same layers, as they are used here.
    data : Split
        Input of layer 1; the processes share a copy.
    sizes : sequence of RingSize
        Sizes of the rings between two layers, from the lowest up.
    replicas : sequence of int
        The most threads that each process may have for a step.
    times : Timeouts
    restarts : Restarts, optional
        For processes that die.
    reread : sequence of int
        Minibatches below each layer that are not overwritten when it has read them.
    """
    place = Processes(times, restarts=restarts)

    def jobs() -> list[StreamJob]:
        memory: list[SharedSplits] = [place.share(SharedSplits.of(data))]
        memory += (place.share(SharedSplits.create(x.all_rows, x.width, 1)) for x in sizes)
        parts = zip(
            layer_factories,
            memory,
            [*memory[1:], None],
            replicas,
            reread or [0] * len(layers),
            strict=True,
        )
        return [StreamJob(*own) for own in parts]

    return LinkedStream(place, layers, jobs, times, restarts)
