"""Driver: connects the schedule, which decides, with the runtime, which executes.

The driver asks the schedule for commands, hands them to the runtime, and waits for messages. It
keeps each layer's newest version and state, from which a stack or a checkpoint can be made at any
time. Only the driver's thread touches any of this, so nothing here is locked.

:func:`driver_for` chooses the driver of a run: this one, by epochs, or the driver of a streamed or
of an asynchronous run, or one without any pretraining.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from numpy.typing import ArrayLike

from syncpretrain.backends.base import Backend
from syncpretrain.backends.choice import why_no_fused_steps, why_no_gpu
from syncpretrain.backends.rows import HostRows
from syncpretrain.errors import StalledError, WorkerError
from syncpretrain.events import DriftJudged, EpochStarted, LayerFinished, RunFinished, RunStarted
from syncpretrain.learners.base import Learner
from syncpretrain.learners.epoch import Stopped
from syncpretrain.learners.first_layers import untrained_stack
from syncpretrain.models.layer import Layer
from syncpretrain.models.stack import Stack
from syncpretrain.observers.history import ErrorCurve
from syncpretrain.parallel.blas import blas_threads
from syncpretrain.parallel.signals import StopRequest
from syncpretrain.pretraining import build
from syncpretrain.pretraining.runtimes import RUNTIMES, Runtime, versions_for, workers_of
from syncpretrain.pretraining.training import Driver, Watch
from syncpretrain.schedule.kinds import ASYNC, SCHEDULES, UNTRAINED, Reads
from syncpretrain.schedule.schedule import Command, Past, Release, Train
from syncpretrain.settings.devices import why_not_on_a_device
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.workers.activations import Split
from syncpretrain.workers.epochs import Failed, Message
from syncpretrain.workers.shared_memory import check_runtime
from syncpretrain.workers.state import LayerState, PretrainState
from syncpretrain.workers.worker import EpochsRun


@dataclass(slots=True)
class _Kept:
    """A version that is held, or through which the activations of a held version were computed."""

    snapshot: Layer
    below: tuple[int, int]  # layer and version that it was trained on
    uses: int  # 1 if it is held, and 1 for each kept version that was trained on it


@dataclass(eq=False)
class TrainedLayers:
    """Trained layers of one run.

    Parameters
    ----------
    settings : PretrainSettings
    backend : Backend
        The backend that trains the layers.
    learners : callable
        Returns a learner a layer, for those that have not trained yet.
    """

    settings: PretrainSettings
    backend: Backend
    learners: Callable[[], Sequence[Learner]]

    def __post_init__(self) -> None:
        depth = len(self.settings.layers) - 1
        self._layers: list[Layer | None] = [None] * depth  # the newest of each
        self._states: list[LayerState | None] = [None] * depth
        self._kept: dict[tuple[int, int], _Kept] = {}  # by layer and version

    def resume(self, state: PretrainState) -> None:
        """Begin with the layers and versions of a state."""
        held = {(i, version) for i, row in enumerate(state.past.held, start=1) for version in row}
        uses = Counter(held)
        # From the top down: whether a version is kept depends on the versions trained on it.
        for layer, version in sorted(state.snapshots, reverse=True):
            if uses[layer, version]:
                below = layer - 1, state.past.reads[layer - 1][version - 1]
                snapshot = state.snapshots[layer, version]
                self._kept[layer, version] = _Kept(snapshot, below, uses[layer, version])
                uses[below] += 1
        self._states = list(state.states)
        self._layers = [None if own is None else own.layer for own in state.states]

    def record_state(self, layer: int, state: LayerState) -> None:
        """Record the state of a layer, counted from 1."""
        self._states[layer - 1], self._layers[layer - 1] = state, state.layer

    def publish(self, command: Train, snapshot: Layer) -> None:
        """Record the version of a layer that an epoch resulted in, its newest."""
        self._layers[command.layer - 1] = snapshot
        below = command.layer - 1, command.reads
        self._kept[command.layer, command.epoch] = _Kept(snapshot, below, uses=1)
        if below in self._kept:  # it is a version, not the data
            self._kept[below].uses += 1

    def release(self, command: Release) -> None:
        """Drop a version, and those below that were kept for its sake, once no other needs them."""
        key = command.layer, command.version
        while key in self._kept:
            kept = self._kept[key]
            kept.uses -= 1
            if kept.uses:
                break
            del self._kept[key]
            key = kept.below

    def below(self, command: Train) -> list[Layer]:
        """Return what an epoch trained on: versions, from layer 1 up, on the host."""
        chain, key = list[Layer](), (command.layer - 1, command.reads)
        while key in self._kept:  # at the end it is the data
            chain.append(self._kept[key].snapshot.to(self._host(key[0])))
            key = self._kept[key].below
        return chain[::-1]

    def layers(self) -> list[Layer]:
        """Return the newest layers, on the host."""
        fresh = self.learners() if None in self._layers else []
        return [
            fresh[i].snapshot() if layer is None else layer.to(self._host(i + 1))
            for i, layer in enumerate(self._layers)
        ]

    def state(
        self, past: Past, computed: list[tuple[int, int]], curves: tuple[ErrorCurve, ...] = ()
    ) -> PretrainState:
        """Return all that the rest of the run depends on."""
        snapshots = {
            key: kept.snapshot.to(self._host(key[0])) for key, kept in sorted(self._kept.items())
        }
        numbered = enumerate(self._states, start=1)
        states = [None if own is None else own.to(self._host(layer)) for layer, own in numbered]
        return PretrainState(past, snapshots, computed, tuple(states), curves)

    def _host(self, layer: int) -> Callable[[Any], Any]:
        return self.backend.for_layer(layer).tohost


class Pretraining(Driver):
    """One run by epochs."""

    def _checked(self, settings: PretrainSettings) -> PretrainSettings:
        layers = range(1, len(settings.layers))
        if SCHEDULES[settings.schedule].one_at_a_time and max(map(settings.shards_of, layers)) == 1:
            # One layer trains at a time, so BLAS may have all cores. The last bits of a product
            # depend on the number of its threads, which is therefore part of the settings.
            self._blas_threads = blas_threads(settings.blas_threads)
            settings = msgspec.structs.replace(settings, blas_threads=self._blas_threads)
        check_runtime(settings.runtime)
        return settings

    def _build(self, data: Split) -> None:
        settings = self.settings
        self._backend = build.backend_of_layers(settings)
        self._workers = workers_of(settings)
        self._threads = build.threads_of_layers(settings)
        self.slots = min(self._workers, len(settings.layers) - 1)
        self._workers_per_layer: dict[int, int] = {}
        self._schedule = build.build_schedule(settings, slots=self.slots, replay=self._replay)
        self._versions = versions_for(settings, data, self._backend)
        learners = partial(build.build_learners, settings)
        self._trained = TrainedLayers(settings, self._backend, learners)
        self._running: dict[int, int] = {}  # the epoch of each layer whose message is awaited
        self._finished = 0  # epochs of all layers
        self._ended = self._judged = 0  # layers, and decisions, that the observers know of
        self._watch = Watch(self.emit, self._times)

    @property
    def inputs(self) -> Split:
        """The data where the first layer is trained."""
        return self._versions.inputs

    @property
    def done(self) -> tuple[int, ...]:
        """The epochs that each layer has finished."""
        return self._schedule.done

    def state(self) -> PretrainState:
        """Return all that the rest of the run depends on."""
        past, computed = self._schedule.past, self._versions.computed()
        return self._trained.state(past, computed, self.history.curves())

    def _opened(self) -> AbstractContextManager[Any]:
        return closing(self._versions)

    def _newest(self) -> list[Layer]:
        return self._trained.layers()

    def _past_reads(self) -> Reads:
        if self.resume is None:
            return ((),) * len(self.settings.epochs)
        had = self.resume.past
        return tuple(r[:done] for r, done in zip(had.reads, had.done, strict=True))

    def _train(self, request: StopRequest) -> None:
        with self._runtime(request) as runtime:
            try:
                self._drive(runtime, request)
            # A stalled worker would not answer a request to stop either: show where it stands.
            except StalledError:
                runtime.dump_stacks()
                raise
            except (Stopped, WorkerError) as end:
                stopped, times = isinstance(end, Stopped), self._times
                self._drain(runtime, times.drain if stopped else times.failed_drain)
                raise

    def _drive(self, runtime: Runtime, request: StopRequest) -> None:
        """Carry events to the schedule and its commands to the runtime, until it is finished."""
        self._execute(self._first_commands(), runtime)
        while not self._schedule.is_finished:
            message = runtime.wait(self._times.tick)
            if message is not None:
                commands = self._take(message)
                if isinstance(message, Failed):
                    raise message.failure()
                # First the commands, then the checkpoint: the workers train while it is written.
                self._execute(commands, runtime)
                if not self._schedule.is_finished:
                    self._save()
            self._watch.tick(self._running, self._finished, runtime.fraction)
            if request():
                raise Stopped

    def _first_commands(self) -> list[Command]:
        """Return the schedule's first commands, at a resume with its versions computed again."""
        if self.resume is None:
            return self._schedule.begin()
        state, past = self.resume, self.resume.past
        self._trained.resume(state)
        for i, versions in enumerate(past.held, start=1):
            for version in versions:
                self._versions.publish(i, version, state.snapshots[i, version])
        # From the data, through one snapshot a layer: activations are too large for a checkpoint.
        for layer, version in state.computed:
            self._versions.compute(layer, version, state.ancestry(layer, version))
        return self._schedule.resume(past)

    def _take(self, message: Message) -> list[Command]:
        """Record what a worker did; return the commands that follow."""
        layer, version = message.command.layer, message.command.epoch
        self._running.pop(layer, None)
        for warning in message.warnings:
            self.notify(f"warning: {warning}")
        if message.state is not None:
            self._trained.record_state(layer, message.state)
        if isinstance(message, Failed):
            return []
        self._seconds[layer - 1] += message.event.time - message.event.started
        self.emit(message.event)
        if message.marks:
            self._hand_out(layer, message.marks, self._trained.below(message.command))
        self._finished += 1
        # Publish before the schedule hears of it: its commands may name this version.
        self._trained.publish(message.command, message.layer)
        self._versions.publish(layer, version, message.layer)
        commands = self._schedule.finished(layer, stops=message.stops, drifts=message.drifts)
        self._emit_decisions()
        return commands

    def _drain(self, runtime: Runtime, seconds: float) -> None:
        """Stop the workers and take what each of them has."""
        runtime.stop()
        deadline = time.monotonic() + seconds
        while self._running and time.monotonic() < deadline:
            if (message := runtime.wait(self._times.tick)) is not None:
                for command in self._take(message):
                    # No new epoch begins; the schedule gives its command again at a resume.
                    if isinstance(command, Release):
                        self._release(command)

    def _execute(self, commands: Iterable[Command], runtime: Runtime) -> None:
        for command in commands:
            if isinstance(command, Release):
                self._release(command)
                continue
            now = time.monotonic()
            self.emit(EpochStarted(now, command.layer, command.epoch, command.reads))
            # Recorded first: a serial runtime may have the message as soon as it is asked.
            self._running[command.layer] = command.epoch
            runtime.submit(command)
        self._set_workers(runtime)

    def _set_workers(self, runtime: Runtime) -> None:
        """Assign workers without a layer of their own to layers that take more than one."""
        workers_per_layer = self._schedule.workers_per_layer(self._workers, self._threads)
        for layer, workers in workers_per_layer.items():
            if self._workers_per_layer.get(layer) != workers:
                runtime.set_workers(layer, workers)
        self._workers_per_layer = workers_per_layer

    def _release(self, command: Release) -> None:
        self._versions.release(command.layer, command.version)
        self._trained.release(command)

    def _runtime(self, request: StopRequest) -> Runtime:
        # With the serial runtime this thread trains, and the driver cannot look at the clock.
        def tick_and_ask() -> bool:
            self._watch.tick(self._running, self._finished, runtime.fraction)
            return request()

        states = self.resume.states if self.resume else ()
        own = self.save is not None, self._backend, self._times, self.weights
        run = EpochsRun(
            worker_factories=build.build_worker_factories(self.settings, states, *own),
            versions=self._versions,
            blas_threads=self._blas_threads,
            stop=tick_and_ask if self.settings.runtime == "serial" else request,
            times=self._times,
            restarts=self._restarts,
            shares=build.rank_shares(self.settings),
            below=self._trained.below,
        )
        runtime = RUNTIMES[self.settings.runtime](run)
        return runtime

    def _emit_decisions(self) -> None:
        for j in self._schedule.judged_since(self._judged):
            self._judged += 1
            now = time.monotonic()
            self.emit(DriftJudged(now, j.layer, j.version, j.since, j.drift, j.least, j.wakes))
        for layer in self._schedule.ended_since(self._ended):
            self._ended += 1
            self.emit(LayerFinished(time.monotonic(), layer))


