"""The one driver: settings and data in, schedule and runtime at work, a Stack out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from numpy.typing import ArrayLike

from syncpretrain import __version__
from syncpretrain.building import build_data, build_learners, build_schedule, build_stopping
from syncpretrain.errors import (
    RunInterrupted,
    SettingsError,
    StalledError,
    WorkerError,
)
from syncpretrain.events import (
    EpochFinished,
    EpochStarted,
    Event,
    LayerFinished,
    Notice,
    Observer,
    Progress,
    RunFinished,
    RunStarted,
)
from syncpretrain.learners.epoch import Stopped
from syncpretrain.runtime.base import Runtime
from syncpretrain.runtime.blas import blas_limit, blas_threads, usable_cores
from syncpretrain.runtime.memory import check_memory
from syncpretrain.runtime.serial import SerialRuntime
from syncpretrain.runtime.signals import StopRequest, stop_on_signals
from syncpretrain.runtime.store import Versions
from syncpretrain.runtime.threads import ThreadsRuntime
from syncpretrain.runtime.worker import Failed, Finished, LayerWorker, Message
from syncpretrain.schedule.machine import Command, Forget
from syncpretrain.schedule.plan import Reads
from syncpretrain.settings import PretrainSettings, settings_from
from syncpretrain.stack import Stack

__all__ = ["Pretraining", "pretrain"]

RUNTIMES: dict[str, Callable[..., Runtime]] = {"serial": SerialRuntime, "threads": ThreadsRuntime}
TICK_SECONDS = 0.1  # how often progress is told and a stop is looked for
LONGEST_TICK_SECONDS = 1.0
STALL_SECONDS = 600.0  # without a minibatch anywhere


def pretrain(
    X: ArrayLike,
    *,
    layers: Sequence[int],
    validation: ArrayLike | None = None,
    observers: Iterable[Observer] = (),
    replay: Reads | None = None,
    **settings: Any,
) -> Stack:
    """Pretrain a stack of RBMs or autoencoders, the layers in parallel (Santara et al. 2016).

    Parameters
    ----------
    X : array-like of shape (n_examples, layers[0])
        Values in [0, 1], or bytes, which are divided by 255; for Gaussian visible units any
        finite values, which are standardized.
    layers : sequence of int
        Units of the input and of each layer, such as [784, 1000, 500, 250, 30].
    validation : array-like of shape (n_held_out, layers[0]), optional
        Held-out examples; each layer's error on them is told after every epoch.
    observers : iterable of callable
        Called with each event of :mod:`syncpretrain.events`, in this thread.
    replay : tuple of tuple of int, optional
        For each layer, the upstream version of each of its epochs, as a run recorded them.
    **settings
        Fields of :class:`syncpretrain.settings.PretrainSettings`, such as ``schedule``, ``epochs``,
        ``workers``, ``learning_rate`` and ``seed``. One value stands for all layers.

    Returns
    -------
    Stack

    Raises
    ------
    SettingsError, DataError
        For a wrong argument, before any worker starts.
    DivergedError, WorkerError, StalledError
        If a layer fails; ``stack`` of the error holds every layer's last finite state.
    RunInterrupted
        On Ctrl-C or SIGTERM, after the running minibatch; ``stack`` holds what was learned.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.eye(8, dtype=np.float32).repeat(4, axis=0)
    >>> pretrain(X, layers=[8, 4, 2], epochs=2, batch_size=8).widths
    (8, 4, 2)
    """
    if others := settings.keys() & {"data", "finetune"}:
        raise SettingsError(f"{min(others)}: is no setting of pretrain(); see finetune() for that")
    wanted = settings_from(layers, **settings).pretrain
    return Pretraining(wanted, X, validation, observers=observers, replay=replay).run()


class Pretraining:
    """One run: everything checked and allocated at construction, trained by :meth:`run`."""

    def __init__(
        self,
        settings: PretrainSettings,
        X: ArrayLike,
        validation: ArrayLike | None = None,
        *,
        observers: Iterable[Observer] = (),
        replay: Reads | None = None,
    ) -> None:
        if settings.schedule == "greedy":  # whose last bits depend on them
            threads = blas_threads(settings.blas_threads)
            settings = msgspec.structs.replace(settings, blas_threads=threads)
        self.settings = settings
        self.observers = tuple(observers)
        data, self._scaling = build_data(settings, X, validation)
        check_memory(settings.layers, examples=sum(map(len, data)), batch_size=settings.batch_size)
        workers = 1 if settings.runtime == "serial" else settings.workers or usable_cores()
        self.slots = min(workers, len(settings.layers) - 1)
        self._schedule = build_schedule(settings, slots=self.slots, replay=replay)
        self._versions = Versions(data, settings.layers[1:])
        self._workers = [
            LayerWorker(learner, self._versions, stopping)
            for learner, stopping in zip(
                build_learners(settings), build_stopping(settings), strict=True
            )
        ]
        self._examples = len(data.train)
        self._busy = [0.0] * len(self._workers)
        self._ended: set[int] = set()
        self._last_tick = time.monotonic()
        self._trained = -1.0  # epochs of all layers, by the last tick
        self._silent_seconds = 0.0  # since a minibatch was trained

    def run(self) -> Stack:
        """Train until the schedule ends; see :func:`pretrain` for what it raises."""
        settings = self.settings
        threads = blas_threads(settings.blas_threads) if settings.schedule == "greedy" else 1
        with blas_limit(threads), stop_on_signals() as request:
            started = time.monotonic()
            self._emit_start(started)
            try:
                with self._runtime(request) as runtime:
                    self._drive(runtime, request)
                if request():  # while the workers were joined
                    raise Stopped
            except WorkerError as error:
                error.stack = self.stack()
                raise
            except Stopped:
                raise self._interrupted(request) from None
        now = time.monotonic()
        self._emit(RunFinished(now, now - started, tuple(self._busy)))
        return self.stack()

    def stack(self) -> Stack:
        """Return the layers as they are now; only while no worker trains."""
        return Stack(
            tuple(worker.learner.snapshot() for worker in self._workers),
            {
                "syncpretrain": __version__,
                "epochs": list(self._schedule.done),
                "pretrain": msgspec.json.decode(msgspec.json.encode(self.settings)),
            },
            self._scaling,
        )

    def _drive(self, runtime: Runtime, request: StopRequest) -> None:
        """Carry events to the schedule and its commands to the runtime, until it is over."""
        self._execute(self._schedule.begin(), runtime)
        while not self._schedule.over:
            message = runtime.wait(TICK_SECONDS)
            if message is not None:
                self._warn(message)
            if isinstance(message, Failed):
                raise message.failure()
            if message is not None:
                self._note(message)
                commands = self._schedule.finished(message.command.layer, stops=message.stops)
                self._emit_ended()
                self._execute(commands, runtime)
            self._tick()
            if request():
                raise Stopped

    def _execute(self, commands: Iterable[Command], runtime: Runtime) -> None:
        for command in commands:
            if isinstance(command, Forget):
                self._versions.forget(command.layer, command.version)
                continue
            layer, epoch, reads = command.layer, command.epoch, command.reads
            self._emit(EpochStarted(time.monotonic(), layer, epoch, reads))
            runtime.submit(command)

    def _warn(self, message: Message) -> None:
        for warning in message.warnings:
            self._emit(Notice(time.monotonic(), f"warning: {warning}"))

    def _note(self, message: Finished) -> None:
        command = message.command
        self._busy[command.layer - 1] += message.ended - message.started
        self._emit(
            EpochFinished(
                time=message.ended,
                layer=command.layer,
                epoch=command.epoch,
                reads=command.reads,
                started=message.started,
                transform_seconds=message.trained_from - message.started,
                train_error=message.train_error,
                validation_error=message.validation_error,
            )
        )

    def _tick(self) -> None:
        """Tell how far the running epochs are, and raise if none of them moves any more."""
        now = time.monotonic()
        passed = now - self._last_tick
        if passed < TICK_SECONDS:
            return
        self._last_tick = now
        trained = float(sum(self._schedule.done))
        for layer in self._schedule.training:
            fraction = self._workers[layer - 1].fraction
            trained += fraction
            self._emit(Progress(now, layer, self._schedule.done[layer - 1] + 1, fraction))
        if trained != self._trained:
            self._trained, self._silent_seconds = trained, 0.0
            return
        # A process that was suspended comes back to one long tick, which is nobody's fault.
        self._silent_seconds += min(passed, LONGEST_TICK_SECONDS)
        if self._silent_seconds > STALL_SECONDS:
            layers = ", ".join(f"layer {layer}" for layer in self._schedule.training)
            raise StalledError(f"no minibatch was trained for {STALL_SECONDS:g} s, by {layers}")

    def _runtime(self, request: StopRequest) -> Runtime:
        def tick_and_ask() -> bool:
            self._tick()  # the caller's thread is the one that trains
            return request()

        name = self.settings.runtime
        stop: Callable[[], bool] = tick_and_ask if name == "serial" else request
        return RUNTIMES[name](self._workers, stop)

    def _interrupted(self, request: StopRequest) -> RunInterrupted:
        done = ", ".join(f"layer {i}: {n}" for i, n in enumerate(self._schedule.done, start=1))
        message = f"pretraining was stopped; epochs finished: {done}"
        return RunInterrupted(message, stack=self.stack(), signum=request.signum or 2)

    def _emit(self, event: Event) -> None:
        for observer in self.observers:
            observer(event)

    def _emit_start(self, now: float) -> None:
        s = self.settings
        self._emit(
            RunStarted(
                now, s.layers, s.epochs, s.schedule, s.pace, s.runtime, self.slots, self._examples
            )
        )

    def _emit_ended(self) -> None:
        for layer in range(1, len(self._workers) + 1):
            if layer not in self._ended and self._schedule.ended(layer):
                self._ended.add(layer)
                self._emit(LayerFinished(time.monotonic(), layer))
