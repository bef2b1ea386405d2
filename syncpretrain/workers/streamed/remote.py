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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.program import PhaseRunner, Phases, in_turn
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.step_sharing import StepSharing
from syncpretrain.parallel.timeouts import Closing, Timeouts
from syncpretrain.schedule.stream import Block, StreamPlan
from syncpretrain.workers.epochs import shifted
from syncpretrain.workers.link import Job, Link, Place, Raised, death_of, failure_of
from syncpretrain.workers.restarts import Restarts
from syncpretrain.workers.state import StreamedLayerState
from syncpretrain.workers.streamed import job
from syncpretrain.workers.streamed.base import BaseStreamedLayer, EpochResult, Stream
from syncpretrain.workers.worker import LayerInTraining


class LentThreads(StepSharing):
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
        super().__init__(times)
        self._number = number
        self._changed = threading.Condition()  # guards the number and the calls

    def run(self, phases: Phases, shards: int) -> None:
        """Run the phases of a step here, where no thread can help."""
        in_turn(phases, shards)

    def help(self, calls: int) -> bool:
        """Sleep until called away; return False if that took long."""
        with self._changed:
            self._number[0] += 1
            try:
                return self._changed.wait_for(lambda: self.calls != calls, self._times.sleep)
            # A thread that is called away may still be counted for one step of the other process:
            # a helper too many for a moment, which costs time, never a bit.
            finally:
                self._number[0] -= 1

    def call(self) -> None:
        """Call the threads away: there is other work for them."""
        with self._changed:
            self.calls += 1
            self._changed.notify_all()


