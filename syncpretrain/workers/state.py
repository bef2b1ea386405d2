"""States from which a training resumes, and their form in a checkpoint.

There are four kinds of states: of whole epochs, of a stream of minibatches, of an asynchronous run,
and of fine-tuning. A :class:`StateFile` writes a state as a checkpoint: the fields that hold arrays
become arrays with names, and all other fields make up the header. Names and keys are the same in
every version of the library, so that a newer version resumes the checkpoints of an older one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.array_files import read_arrays, write_arrays
from syncpretrain.errors import CheckpointError
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.epoch import Cursor
from syncpretrain.models.layer import ConvolutionalLayer, DenseLayer, Layer, ModuleLayer
from syncpretrain.observers.history import ErrorCurve
from syncpretrain.parallel.replicas.steps import part_of
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.schedule.schedule import Past
from syncpretrain.settings.convert import each
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.shapes import ConvolutionShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """State of a layer between two minibatches, as a checkpoint keeps it.

    ``step_state`` is the state of the :class:`~syncpretrain.learners.steps.Step`. ``last_good`` is
    the layer at the end of its last epoch, to which a roll-back returns. ``cursor`` is the place in
    the epoch after the last one. ``stopping`` is the state of early stopping. ``outputs`` holds the
    layer's outputs by version, on the host; its drift is measured from them. ``marks`` has the
    layer after some updates of the running epoch, by their number.
    """

    layer: Layer
    step_state: dict[str, NDArray[np.float32]]
    last_good: Layer
    cursor: Cursor
    learning_rate: float
    rollbacks: int
    stopping: tuple[float, int] | None
    outputs: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    marks: Mapping[int, Layer] = field(default_factory=dict)

    def to(self, device: Callable[[Any], Any]) -> LayerState:
        """Return the state with every array moved by ``device``."""
        return replace(
            self,
            layer=self.layer.to(device),
            step_state={name: device(array) for name, array in self.step_state.items()},
            last_good=self.last_good.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedLayerState:
    """State of a streamed layer between two minibatches.

    ``position`` is the last minibatch that the layer processed. ``examples`` is the number of
    examples of the running epoch over which errors are summed. ``steps`` is the number of
    minibatches that train the layer: fewer than planned after an early stop, None for all. ``ring``
    and ``passes`` hold, by number, the minibatches and the validation examples that the layer
    handed up and the layer above has not processed.
    """

    position: int
    state: LayerState
    examples: int
    validation_error: float | None
    warnings: tuple[str, ...]
    ring: dict[int, NDArray[np.float32]]
    passes: dict[int, NDArray[np.float32]]
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class PretrainState:
    """The past of the schedule, the versions that it may still read, and every layer's state.

    ``snapshots`` has the held versions by layer and version, and the versions below through which
    their activations were computed. ``computed`` names the held versions with activations; a
    resumed run computes the activations again from the snapshots. The state of a layer that has not
    trained yet is None. The state of a stopped layer is in the middle of its epoch; any other layer
    begins its running epoch again. ``curves`` are the layers' errors so far; the oldest files have
    none.
    """

    past: Past
    snapshots: dict[tuple[int, int], Layer]
    computed: list[tuple[int, int]]
    states: tuple[LayerState | None, ...]
    curves: tuple[ErrorCurve, ...] = ()

    @property
    def done(self) -> tuple[int, ...]:
        """Number of finished epochs of each layer."""
        return self.past.done

    def ancestry(self, layer: int, version: int) -> list[Layer]:
        """Return the snapshots, from layer 1 up, that make a version's activations of the data."""
        chain = []
        for number in range(layer, 0, -1):
            chain.append(self.snapshots[number, version])
            version = self.past.reads[number - 1][version - 1]
        return chain[::-1]


@dataclass(frozen=True, slots=True)
class StreamState:
    """States of all layers, from the lowest up, with finished epochs (``done``) and errors."""

    layers: tuple[StreamedLayerState, ...]
    done: tuple[int, ...]
    curves: tuple[ErrorCurve, ...] = ()


