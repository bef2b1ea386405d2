"""Driver of an asynchronous run: replicas of the layers, and a parameter server.

With hand-over by epochs the layers train one after another, each with its replicas; with hand-over
by minibatches all of them at once, each replica taking its minibatches up through all layers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from syncpretrain.data.file_rows import FileRows
from syncpretrain.data.order import minibatches, steps_per_epoch
from syncpretrain.errors import SettingsError, WorkerError
from syncpretrain.events import EpochFinished, EpochStarted, LayerFinished, Progress
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.base import Learner
from syncpretrain.learners.epoch import Stopped, diverged, run_away
from syncpretrain.models.layer import Layer, up_through
from syncpretrain.parallel.precision_choice import resolve_precision
from syncpretrain.parallel.replicas.server import ParameterServer
from syncpretrain.parallel.replicas.steps import Task, part_of, tasks_of
from syncpretrain.parallel.signals import StopRequest
from syncpretrain.pretraining.build import build_learner, build_learners, step_for
from syncpretrain.pretraining.training import Driver
from syncpretrain.schedule.kinds import Reads
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.workers.activations import Split
from syncpretrain.workers.replicas import Fleet, replicas_in
from syncpretrain.workers.shared_memory import check_runtime
from syncpretrain.workers.state import AsyncState, named, refusing_others
from syncpretrain.workers.worker import PROBE_ROWS


class LayerReplica:
    """Layers that train on their own; see :class:`syncpretrain.parallel.replicas.steps.Replica`.

    Each layer reads the hidden means that the layer below computes from the minibatch before its
    own update. A layer that has trained all its epochs only hands up.

    Parameters
    ----------
    settings : PretrainSettings
    layers : sequence of int
        Numbers of layers that follow each other, counted from 1.
    data : sequence of one ndarray of shape (n_examples, visible)
        Input of the lowest layer.
    """

    def __init__(
        self, settings: PretrainSettings, layers: Sequence[int], data: Sequence[Any]
    ) -> None:
        self._settings, self._X = settings, data[0]
        self._first = layers[0]
        self._learners = [build_learner(settings, layer) for layer in layers]
        self._training = [step_for(learner, 1, "examples") for learner in self._learners]
        rows = settings.batch_size
        widths = [learner.current().shape.hidden for learner in self._learners[:-1]]
        self._handed = [np.empty((rows, width), np.float32) for width in widths]
        self._all_rows = np.arange(rows)
        self._order: tuple[int, list[Any]] = (0, [])
        # From the lowest layer up.
        self.parameters = [array for learner in self._learners for array in learner.parameters]

    def train(self, epoch: int, step: int) -> list[float]:
        """Train on a minibatch of an epoch; return the summed error of each layer."""
        X, rows, errors = self._X, self._rows(epoch)[step], []
        for i, (learner, training) in enumerate(zip(self._learners, self._training, strict=True)):
            trains = epoch <= self._settings.epochs[learner.layer - 1]
            error = training.train_step(X, rows, epoch=epoch, step=step) if trains else 0.0
            errors.append(float(error))
            if i < len(self._handed):
                out = self._handed[i][: len(rows)]
                # As in a stream: the means from before the update, or else computed anew after it.
                if not (trains and training.hand_up(out)):
                    learner.current().up(X[rows], out=out)
                X, rows = out, self._all_rows[: len(rows)]
        return errors

    def state(self) -> dict[str, Array]:
        """Return what the steps of the layers depend on beside the parameters."""
        return {
            f"layer{learner.layer}.{name}": array
            for learner, training in zip(self._learners, self._training, strict=True)
            for name, array in training.state().items()
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what :meth:`state` held."""
        for name, array in self.state().items():
            np.copyto(array, state[name])

    def _rows(self, epoch: int) -> list[Any]:
        # A replica trains on minibatches of one epoch at a time: the newest order is kept.
        if self._order[0] != epoch:
            own = self._settings
            order = minibatches(
                len(self._X), own.batch_size, seed=own.seed, layer=self._first, epoch=epoch
            )
            self._order = (epoch, list(order))
        return self._order[1]


FLEET = "fleet."


