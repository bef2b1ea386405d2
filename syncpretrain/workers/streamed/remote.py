"""A streamed layer in another process or on a rank, as the pool and the driver use it here.

A process has one order at a time. If it dies and is replaced, the next process gets the same order
again, and goes on from the same minibatch. Every wait for an answer ends: with the death of the
process, or, after a request to stop, with a deadline. How long no layer may move is the driver's
matter.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.kernels.program import PhaseRunner, Phases, in_turn
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.schedule.stream import Block, StreamPlan
from syncpretrain.workers.interface import failure_of
from syncpretrain.workers.layer_process import RemoteTraceback
from syncpretrain.workers.state import StreamedLayerState
from syncpretrain.workers.streamed.base import BaseStreamedLayer, EpochResult, Sharing
from syncpretrain.workers.streamed.child import (
    Answer,
    GiveLayer,
    GiveState,
    Processed,
    StreamOrder,
    TakeState,
)

__all__ = ["LayerLink", "LentThreads", "RemoteLayer", "Stopping"]


class LayerLink(Protocol):
    """Link to the process or the rank of one layer, which has one order at a time."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, though an answer may still be on its way."""
        ...

    def send(self, thing: Any) -> None:
        """Send an order; if it has ended, :meth:`receive` returns None."""
        ...

    def poll(self, seconds: float) -> bool:
        """Wait for an answer or the end; return whether one of them came."""
        ...

    def receive(self) -> Any:
        """Return the next answer; None if there is none, and never will be."""
        ...

    def ending(self) -> str:
        """Return how it ended, which it has."""
        ...

    def kill(self) -> None:
        """End it, whatever it does."""
        ...


class LentThreads:
    """Threads of this process that sleep, so that a layer in another one may have more of its own.

    Parameters
    ----------
    number : ndarray of shape (1,), float64
        Number of threads that sleep, in shared memory: the other process reads it before every
        step, and lets as many threads of its own help.
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
    """Stop flag shared by all processes of a run, with the deadline for their last answer.

    Parameters
    ----------
    number : ndarray of shape (1,), float64
        The flag, in shared memory: 1 once the processes are to stop after their minibatch.
    times : Timeouts
        Only ``failed_drain`` is used.

    Attributes
    ----------
    deadline : float
        Time by which all must have answered, as in ``time.monotonic``; infinite until a layer has
        failed.
    """

    def __init__(self, number: NDArray[np.float64], times: Timeouts) -> None:
        self._number, self._times = number, times
        self.deadline = math.inf

    def request(self) -> None:
        """Ask every process to stop."""
        self._number[0] = 1.0

    def record_failure(self) -> None:
        """Ask every process to stop, which is not waited for: nothing is saved any more."""
        self.request()
        self.deadline = min(self.deadline, time.monotonic() + self._times.failed_drain)


class RemoteLayer(BaseStreamedLayer):
    """A streamed layer in another process.

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
        self._process: LayerLink | None = None
        self._stopping, self._lent = Stopping(np.zeros(1), times), np.zeros(1)
        self._newest: Layer | None = None
        self._is_newest_last = False  # it will not change any more
        self._error: BaseException | None = None  # the newest answer, or the death
        self._answered = plan.skipped  # the last minibatch of the newest block with an answer
        self._former_seconds = 0.0  # of processes that died
        self._replaces: Callable[[WorkerError], bool] = lambda death: False

    def connect(
        self,
        process: LayerLink,
        stopping: Stopping,
        lent: NDArray[np.float64],
        replaces: Callable[[WorkerError], bool],
    ) -> None:
        """Use a process, the request to all of the run to stop, and the number of lent threads.

        ``replaces`` is asked whether a process that died has been replaced by another.
        """
        self._process, self._stopping, self._lent = process, stopping, lent
        self._replaces = replaces
        self.progress[0] = self._answered  # where the process begins, or goes on

    def disconnect(self) -> None:
        """Go on without the process, which was killed, as the layer is known here."""
        with contextlib.suppress(StalledError), self._turn(self._times.join):
            self._process = None
        self._stopping, self._lent = Stopping(np.zeros(1), self._times), np.zeros(1)
        self._replaces = lambda death: False
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
        if self._process is None or self._lock.locked():
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
        if self._process is None or not self._process.has_ended or self._lock.locked():
            return
        try:
            with self._turn():
                if not self._process.has_ended:  # a thread has replaced it
                    return
                if self._error is not None:  # a thread has had its last answer
                    raise self._error
                self._receive()
                self._replace(self._death(is_busy=False))
        except Exception as error:
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
        except Exception as error:
            failure = failure_of(self.number, self.epoch, error)
            raise failure from failure.__cause__

    def _answer(
        self, order: StreamOrder, seconds: float, stop: Callable[[], bool] = lambda: False
    ) -> Any:
        """Return the answer of the process to an order, or raise its error."""
        process, is_block = self._process, isinstance(order, Block)
        if process is None:
            raise WorkerError(f"layer {self.number} has no process any more")
        # Two deadlines. This order's own: infinite for a block until the run is asked to stop,
        # since a stall is the driver's matter. And the run's, set when any layer has failed: by
        # then all have to answer, since nothing will be saved.
        deadline, is_stopping = time.monotonic() + seconds, False
        process.send(order)
        while not process.poll(self._times.tick):
            if not is_stopping and stop():
                is_stopping, deadline = True, time.monotonic() + self._times.drain
                self._stopping.request()
            if time.monotonic() > min(deadline, self._stopping.deadline):
                process.kill()  # else its answer would be taken for the answer to the next order
                process.ending()
                if is_block:
                    raise Stopped
                raise StalledError(f"layer {self.number} did not answer within {seconds:g} s")
        answer = self._receive()
        if answer is None:
            # It died. If another process has taken its place, the order goes there, in what is left
            # of the time. A run has a bounded number of restarts, so this recursion ends.
            self._replace(self._death(is_busy=is_block))
            return self._answer(order, deadline - time.monotonic(), stop)
        return self._known(order, answer.value)

    def _known(self, order: StreamOrder, value: Any) -> Any:
        """Return an answer, after a record of where the layer is with it."""
        if isinstance(order, Block):
            self._answered = order.last
            seconds = self._former_seconds + value.busy_seconds
            return replace(value, busy_seconds=seconds)
        if isinstance(order, TakeState):
            self._answered = order.state.position
        return value

    def _replace(self, death: WorkerError) -> None:
        """Have another process go on where this one's last answer was, or raise the death."""
        if self._stopping.deadline < math.inf or not self._replaces(death):
            raise death
        self._error, self._former_seconds = None, self.busy_seconds

    def _receive(self) -> Answer | None:
        """Return the next answer, None if the process has ended without one; raise an error."""
        answer: Answer | None = self._process.receive() if self._process is not None else None
        if answer is None:
            return None
        self._error = answer.error
        if answer.error is None:
            return answer
        if answer.trace:
            answer.error.__cause__ = RemoteTraceback(answer.trace)
        raise answer.error

    def _death(self, *, is_busy: bool) -> WorkerError:
        own = self.plan.at(self.position)
        if own < self.plan.steps and (is_busy or own % self._steps):
            moment = f"in epoch {self.epoch}"
        else:
            moment = f"after epoch {self.epochs_done}" if own else "before its first epoch"
        assert self._process is not None
        error = WorkerError(f"layer {self.number} failed {moment}: {self._process.ending()}")
        self._error = error
        return error