@dataclass(frozen=True, slots=True)
class AsyncState:
    """State of an asynchronous run.

    ``done`` is the number of finished epochs of each layer. ``minibatches`` is the number of
    finished minibatches of the running epoch, and ``errors`` has the sum of their errors for each
    layer in training. ``arrays`` are the parameters of all layers and the states of the replicas;
    ``curves`` are the errors of the finished epochs.
    """

    done: tuple[int, ...]
    minibatches: int
    errors: tuple[float, ...]
    arrays: dict[str, Array]
    curves: tuple[ErrorCurve, ...] = ()


@dataclass(frozen=True, slots=True)
class FinetuneState:
    """State of fine-tuning at ``cursor`` in ``epoch``, the epoch to go on with.

    ``arrays`` holds the parameters, the parameters after the last good epoch and after the best
    epoch, and the optimizer's state. ``best_error`` and ``first_error`` are None before there is
    an error; ``curve`` holds the errors of earlier epochs, None in the oldest files.
    """

    epoch: int
    cursor: Cursor
    first_error: float | None
    best_error: float | None
    best_epoch: int
    arrays: dict[str, Array]
    curve: ErrorCurve | None = None


State = PretrainState | StreamState | AsyncState


# Writes the state of a training: ``save(state, done=..., final=...)`` calls
# ``state()`` if a checkpoint is due after ``done`` epochs; at a stop it is final.
Saver = Callable[..., None]


@contextmanager
def refusing_others(what: str) -> Iterator[None]:
    """Turn an error of a state that does not fit into a refusal; ``what`` begins its message.

    Raises
    ------
    CheckpointError
        If an array is missing, or has another shape.
    """
    try:
        yield
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"resume: {what}: {error}") from error


StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class StateFile(Generic[StateT]):
    """Format of one kind of state in a file.

    Attributes
    ----------
    header : type
        A :class:`msgspec.Struct` of the fields in the file's header, without the run's identity.
    pack : callable
        Takes a state and a table; adds the named arrays to the table, returns the header.
    unpack : callable
        Takes the header and the arrays; returns the state.
    """

    header: Any
    pack: Callable[[StateT, dict[str, Array]], msgspec.Struct]
    unpack: Callable[[Any, dict[str, Array]], StateT]

    def write(self, path: Path, state: StateT, run: Mapping[str, Any]) -> None:
        """Write a state and the identity of its run (JSON values); then replace an older file.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        arrays: dict[str, Array] = {}
        header = {"run": dict(run), **msgspec.structs.asdict(self.pack(state, arrays))}
        write_arrays(path, each(msgspec.to_builtins(header), _finite), arrays)

    def read(self, path: Path, check: Callable[[dict[str, Any]], Any] | None = None) -> StateT:
        """Return the state in a file.

        ``check`` is called with the identity of the run in the header, and raises CheckpointError
        if it is another run; by default the state of any run is accepted.

        Raises
        ------
        CheckpointError
            If the file is missing, damaged, of another format, or of another run.
        """
        values, arrays = read_arrays(path)
        try:
            run = msgspec.convert(values, _OfRun).run
            if check is not None:
                check(run)
            own = {name: each(x, _infinite) for name, x in values.items() if name != "run"}
            return self.unpack(msgspec.convert(own, self.header), arrays)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error
        except (msgspec.ValidationError, KeyError, IndexError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: is damaged: {error}") from error


class _OfRun(msgspec.Struct):
    run: dict[str, Any]


def _finite(value: Any) -> Any:
    """Replace a number that JSON lacks by a text; the best error of early stopping begins so."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _infinite(value: Any) -> Any:
    """Undo :func:`_finite`."""
    return float(value) if value in ("inf", "-inf", "nan") else value


# layers

LAYER_KINDS = ("hidden_units", "visible_units", "model")
ARRAYS = ("weight", "hidden_bias", "visible_bias", "decoder_weight")


class _LayerScalars(msgspec.Struct):
    cursor: Cursor
    learning_rate: float
    rollbacks: int
    stopping: tuple[float, int] | None


def named(prefix: str, layer: Layer) -> dict[str, Array]:
    """Return the arrays of a layer under names with a prefix."""
    return {f"{prefix}.{name}": array for name, array in layer.arrays()}


