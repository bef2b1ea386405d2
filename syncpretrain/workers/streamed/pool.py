"""Threads that process a stream: each takes the next block that may be processed.

Guarantees:

* Layers have no threads of their own. A thread that finds nothing to do takes shards of the steps
  of the lowest layer that has some to share, until another has finished a block; with none to take,
  it sleeps until then.
* The first failure stops all of them, after their running minibatches; leaving the context joins
  them within a deadline, but for one that waits for an iterable: it ends when it is given an array.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from syncpretrain.kernels.program import in_turn
from syncpretrain.learners.epoch import Stopped
from syncpretrain.parallel.step_sharing import StepSharing
from syncpretrain.parallel.timeouts import TIMEOUTS, Closing, Deadline, Timeouts
from syncpretrain.schedule.stream import Block, StreamSchedule
from syncpretrain.workers.link import failure_of
from syncpretrain.workers.streamed.base import BaseStreamedLayer, EpochResult


class StreamPool(Closing):
    """Worker threads of one streamed run; a context manager.

    Parameters
    ----------
    layers : sequence of BaseStreamedLayer
        From the lowest up.
    schedule : StreamSchedule
    workers : int
    replicas : sequence of int
        The most threads that may run a step of each layer together.
    stop : callable
        Asked by every thread once a minibatch whether to stop.
    times : Timeouts
    rests : bool
        If true, take no block after the end of an epoch until a pause is over, in which the
        caller has saved: else an epoch more could end, and be told, before the state is written.
    """

    def __init__(
        self,
        layers: Sequence[BaseStreamedLayer],
        schedule: StreamSchedule,
        workers: int,
        replicas: Sequence[int],
        stop: Callable[[], bool],
        times: Timeouts = TIMEOUTS,
        *,
        rests: bool = False,
    ) -> None:
        super().__init__(times)
        self._layers, self._schedule, self._stop = layers, schedule, stop
        self._changed = threading.Condition()  # guards the schedule
        self._stopping, self._stopped = threading.Event(), math.inf  # the flag, and its time
        self._pauses = 0
        self._rests, self._is_resting = rests, False
        pairs = zip(layers, replicas, strict=True)
        self._sharing = [layer.sharing(times) if n > 1 else None for layer, n in pairs]
        self._room = [n - 1 for n in replicas]  # for helpers
        self._caller = threading.current_thread()
        self._results = queue.SimpleQueue[EpochResult | BaseException]()
        # Daemons only so that a thread stuck in foreign code cannot keep the process from ending.
        self._threads = [
            threading.Thread(target=self._serve, name=f"syncpretrain-stream-{i + 1}", daemon=True)
            for i in range(workers)
        ]

    def _open(self) -> None:
        for thread in self._threads:
            thread.start()

    def next_result(self, timeout: float) -> EpochResult | BaseException | None:
        """Return the next end of an epoch or failure, or None if none came within ``timeout``."""
        try:
            return self._results.get(timeout=timeout)
        except queue.Empty:
            return None

    @property
    def is_finished(self) -> bool:
        """Whether the stream has ended."""
        with self._changed:
            return self._schedule.is_finished

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no thread process anything, as long as the context lasts.

        Raises
        ------
        Stopped
            If the threads are to leave.
        StalledError
            If one of them does not finish its block.
        """
        deadline = Deadline(self._times.stall)
        with self._changed:
            self._pauses += 1
        # Helpers may go on: they only touch a step of a running block, which is waited for.
        try:
            with self._changed:
                while self._schedule.running and not self._should_stop():
                    self._changed.wait(self._times.tick)
                    deadline.check("a block took more than")
            if self._should_stop():
                raise Stopped
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._is_resting = self._is_resting and not self._results.empty()
                self._changed.notify_all()

    def stop(self) -> None:
        """Ask every thread to leave after its minibatch."""
        self._stopped = min(self._stopped, time.monotonic())
        self._stopping.set()
        with self._changed:
            self._call_all()

    def drain(self, seconds: float) -> bool:
        """Wait after :meth:`stop` until no thread trains; return whether that is so.

        One that waits for an iterable trains no more: what it is given then it leaves.
        """
        deadline = time.monotonic() + seconds
        while alive := [thread for thread in self._threads if thread.is_alive()]:
            now, waiting = time.monotonic(), sum(layer.is_waiting for layer in self._layers)
            if now >= self._stopped + self._times.iterable and len(alive) == waiting:
                return True
            if now >= deadline:
                return False
            alive[0].join(self._times.tick)
        return True

    def _close(self) -> list[str]:
        self.stop()
        self.drain(self._times.join)
        return [thread.name for thread in self._threads if thread.is_alive()]

    def _serve(self) -> None:
        tired = False  # it found nothing to help with: then it sleeps, instead of asking again
        while (task := self._next(may_help=not tired)) is not None:
            if isinstance(task, Block):
                tired = False
                self._process(task)
            else:
                tired = not self._help(*task)

    def _report(self, result: EpochResult | BaseException) -> None:
        self._results.put(result)

    def _process(self, block: Block) -> None:
        layer, sharing = self._layers[block.layer - 1], self._sharing[block.layer - 1]
        try:
            results = layer.process(block, self._should_stop, sharing.run if sharing else in_turn)
            # Before the block is done: a driver that pauses the pool and saves takes the ends of
            # all epochs that the state is behind.
            if results:
                with self._changed:
                    self._is_resting = self._rests
            for result in results:
                self._report(result)
            with self._changed:
                self._schedule.done(block, layer.plan)
                self._call_all()
        except BaseException as error:  # the driver raises it
            self._fail(block.layer, layer.epoch, error)

    def _help(self, layer: int, sharing: StepSharing, calls: int) -> bool:
        try:
            return sharing.help(calls)
        finally:
            with self._changed:
                self._room[layer - 1] += 1

    def _call_all(self) -> None:
        """Let every thread that waits or helps ask for a block again."""
        self._changed.notify_all()
        for sharing in self._sharing:
            if sharing is not None:
                sharing.call()

    def _next(self, *, may_help: bool) -> Block | tuple[int, StepSharing, int] | None:
        """Return the next block or layer to help, waiting for one; None at the end."""
        # A thread looks for work and goes to sleep under the lock under which work is made, so no
        # wake-up is lost. The wait has an end all the same: for a caller that died.
        with self._changed:
            while self._caller.is_alive() and not self._stopping.is_set():
                if self._pauses or self._is_resting:
                    self._changed.wait(self._times.tick)
                    continue
                try:
                    block = self._schedule.take()
                except BaseException as error:
                    self._fail(0, 0, error)
                    return None
                if block is not None or self._schedule.is_finished:
                    return block
                # The number of calls is read here, under the lock: a call after this is not missed.
                if may_help and (helped := self._to_help()) is not None:
                    return helped
                self._changed.wait(self._times.sleep)
                may_help = True
        return None

    def _to_help(self) -> tuple[int, StepSharing, int] | None:
        """Return the lowest running layer that has room for a helper."""
        for layer in self._schedule.running:
            sharing = self._sharing[layer - 1]
            if sharing is not None and self._room[layer - 1]:
                self._room[layer - 1] -= 1
                return layer, sharing, sharing.calls
        return None

    def _fail(self, layer: int, epoch: int, error: BaseException) -> None:
        self._report(failure_of(layer, epoch, error))
        self.stop()

    def _should_stop(self) -> bool:
        return self._stopping.is_set() or self._stop()