class RemoteLayer(BaseStreamedLayer):
    """A streamed layer in another process or on a rank.

    Parameters
    ----------
    number, plan, steps
        See :class:`BaseStreamedLayer`.
    initial : callable
        Returns the layer in training as it is before its first epoch.
    times : Timeouts
    """

    def __init__(
        self,
        number: int,
        plan: StreamPlan,
        steps: int,
        initial: Callable[[], LayerInTraining],
        times: Timeouts,
    ) -> None:
        super().__init__(number, plan, steps)
        self._times, self._initial = times, initial
        self._lock = threading.Lock()  # guards what follows: one order at a time
        self._link: Link | None = None
        self._run: LinkedStream | None = None
        self._newest: Layer | None = None
        self._is_newest_last = False  # it will not change any more
        self._error: BaseException | None = None  # the newest answer, or the death
        self._answered = plan.skipped  # the last minibatch of the newest block with an answer
        self._former_seconds = 0.0  # of workers that died

    def connect(self, link: Link, run: LinkedStream) -> None:
        """Use a worker of a run, and its place in the numbers that they share."""
        self._link, self._run = link, run
        self.progress = run.place.progress[self.number : self.number + 1]
        self.progress[0] = self._answered  # where the worker begins

    def disconnect(self) -> None:
        """Go on without the worker, which was ended, as the layer is known here."""
        with contextlib.suppress(StalledError), self._turn(self._times.join):
            self._link = self._run = None
        self.progress = self.progress.copy()

    def sharing(self, times: Timeouts) -> StepSharing:
        """Return the threads that are lent to the worker."""
        assert self._run is not None  # as long as there are threads
        return LentThreads(self._run.place.workers[self.number : self.number + 1], times)

    def process(
        self, block: Block, stop: Callable[[], bool], run: PhaseRunner = in_turn
    ) -> list[EpochResult]:
        """Have the process do it, which runs the phases itself: ``run`` is not used."""
        if stop():
            raise Stopped
        try:
            with self._turn():
                answer: job.Processed = self._answer(block, math.inf, stop)
                self.busy_seconds = answer.busy_seconds
                self._newest = answer.layer or self._newest
                is_last = any(result.is_last for result in answer.results)
                self._is_newest_last |= is_last and answer.layer is not None
        except Stopped:
            raise
        except BaseException:
            self._record_failure()
            raise
        for result in answer.results:
            if result.is_last:
                self.shorten(result.event.epoch)
        return list(answer.results)

    def current(self) -> Layer:
        """Return the layer as it is, or was when its process was last heard of."""
        if not self._is_newest_last:
            self.refresh()
        if self._newest is None:
            self._newest = self._initial().last_good
        return self._newest

    def refresh(self) -> bool:
        """Ask for the layer as it is; return whether the process answered."""
        # Locked, a thread waits for the answer to a block, which may take any time.
        if self._link is None or self._lock.locked():
            return False
        with contextlib.suppress(WorkerError):  # then the newest layer that is known stays
            self._newest = self._asked(job.GiveLayer(), self._times.drain)
            return True
        return False

    def state(self, above: int | None) -> StreamedLayerState:
        """Return the state; see the base class.

        Raises
        ------
        WorkerError
            If the process is lost.
        """
        state: StreamedLayerState = self._asked(job.GiveState(above), self._times.stall)
        return state

    def load_state(self, state: StreamedLayerState) -> None:
        """Continue from a state; see the base class."""
        self._asked(job.TakeState(state), self._times.stall, plain=(KeyError, ValueError))
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
            self._record_failure()
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
        self, order: job.StreamOrder, seconds: float, plain: tuple[type[Exception], ...] = ()
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
        self, order: job.StreamOrder, seconds: float, stop: Callable[[], bool] = lambda: False
    ) -> Any:
        """Return the answer of the process to an order, or raise its error."""
        link, run, is_block = self._link, self._run, isinstance(order, Block)
        if link is None or run is None:
            raise WorkerError(f"layer {self.number} has no worker any more")
        # Two deadlines. This order's own: infinite for a block until the run is asked to stop,
        # since a stall is the driver's matter. And the run's, set when any layer has failed: by
        # then all have to answer, since nothing will be saved.
        deadline, is_stopping = time.monotonic() + seconds, False
        link.send(order)
        while not link.poll(self._times.tick):
            if not is_stopping and stop():
                is_stopping, deadline = True, time.monotonic() + self._times.drain
                run.place.stop()
            if time.monotonic() > min(deadline, run.deadline):
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

    def _known(self, order: job.StreamOrder, answer: Any, offset: float) -> Any:
        """Return an answer by the clock here, after a record of where the layer is with it."""
        if isinstance(order, job.TakeState):
            self._answered = order.state.position
        if not isinstance(answer, job.Processed):
            return answer
        if answer.position is not None:
            self.progress[0] = answer.position
        assert isinstance(order, Block)
        self._answered = order.last
        results = tuple(replace(x, event=shifted(x.event, offset)) for x in answer.results)
        seconds = self._former_seconds + answer.busy_seconds
        return replace(answer, results=results, busy_seconds=seconds)

    def _replace(self, death: WorkerError) -> None:
        """Have another worker go on where this one's last answer was, or raise the death."""
        self.progress[0] = self._answered  # which the other one reads as it starts
        run = self._run
        link = None
        if run is not None and run.deadline == math.inf:
            link = run.place.replace(self.number, death)
        if link is None:
            raise death
        self._link, self._error, self._former_seconds = link, None, self.busy_seconds

    def _record_failure(self) -> None:
        if self._run is not None:
            self._run.record_failure()

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
        how, running = self._link.ending(), self.epoch if is_running else 0
        self._error = death_of(self.number, how, running=running, done=self.epochs_done)
        return self._error


@dataclass(eq=False)
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

    Attributes
    ----------
    place : Place
    deadline : float
        Time by which all workers must have answered, as in ``time.monotonic``; infinite until a
        layer has failed.
    """

    place: Place
    layers: Sequence[RemoteLayer]
    jobs: Callable[[], Sequence[Job]]
    times: Timeouts
    restarts: Restarts | None = None

    def __post_init__(self) -> None:
        super().__init__(self.times)
        self.deadline, self._restarts = math.inf, self.restarts or Restarts()

    def record_failure(self) -> None:
        """Ask every worker to stop, which is not waited for: nothing is saved any more."""
        self.place.stop()
        self.deadline = min(self.deadline, time.monotonic() + self._times.failed_drain)

    def check(self) -> None:
        """Look for a worker that was lost while it had nothing to do."""
        for layer in self.layers:
            layer.check()
        self._restarts.report_all()

    def settle(self) -> bool:
        """Return whether every worker answers; one that does not in time is killed."""
        return all(layer.refresh() for layer in self.layers)

    def abandon(self) -> None:
        """Write on stderr where every thread of every worker stands, and end what can be ended."""
        self.place.dump_stacks()
        super().abandon()
        self.place.kill()

    def _open(self) -> None:
        for layer, link in zip(self.layers, self.place.start(self.jobs()), strict=True):
            layer.connect(link, self)

    def _close(self) -> list[str]:
        self.place.kill()
        for layer in self.layers:
            layer.disconnect()
        alive = self.place.end()
        self._restarts.report_all()
        return alive