class Stage:
    """The learners here, which follow the server, and the replicas.

    Parameters
    ----------
    learners : sequence of Learner
        Successive layers; the replicas begin with their parameters.
    replicas : callable
        Returns the fleet that trains a flat vector of these parameters.

    Attributes
    ----------
    layers : list of int
    errors : list of float
        Mean error of each layer in the last epoch.
    fleet : Fleet
    """

    def __init__(self, learners: Sequence[Learner], replicas: Callable[[Array], Fleet]) -> None:
        self.learners, self.layers = learners, [learner.layer for learner in learners]
        self.errors: list[float] = []
        self._arrays = [array for learner in learners for array in learner.parameters]
        self._flat = np.concatenate([array.reshape(-1) for array in self._arrays])
        self.fleet = replicas(self._flat)

    def update(self) -> None:
        """Give the learners the parameters of the server."""
        ends = np.cumsum([array.size for array in self._arrays])[:-1]
        for array, own in zip(self._arrays, np.split(self._flat, ends), strict=True):
            np.copyto(array, own.reshape(array.shape))

    def state(self) -> dict[str, Array]:
        """Return by name a copy of all that the replicas remember."""
        return {FLEET + name: array.copy() for name, array in self.fleet.state().items()}

    def load_state(self, state: AsyncState) -> None:
        """Load what the replicas remembered, if the state has any."""
        if own := part_of(state.arrays, FLEET):
            with refusing_others("the replicas are of another run"):
                self.fleet.load_state(own)


EVERY_SECONDS = 0.2