class Untrained(Driver):
    """A run without pretraining.

    Its layers have trained 0 epochs; there is nothing to save before fine-tuning, nor to resume.
    """

    _no_replay = "schedule none, where there is nothing to read"

    def run(self) -> Stack:
        """Return the stack."""
        s, none = self.settings, self.done
        own = (s.layers, none, s.schedule, s.pace, s.runtime, self.slots, self._examples)
        self.emit(RunStarted(time.monotonic(), *own, ((),) * len(none)))
        stack = self.stack()
        self.emit(RunFinished(time.monotonic(), 0.0, self._busy()))
        return stack

    @property
    def done(self) -> tuple[int, ...]:
        """The epochs that each layer has finished."""
        return (0,) * len(self.settings.epochs)

    def _newest(self) -> tuple[Layer, ...]:
        """Return layers of random weights; the same seed gives the same."""
        s = self.settings
        return untrained_stack(s.shapes, s.hidden_units, s.visible_units, seed=s.seed).layers


def driver_for(
    settings: PretrainSettings, X: ArrayLike, validation: ArrayLike | None = None, **how: Any
) -> Driver:
    """Return the driver of a run, everything checked.

    ``how`` are the further parameters of :class:`~syncpretrain.pretraining.training.Driver`.

    Raises
    ------
    SettingsError, DataError
        If the run is not possible.
    """
    driver = _kind_of(settings)(settings, X, validation, **how)
    own = driver.settings
    idle = why_no_gpu(settings.backend, why_not_on_a_device(own))
    slow = why_no_fused_steps(own.backend, own.precision) if own.model == "rbm" else None
    missing = "missing values (NaN) are left out of gradients and errors" if own.missing else None
    for message in filter(None, (idle, slow, missing, _far_data(driver), placement_of(driver))):
        driver.notify(message)
    return driver