def _kinds_of(layer: Layer) -> dict[str, Any]:
    """Return the fields of a layer that are no arrays; arrays tell the shape of a dense layer."""
    kinds = {name: getattr(layer, name) for name in LAYER_KINDS}
    if isinstance(layer, ConvolutionalLayer):
        kinds["shape"] = msgspec.to_builtins(layer.shape)
    if isinstance(layer, DenseLayer) and layer.precision != "float32":
        kinds["precision"] = layer.precision
    return kinds


def _read_layer(prefix: str, kinds: Mapping[str, Any], arrays: Mapping[str, Array]) -> Any:
    """Return the layer with the parameters that :func:`named` stored under a prefix."""
    if kinds["model"] == ModuleLayer.model:
        return ModuleLayer(part_of(arrays, f"{prefix}."))
    parameters = {name: arrays.get(f"{prefix}.{name}") for name in ARRAYS}
    # The fourth array, of the decoder, is missing where the weights are tied.
    if any(parameters[name] is None for name in ARRAYS[:3]):
        raise ValueError(f"{prefix} lacks an array")
    own: Any = parameters | {name: kinds[name] for name in LAYER_KINDS}
    if "shape" not in kinds:
        own["chains"] = arrays.get(f"{prefix}.chains")
        return DenseLayer(**own, precision=kinds.get("precision", "float32"))
    return ConvolutionalLayer(**own, shape=msgspec.convert(kinds["shape"], ConvolutionShape))


def _pack_layer(number: int, state: LayerState, arrays: dict[str, Array]) -> _LayerScalars:
    """Add the arrays in the state of a layer, counted from 1; return the other fields."""
    arrays |= named(f"layer.{number}", state.layer)
    arrays |= named(f"good.{number}", state.last_good)
    arrays |= {f"outputs.{number}.{version}": array for version, array in state.outputs.items()}
    for update, mark in state.marks.items():
        arrays |= named(f"mark.{number}.{update}", mark)
    arrays |= {f"memory.{number}.{name}": array for name, array in state.step_state.items()}
    return _LayerScalars(state.cursor, state.learning_rate, state.rollbacks, state.stopping)


def _unpack_layer(
    number: int, scalars: _LayerScalars, kinds: dict[str, Any], arrays: dict[str, Array]
) -> LayerState:
    """Undo :func:`_pack_layer`."""
    outputs = part_of(arrays, f"outputs.{number}.")
    marks = {name.split(".")[0] for name in part_of(arrays, f"mark.{number}.")}
    return LayerState(
        layer=_read_layer(f"layer.{number}", kinds, arrays),
        step_state=part_of(arrays, f"memory.{number}."),
        last_good=_read_layer(f"good.{number}", kinds, arrays),
        outputs={int(version): array for version, array in outputs.items()},
        marks={int(n): _read_layer(f"mark.{number}.{n}", kinds, arrays) for n in marks},
        **msgspec.structs.asdict(scalars),
    )


# whole epochs


class _EpochsHeader(msgspec.Struct):
    past: Past
    made: list[tuple[int, int]]  # layer and version of computed activations
    snapshots: list[tuple[int, int]]
    states: list[_LayerScalars | None]
    kinds: list[dict[str, Any]]
    curves: tuple[ErrorCurve, ...] = ()


def _pack_epochs(state: PretrainState, arrays: dict[str, Array]) -> _EpochsHeader:
    kinds: list[dict[str, Any]] = [{} for _ in state.states]
    for (number, version), layer in state.snapshots.items():
        # All versions of a layer have the same kinds.
        arrays |= named(f"snapshot.{number}.{version}", layer)
        kinds[number - 1] = _kinds_of(layer)
    states: list[_LayerScalars | None] = [None] * len(kinds)
    for number, own in enumerate(state.states, start=1):
        if own is not None:
            states[number - 1] = _pack_layer(number, own, arrays)
            kinds[number - 1] = _kinds_of(own.layer)
    versions = list(state.snapshots)
    return _EpochsHeader(state.past, state.computed, versions, states, kinds, state.curves)


