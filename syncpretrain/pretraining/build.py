"""Build from settings: the data as layer 1 sees it, the learners and workers of the layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from syncpretrain.backends.base import Backend
from syncpretrain.data.array_passes import ArrayPasses
from syncpretrain.data.examples import (
    as_examples,
    check_examples,
    check_values,
    checked_rows,
    evenly_spaced,
)
from syncpretrain.data.file_rows import FileRows, rows_in_file
from syncpretrain.data.minibatches import Minibatches, is_iterable_of_arrays
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import CheckpointError, DataError, SettingsError
from syncpretrain.learners.autoencoder import Autoencoder, AutoencoderSettings
from syncpretrain.learners.base import Learner
from syncpretrain.learners.convolution import ConvolutionalAutoencoder
from syncpretrain.learners.drift import Outputs
from syncpretrain.learners.early_stopping import EarlyStopping
from syncpretrain.learners.probabilistic_rbm import convolutional_rbm
from syncpretrain.learners.rbm import RBM, RBMSettings
from syncpretrain.learners.select import step_for
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.pretraining.memory import check_memory, streamed_rows
from syncpretrain.pretraining.runtime.layer_state import LayerState
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.worker import PROBE_ROWS, Inputs, LayerWorker, WorkerFactory
from syncpretrain.settings.architecture import check_width
from syncpretrain.settings.checks import parsed_corruption
from syncpretrain.settings.drift import parsed_waking
from syncpretrain.settings.momentum import MomentumSchedule
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.units import kind_of

__all__ = [
    "build_data",
    "build_learner",
    "build_learners",
    "build_outputs",
    "build_stopping",
    "build_worker",
    "build_worker_factories",
]

# By the shape's name, a function of the layer's number, its shape and its settings.
RBMS: dict[str, Callable[[int, Any, RBMSettings], Learner]] = {
    "dense": lambda layer, shape, own: RBM(layer, shape.visible, shape.hidden, own),
    "convolution": convolutional_rbm,
}
AUTOENCODERS: dict[str, Callable[[int, Any, AutoencoderSettings], Learner]] = {
    "dense": lambda layer, shape, own: Autoencoder(layer, shape.visible, shape.hidden, own),
    "convolution": ConvolutionalAutoencoder,
}


def build_data(
    settings: PretrainSettings, X: ArrayLike, validation: ArrayLike | None
) -> tuple[Split, Scaling | None]:
    """Return the examples as layer 1 is to see them, and how they were standardized, if they were.

    Raises
    ------
    SettingsError, DataError
        If they cannot be trained on, or do not fit the settings, or the stack not the memory.
    """
    data = _checked_data(settings, X, validation)
    examples = sum(map(len, data))
    streams = settings.handoff == "minibatch"
    layers = range(1, len(settings.layers))
    check_memory(
        settings.shapes,
        examples=streamed_rows(settings.batch_size, len(data.validation)) if streams else examples,
        batch_size=settings.batch_size,
        processes=settings.runtime == "processes",
        shared=examples if isinstance(data.train, np.ndarray) else 0,
        sampled=PROBE_ROWS if any(map(partial(build_outputs, settings), layers)) else 0,
    )
    scaling = None
    if not kind_of(settings.visible_units).is_unit_interval:
        scaling = Scaling.of(data.train)
        data = Split(*map(scaling.apply, data))
    if isinstance(data.train, ArrayPasses) and settings.visible_bias != "zero":
        data.train.measure()
    return data, scaling


def build_learners(settings: PretrainSettings) -> list[Learner]:
    """Return one learner a layer, from the lowest up, each with its arrays allocated."""
    return [build_learner(settings, layer) for layer in range(1, len(settings.layers))]


def build_learner(
    settings: PretrainSettings, layer: int, backend: Backend | None = None
) -> Learner:
    """Return the learner of one layer, its arrays allocated where a backend has them."""
    shape = settings.shapes[layer - 1]
    if settings.model == "rbm":
        learner = RBMS[shape.name](layer, shape, _rbm(settings, layer - 1))
    else:
        learner = AUTOENCODERS[shape.name](layer, shape, _autoencoder(settings, layer - 1))
    if backend is not None:
        learner.to(backend.for_layer(layer))
    return learner


def _rbm(settings: PretrainSettings, i: int) -> RBMSettings:
    return RBMSettings(
        **_common(settings, i),
        cd_steps=settings.cd_steps[i],
        persistent=settings.persistent[i],
        sparsity_target=settings.sparsity_target[i],
        sparsity_cost=settings.sparsity_cost[i],
        hidden_dropout=settings.hidden_dropout[i],
    )


def _autoencoder(settings: PretrainSettings, i: int) -> AutoencoderSettings:
    common = _common(settings, i)
    usual = kind_of(common["visible_units"]).loss
    below = kind_of(settings.hidden_units[i - 1] if i else settings.visible_units)
    return AutoencoderSettings(
        **common,
        tied=settings.tied,
        loss=usual if usual == "squared" else settings.loss or usual,
        corruption=parsed_corruption(settings.corruption[i]),
        limits=(below.lower, below.upper) if below.is_bounded else (0, 1),
        contraction=settings.contraction[i],
    )


def _common(settings: PretrainSettings, i: int) -> dict[str, Any]:
    return {
        "batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate[i],
        "momentum": MomentumSchedule(settings.momentum[i]),
        "weight_decay": settings.weight_decay[i],
        "l1": settings.l1[i],
        "hidden_units": settings.hidden_units[i],
        "visible_units": settings.visible_units_of(i + 1),
        "visible_bias": settings.visible_bias,
        "seed": settings.seed,
    }


def build_worker(
    settings: PretrainSettings,
    layer: int,
    state: LayerState | None,
    keep_states: bool,
    backend: Backend | None,
    times: Timeouts,
    inputs: Inputs,
) -> LayerWorker:
    """Return the worker of one layer, where its state says it is, if it has one.

    ``backend`` is where the layers are trained, None NumPy.
    """
    learner = build_learner(settings, layer, backend)
    stopping = build_stopping(settings)[layer - 1]
    worker = LayerWorker(
        learner,
        step_for(learner, settings.shards_of(layer), settings.split),
        inputs,
        stopping,
        build_outputs(settings, layer),
        keep_states=keep_states,
        replicas=settings.replicas[layer - 1],
        times=times,
    )
    if state is not None:
        try:
            worker.load_state(state)
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                f"resume: the state of layer {layer} is of another layer: {error}"
            ) from error
    return worker


def build_worker_factories(
    settings: PretrainSettings,
    states: Sequence[LayerState | None] = (),
    *,
    keep_states: bool,
    backend: Backend | None = None,
    times: Timeouts = TIMEOUTS,
) -> list[WorkerFactory]:
    """Return one function a layer that builds its worker.

    It is fit to be sent to another process, as long as the backend is NumPy.
    """
    depth = len(settings.layers) - 1
    return [
        partial(build_worker, settings, layer, state, keep_states, backend, times)
        for layer, state in zip(range(1, depth + 1), states or [None] * depth, strict=True)
    ]


def build_stopping(settings: PretrainSettings) -> list[EarlyStopping | None]:
    """Return what stops each layer early, if anything is to."""
    metric, depth = settings.early_stopping, len(settings.layers) - 1
    if metric == "none":
        return [None] * depth
    return [EarlyStopping(metric, settings.patience, seed=settings.seed) for _ in range(depth)]


def build_outputs(settings: PretrainSettings, layer: int) -> Outputs | None:
    """Return what measures the drift of a layer, if anything depends on it."""
    settle, above = settings.settle[layer - 1], settings.refresh_when[layer : layer + 1]
    if not settle and all(parsed_waking(text) is None for text in above):
        return None
    # A momentum that is still to rise makes the changes rise as well.
    return Outputs(settle, MomentumSchedule(settings.momentum[layer - 1]).last_begins)


def _checked_data(settings: PretrainSettings, X: ArrayLike, validation: ArrayLike | None) -> Split:
    bounded = kind_of(settings.visible_units).is_unit_interval
    width, batch = settings.layers[0], settings.batch_size
    train = _train_rows(settings, X, bounded=bounded)
    check_width(settings.shapes, train.shape[1])
    if batch > len(train):
        raise SettingsError(
            f"batch_size: got {batch}, expected at most {len(train)}, the examples to train on"
        )
    if validation is None or not np.size(validation):
        if settings.early_stopping != "none":
            raise SettingsError(
                f"early_stopping: got {settings.early_stopping} without validation examples,"
                " expected some to judge by"
            )
        return Split(train, np.empty((0, width), dtype=np.float32))
    held_out: Any = validation
    if not isinstance(validation, FileRows):
        held_out = as_examples(validation, "validation")
        check_values(held_out, "validation", bounded=bounded)
    if held_out.shape[1] != width:
        raise SettingsError(f"validation: got {held_out.shape[1]} columns, expected {width}")
    # No more of them are ever looked at, and all would be made anew of every version.
    return Split(train, check_examples(evenly_spaced(held_out, PROBE_ROWS), bounded=bounded))


def _train_rows(settings: PretrainSettings, X: Any, *, bounded: bool) -> Any:
    """Return the examples to train on, in memory unless a stream needs only some at a time."""
    streams = settings.handoff == "minibatch"
    if is_iterable_of_arrays(X):
        if not streams:
            raise DataError(
                f"X: got {type(X).__name__} with handoff epoch, expected an array; take handoff"
                " minibatch to train on what an iterable gives"
            )
        source = X if isinstance(X, Minibatches) else Minibatches(X)
        return ArrayPasses(
            source,
            settings.layers[0],
            bounded=bounded,
            batch_size=settings.batch_size,
            trained=_passes(settings),
            measured=(not bounded) + (settings.visible_bias != "zero"),
        )
    if isinstance(X, FileRows):
        return X if streams else np.asarray(X)
    if streams and (rows := rows_in_file(X)) is not None:
        return checked_rows(rows, bounded=bounded)
    return check_examples(X, bounded=bounded)


def _passes(settings: PretrainSettings) -> int:
    """Return how many passes over the data a stream makes, the last of which may be broken off."""
    return math.ceil(max(i * settings.delay + n for i, n in enumerate(settings.epochs)))