def placement_of(driver: Driver) -> str | None:
    """Return which layers are on which of several GPUs in words; None if all are on the first."""
    own = driver.settings
    if own.schedule in (ASYNC, UNTRAINED):
        return None
    backend = build.backend_of_layers(own)
    groups = [backend.for_layer(layer).group() for layer in range(1, len(own.layers))]
    if all(group == backend.devices()[:1] for group in groups):
        return None
    named = (f"{layer} on {' and '.join(map(str, group))}" for layer, group in enumerate(groups, 1))
    return f"layers on GPUs: {', '.join(named)}"


def rows_of(driver: Driver) -> Any:
    """Return the rows on which layer 1 trains, as the driver holds them; None where it does not."""
    inputs = getattr(driver, "inputs", None)
    return None if inputs is None else inputs.train


def _far_data(driver: Driver) -> str | None:
    """Return a notice of data that a GPU has no room for, or None."""
    rows = rows_of(driver)
    if not isinstance(rows, HostRows) or rows.is_stored:  # a file's are read as they are needed
        return None
    return "the GPU has no room for the data: they stay on the host, and are copied block by block"


def _kind_of(settings: PretrainSettings) -> type[Driver]:
    """Return the driver's class: by the schedule, then by the hand-over."""
    if settings.schedule == UNTRAINED:
        return Untrained
    if settings.schedule == ASYNC:
        from syncpretrain.pretraining.asynchronous import AsyncPretraining

        return AsyncPretraining
    if settings.handoff == "epoch":
        return Pretraining
    from syncpretrain.pretraining.streamed import StreamedPretraining

    return StreamedPretraining