def _unpack_epochs(header: _EpochsHeader, arrays: dict[str, Array]) -> PretrainState:
    states = [
        None if own is None else _unpack_layer(number, own, header.kinds[number - 1], arrays)
        for number, own in enumerate(header.states, start=1)
    ]
    snapshots = {
        (i, version): _read_layer(f"snapshot.{i}.{version}", header.kinds[i - 1], arrays)
        for i, version in header.snapshots
    }
    state = PretrainState(header.past, snapshots, header.made, tuple(states), header.curves)
    # A damaged file is refused here, not in the middle of the resumed run.
    held = {(i, version) for i, row in enumerate(header.past.held, start=1) for version in row}
    if not held <= snapshots.keys() or not held >= set(header.made):
        raise ValueError("versions are held without their parameters, or computed but not held")
    for number, version in header.made:
        state.ancestry(number, version)
    return state


EPOCHS_STATE = StateFile(_EpochsHeader, _pack_epochs, _unpack_epochs)


# streams

RINGS = ("ring", "passes")


class _StreamedLayer(msgspec.Struct):
    position: int
    scalars: _LayerScalars
    kinds: dict[str, Any]
    examples: int
    validation_error: float | None
    warnings: tuple[str, ...]
    ring: list[int]
    passes: list[int]
    steps: int | None = None


class _StreamHeader(msgspec.Struct):
    stream: list[_StreamedLayer]
    done: tuple[int, ...]
    curves: tuple[ErrorCurve, ...] = ()


def _pack_stream(state: StreamState, arrays: dict[str, Array]) -> _StreamHeader:
    layers = []
    for number, layer in enumerate(state.layers, start=1):
        names = _StreamedLayer.__struct_fields__
        own: dict[str, Any] = {name: getattr(layer, name, None) for name in names}
        own["scalars"] = _pack_layer(number, layer.state, arrays)
        own["kinds"] = _kinds_of(layer.state.layer)
        for name in RINGS:
            arrays |= {f"{name}.{number}.{n}": array for n, array in own[name].items()}
            own[name] = list(own[name])
        layers.append(_StreamedLayer(**own))
    return _StreamHeader(layers, state.done, state.curves)


def _unpack_stream(header: _StreamHeader, arrays: dict[str, Array]) -> StreamState:
    layers = []
    for number, layer in enumerate(header.stream, start=1):
        own = msgspec.structs.asdict(layer)
        own["state"] = _unpack_layer(number, own.pop("scalars"), own.pop("kinds"), arrays)
        for name in RINGS:
            own[name] = {n: arrays[f"{name}.{number}.{n}"] for n in own[name]}
        layers.append(StreamedLayerState(**own))
    return StreamState(tuple(layers), header.done, header.curves)


STREAM_STATE = StateFile(_StreamHeader, _pack_stream, _unpack_stream)


# asynchronous runs and fine-tuning: their arrays have names already


def _flat(kind: Any) -> StateFile[Any]:
    """Return the format of a class of states: ``arrays``, and a header of all other fields."""
    types = get_type_hints(kind)
    others = [x for x in fields(kind) if x.name != "arrays"]
    # A field with a default may lack in a file of an older version.
    header = msgspec.defstruct(
        kind.__name__,
        [(x.name, types[x.name], *(() if x.default is MISSING else (x.default,))) for x in others],
    )

    def pack(state: Any, arrays: dict[str, Array]) -> msgspec.Struct:
        arrays |= state.arrays
        return header(**{x.name: getattr(state, x.name) for x in others})

    def unpack(header: msgspec.Struct, arrays: dict[str, Array]) -> Any:
        return kind(arrays=arrays, **msgspec.structs.asdict(header))

    return StateFile(header, pack, unpack)


ASYNC_STATE: StateFile[AsyncState] = _flat(AsyncState)
FINETUNE_STATE: StateFile[FinetuneState] = _flat(FinetuneState)


def state_file_of(settings: PretrainSettings) -> StateFile[Any]:
    """Return the format of the state of a run with these settings."""
    if settings.schedule == ASYNC:
        return ASYNC_STATE
    return EPOCHS_STATE if settings.handoff == "epoch" else STREAM_STATE