class AsyncPretraining(Driver):
    """One asynchronous run."""

    _no_replay = "schedule async, expected none; its layers read no versions"

    def _checked(self, settings: PretrainSettings) -> PretrainSettings:
        settings = msgspec.structs.replace(settings, backend="numpy")
        check_runtime(settings.runtime)
        if settings.runtime == "mpi":
            from syncpretrain.cluster.job import check_ranks, check_windows

            # What "auto" will be: the examples are not there yet, and change nothing on the CPU.
            check_ranks(settings.runtime, resolve_precision(settings.precision, settings.backend))
            check_windows(settings.exchange)
        return settings

    def _build(self, data: Split) -> None:
        settings = self.settings
        if not isinstance(data.train, (np.ndarray, FileRows)):
            raise SettingsError(
                "schedule: got async with sparse rows or an iterable, expected an array of dense"
                " rows; or take schedule greedy"
            )
        self._X, self._held_out = np.asarray(data.train), data.validation[:PROBE_ROWS]
        self.slots = 1 if settings.runtime == "serial" else max(settings.replicas)
        self._learners = build_learners(self.settings)
        self._done = [0] * len(self._learners)
        self._began: dict[int, float] = {}  # each layer's running epoch
        self._reported = time.monotonic()
        self._steps = steps_per_epoch(len(data.train), settings.batch_size)
        self._good: list[Any] = [learner.snapshot() for learner in self._learners]
        self._stage: Stage | None = None
        self._left: AsyncState | None = None  # in the middle of an epoch

    @property
    def done(self) -> tuple[int, ...]:
        """The epochs that each layer has finished."""
        return tuple(self._done)

    def state(self) -> AsyncState:
        """Return all that the rest of the run depends on."""
        return self._left or self._state(0, ())

    def _newest(self) -> list[Layer]:
        return [learner.snapshot() for learner in self._learners]

    def _past_reads(self) -> Reads:
        return tuple((self._reads(i),) * n for i, n in enumerate(self._done, start=1))

    def _emit_start(self, now: float) -> None:
        super()._emit_start(now)
        for layer, (n, limit) in enumerate(zip(self._done, self.settings.epochs, strict=True), 1):
            if n == limit:  # before the checkpoint
                self.emit(LayerFinished(now, layer))

    def _train(self, request: StopRequest) -> None:
        """Train layer after layer, or all at once."""
        numbers = range(1, len(self._learners) + 1)
        stages = [[n] for n in numbers] if self.settings.handoff == "epoch" else [list(numbers)]
        for layers in stages:
            began = time.monotonic()
            self._train_stage(layers, request)
            for layer in layers:
                self._seconds[layer - 1] = time.monotonic() - began

    def _train_stage(self, layers: Sequence[int], request: StopRequest) -> None:
        """Train layers together until each has done its epochs."""
        epochs = max(self.settings.epochs[n - 1] for n in layers)
        first = max(self._done[n - 1] for n in layers) + 1
        if first > epochs:
            return
        learners = [self._learners[n - 1] for n in layers]
        below = [learner.current() for learner in self._learners[: layers[0] - 1]]
        X, V = (up_through(below, x) if below else x for x in (self._X, self._held_out))
        # Only before the very first minibatch: biases are set from the data.
        if first == 1 and not (self.resume and self.resume.minibatches):
            learners[0].start(X)
        stage = self._stage = Stage(learners, partial(self._replicas, layers, X))
        begin, errors = 0, [0.0] * len(layers)
        if self.resume is not None:
            stage.load_state(self.resume)
            begin, errors = self.resume.minibatches, list(self.resume.errors) or errors
            self.resume = None
        with stage.fleet:
            for epoch in range(first, epochs + 1):
                self._train_epoch(stage, epoch, begin, errors, request)
                begin, errors = 0, [0.0] * len(layers)
                self._end_epoch(stage, epoch, V)

    def _replicas(self, layers: Sequence[int], X: Array, flat: Array) -> Fleet:
        """Return replicas of some layers, which train the flat parameters on an input."""
        s = self.settings
        return replicas_in(
            s.runtime,
            ParameterServer(flat, s, s.servers),
            s,
            partial(LayerReplica, s, layers),
            (X,),
            replicas=s.replicas[layers[0] - 1],
            exchange=s.exchange,
            report=self.notify,
            times=self._times,
        )

    def _train_epoch(
        self, stage: Stage, epoch: int, begin: int, errors: list[float], request: StopRequest
    ) -> None:
        running = [n for n in stage.layers if epoch <= self.settings.epochs[n - 1]]
        for layer in running:
            self._began[layer] = now = time.monotonic()
            self.emit(EpochStarted(now, layer, epoch, self._reads(layer)))
        trained = begin

        def each(task: Task, own: Sequence[float], staleness: int) -> None:
            nonlocal trained
            trained += task.count
            for i, error in enumerate(own):
                errors[i] += error
                if not math.isfinite(errors[i]):
                    raise self._diverged(stage, i, epoch, f"the error is {errors[i]}")
            if (now := time.monotonic()) - self._reported >= EVERY_SECONDS:
                self._reported = now
                for layer in running:
                    self.emit(Progress(now, layer, epoch, trained / self._steps))

        tasks = tasks_of(epoch, begin, self._steps, self.settings.push_every)
        if stage.fleet.train(tasks, request, each) < len(tasks):
            stage.update()
            if self.save is not None:  # while the replicas are there
                self._left = self._state(trained, tuple(errors))
            raise Stopped
        stage.errors = [error / self._examples for error in errors]

    def _end_epoch(self, stage: Stage, epoch: int, V: Array) -> None:
        """Judge the layers that trained an epoch, report it, and save what is due."""
        stage.update()
        if epoch == max(self.settings.epochs[n - 1] for n in stage.layers):
            self._stage = None  # a checkpoint from now on has no need of its replicas' memory
        for i, learner in enumerate(stage.learners):
            number, limit = learner.layer, self.settings.epochs[learner.layer - 1]
            if epoch <= limit:
                if symptom := run_away(learner):
                    raise self._diverged(stage, i, epoch, symptom)
                held_out = learner.validation_error(V) if len(V) else None
                self._done[number - 1] = epoch
                self._good[number - 1] = learner.snapshot()
                self._emit_end(number, epoch, stage.errors[i], held_out)
            if len(V) and learner is not stage.learners[-1]:
                V = learner.current().up(V)
        if self.done != self.settings.epochs:
            self._save()

    def _state(self, minibatches: int, errors: tuple[float, ...]) -> AsyncState:
        """Return a copy of all that the rest depends on."""
        arrays = {
            name: array.copy()
            for learner in self._learners
            for name, array in named(f"layer.{learner.layer}", learner.current()).items()
        }
        if self._stage is not None:
            arrays |= self._stage.state()
        return AsyncState(self.done, minibatches, errors, arrays, self.history.curves())

    def _go_on(self) -> None:
        if self.resume is None:
            return
        self._done = list(self.resume.done)
        for learner in self._learners:
            with refusing_others(f"the state of layer {learner.layer} is of another layer"):
                for name, array in named(f"layer.{learner.layer}", learner.current()).items():
                    np.copyto(array, self.resume.arrays[name])
        self._good = [learner.snapshot() for learner in self._learners]

    def _diverged(self, stage: Stage, i: int, epoch: int, symptom: str) -> WorkerError:
        failure = diverged(stage.learners[i], epoch, symptom)
        for learner, good in zip(self._learners, self._good, strict=True):
            learner.restore(good)
        failure.stack = self.stack()
        return failure

    def _emit_end(self, layer: int, epoch: int, error: float, held_out: float | None) -> None:
        now = time.monotonic()
        event = EpochFinished(
            time=now,
            layer=layer,
            epoch=epoch,
            reads=self._reads(layer),
            started=self._began[layer],
            transform_seconds=0.0,
            train_error=error,
            validation_error=held_out,
        )
        self.emit(event)
        if epoch == self.settings.epochs[layer - 1]:
            self.emit(LayerFinished(now, layer))

    def _reads(self, layer: int) -> int:
        """Return the version below that a layer reads: the last one, or with minibatches none."""
        s = self.settings
        return 0 if layer == 1 or s.handoff == "minibatch" else s.epochs[layer - 2]
