"""The base of all learners: one layer's parameters, and a step in two halves.

:meth:`Learner.gradient` fills the gradient arrays from a minibatch, :meth:`Learner.update` moves
the parameters, so that averaging can stand between them. All arrays are allocated in the
constructor. A learner is a function of its seed and of its inputs: no clocks, no threads.

On a device (:meth:`Learner.to`) a step returns an array that is not synchronized, and the caller is
in a ``with`` block of the learner's stream, where all work is queued.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar, TypeVar

import numpy as np

from syncpretrain.backends.base import Backend, Recorder, Stream
from syncpretrain.data.scaling import column_means
from syncpretrain.data.weights import weighted_means
from syncpretrain.kernels.arrays import LONG_BLOCK, Array, Rows, blocks_in, slices_of
from syncpretrain.kernels.backprop import squared_error
from syncpretrain.kernels.conditions import is_missing, known_means
from syncpretrain.kernels.contrastive_divergence import momentum_step, momentum_steps
from syncpretrain.kernels.operations import Operation
from syncpretrain.kernels.precision import precision_of
from syncpretrain.models.layer import Layer
from syncpretrain.rng import Address, Purpose
from syncpretrain.settings.fields import LayerSettings
from syncpretrain.units.kinds import kind_of

L = TypeVar("L", bound="Learner")
FIRST = -1  # the priority of layer 1, for which all other layers wait
PARAMETERS = ("weight", "visible_bias", "hidden_bias", "decoder_weight")  # in their order


class Learner(ABC):
    """One layer in training.

    Parameters
    ----------
    layer : int
        Its number in the stack, counted from 1.
    first : Layer
        The layer before the first step; its arrays are trained in place.
    settings : LayerSettings

    Attributes
    ----------
    learning_rate : float
        The rate of the settings, until it is lowered after a divergence.
    parameters, gradients : list of ndarray
        Weight, visible bias, hidden bias, and the decoder weights if it has its own.
    backend, stream : Backend, Stream
        The device of its arrays, and the queue of its work there.
    recorder : Recorder
        Runs blocks of its steps there.
    precision : Precision
        The precision of its products.
    row_weights : ndarray of shape (n_examples,), or None
        Weights of the examples, 1 on average; None if all count alike.
    mean_weight : float
        Mean weight of the rows of the minibatch; the chains count by it.
    flat : FlatParameters or None
        The vectors that hold its arrays, on a device.
    """

    model: ClassVar[str]
    row_weights: Array | None = None
    mean_weight = 1.0

    def __init__(self, layer: int, first: Layer, settings: LayerSettings) -> None:
        self.layer = layer
        self.shard_number, self.shards = 0, 1
        self.batch_size = settings.batch_size
        self.seed = settings.seed
        self.learning_rate = settings.learning_rate
        self.settings = settings
        self.precision = precision_of(settings.precision, settings.products)
        self.backend: Backend = Backend()
        self.stream: Stream = self.backend.stream()
        self.recorder: Recorder = self.backend.recorder()
        self.flat: FlatParameters | None = None
        self._train(first)

    def to(self, backend: Backend) -> None:
        """Move the layer to the device that trains it, before a step of it is made."""
        if backend.name == self.backend.name:
            return
        priority = FIRST if self.layer == 1 else 0
        self.backend, self.stream = backend, backend.stream(priority)
        with self.stream:
            self.recorder = backend.recorder()
            self.flat = FlatParameters(dict(self._now.parameters()), backend)
            moved: Any = self.flat.views(self.flat.parameters)
            self._train(replace(self._now, **moved))
            self.stream.synchronize()

    def _train(self, layer: Layer) -> None:
        """Train the arrays of a layer from now on; allocate gradients, velocities and buffers."""
        self._now, arrays = layer, dict(layer.parameters())
        self.weight, self.hidden_bias = arrays["weight"], arrays["hidden_bias"]
        self.visible_bias = arrays["visible_bias"]
        self.decoder_weight = arrays.get("decoder_weight")
        self._names = names = [name for name in PARAMETERS if name in arrays]
        self.parameters = [arrays[name] for name in names]
        if self.flat is None:
            self.gradients = [np.zeros_like(p) for p in self.parameters]
            self._velocities = [np.zeros_like(p) for p in self.parameters]
        else:
            vectors = self.flat.gradients, self.flat.velocities
            self.gradients, self._velocities = (
                [views[name] for name in names] for views in map(self.flat.views, vectors)
            )
        self._allocate(self.batch_size)

    @abstractmethod
    def _allocate(self, rows: int) -> None:
        """Allocate the buffers for the gradient of a minibatch of at most this many rows."""

    @abstractmethod
    def gradient(
        self, X: Array, rows: Rows, *, epoch: int, step: int, examples: float | None = None
    ) -> float:
        """Fill the gradients, as the direction to go, from some rows of X.

        A gradient is the average over these rows; or, if they are a part of a minibatch of
        ``examples``, their contribution to its average.

        Returns
        -------
        float
            Squared error between the examples and their reconstruction, summed over both.
        """

    def gradient_without_rows(self, X: Array, rows: Rows, *, epoch: int, step: int) -> None:
        """Fill the gradients of a part that has none of the rows of a minibatch."""
        for gradient in self.gradients:
            gradient.fill(0)

    @abstractmethod
    def hidden_means(self, n: int) -> Array | None:
        """Return the hidden means of the n rows of the last gradient; None with noise or dropout.

        A view, which the next gradient overwrites.
        """

    def hand_up(self, out: Array) -> bool:
        """Copy the hidden means from before the update; return False if they must be recomputed."""
        return copy_hidden([(slice(None), self.hidden_means(len(out)))], out)

    def weigh_rows(self, weights: Array) -> None:
        """Give each example a weight, 1 on average, before a step is built; equal ones are none."""
        if not (weights == 1).all():
            self.row_weights = weights

    def take_mean_weight(self, rows: Rows) -> None:
        """Find the mean weight of a whole minibatch, before the gradient of a part of it."""
        if self.row_weights is not None:
            self.mean_weight = float(self.row_weights[rows].mean(dtype=np.float64))

    def start(self, X: Array) -> None:
        """Record the first examples before the first step; they need not be in memory.

        Visible biases start from log(p / (1 - p)), where p is the mean of a unit (Hinton 2010,
        section 8), the biases of linear units from p, unless the settings start them from zero.
        """
        if self.settings.visible_bias == "zero":
            return
        units = self.settings.visible_units
        bias_of = kind_of(units).bias_of
        if bias_of is None:
            raise ValueError(f"got {units} visible units; expected units that can be visible")
        self.visible_bias[:] = bias_of(np, self._visible_means(X))

    def _visible_means(self, X: Array) -> Any:
        """Return the mean of the examples for each visible bias."""
        if self.row_weights is not None:
            return weighted_means(X, self.row_weights, missing=self.settings.missing)
        return known_means(X) if self.settings.missing else column_means(X)

    def part(self: L, shard: int, shards: int) -> L:
        """Return a learner of the same parameters, with gradients and draws of its own."""
        part = copy.copy(self)
        part.shard_number, part.shards = shard, shards
        if self.flat is None:
            part.gradients = [np.zeros_like(p) for p in self.parameters]
        else:
            part.flat = self.flat.part()
            views = part.flat.views(part.flat.gradients)
            part.gradients = [views[name] for name in self._names]
        part._velocities = []
        part._allocate(-(-self.batch_size // shards))
        return part

    def copy_on(self: L, backend: Backend) -> L:
        """Return a learner of the same layer on another device, to be cut into parts."""
        other = copy.copy(self)
        other.flat = None
        other.to(backend)
        with other.stream:
            other._allocate(0)
        return other

    def update(self, *, epoch: int) -> None:
        """Move the parameters along the gradients, with this epoch's momentum."""
        if (own := self.flat) is not None:
            rates = self.rates(epoch) | {"weights": own.weights}
            momentum_steps(own.parameters, own.gradients, own.velocities, **rates)
            return
        self.update_share(0, 1, epoch=epoch)

    def update_share(self, shard: int, shards: int, *, epoch: int) -> None:
        """Move a shard's share of each parameter along its gradient."""
        # In blocks that stay in the cache through the passes of an update.
        for i, gradient in enumerate(self.gradients):
            flat = gradient.reshape(-1)
            for block in blocks_in(slices_of(len(flat), shards)[shard], LONG_BLOCK):
                self.update_slice(i, block, flat[block], epoch=epoch)

    def constants(self, epoch: int) -> Hashable:
        """Return the numbers of an epoch's steps that are the same in each of them."""
        return tuple(self.rates(epoch).values())

    def update_slice(self, i: int, part: slice, gradient: Array, *, epoch: int) -> None:
        """Move a slice of the i-th parameter, seen as flat, along its gradient."""
        parameter, rates = self.parameters[i], self.rates(epoch)
        if parameter.ndim == 1:  # biases are not decayed (Hinton 2010, section 10.1)
            rates["weight_decay"] = rates["l1"] = 0.0
        velocity = self._velocities[i].reshape(-1)[part]
        momentum_step(parameter.reshape(-1)[part], gradient, velocity, **rates)

    def rates(self, epoch: int) -> dict[str, Any]:
        """Return the numbers of an epoch's updates by name, for weights."""
        settings = self.settings
        return {
            "momentum": settings.momentum.at(epoch),
            "learning_rate": self.learning_rate,
            "weight_decay": settings.weight_decay,
            "l1": settings.l1,
        }

    def update_operation(self, i: int, rows: slice) -> Operation:
        """Return the operation that moves some rows of the i-th parameter along its gradient."""
        settings, parameter = self.settings, self.parameters[i]
        decays = parameter.ndim > 1
        return (
            "momentum_step",
            parameter[rows],
            self.gradients[i][rows],
            self._velocities[i][rows],
            settings.weight_decay if decays else 0.0,
            settings.l1 if decays else 0.0,
        )

    def address(self, purpose: Purpose, epoch: int, step: int, k: int = 0) -> Address:
        """Return the address of the k-th draws of a step, which are this shard's own."""
        return Address(self.seed, purpose, self.layer, epoch, step, self.shard_number | k << 32)

    def validation_error(self, X: Array, hidden: Array | None = None) -> float:
        """Return the mean squared error of reconstructing X without sampling.

        ``hidden`` are the hidden means of X; None computes them. A missing entry has no error.
        """
        return float(self.summed_error(X, hidden)) / len(X)

    def summed_error(self, X: Array, hidden: Array | None = None) -> Any:
        """Return the same, summed over the examples; on a device an array of shape ()."""
        visible = self._now.reconstruct(X, hidden)
        if self.settings.missing:
            visible[is_missing(X)] = 0
        return squared_error(X, visible, out=visible)

    def current(self) -> Layer:
        """Return the layer as it is, in arrays that the next step will change."""
        return self._now

    def snapshot(self) -> Layer:
        """Return a copy of the layer, to be published as a version."""
        return self._now.to(lambda array: array.copy())

    def largest_weight(self) -> float:
        """Return the largest absolute value of a weight."""
        weights = [p for p in self.parameters if p.ndim > 1]
        return max(float(max(weight.max(), -weight.min())) for weight in weights)

    def is_finite(self) -> bool:
        """Return whether every parameter is a finite number."""
        # A sum is finite only if its terms are, and needs no array of flags.
        with np.errstate(all="ignore"):
            return all(bool(np.isfinite(parameter.sum())) for parameter in self.parameters)

    def state(self) -> dict[str, Array]:
        """Return the next step's inputs except the parameters, by name; live arrays."""
        return self.velocities() | self.own_state()

    def velocities(self) -> dict[str, Array]:
        """Return the velocity of each parameter by name; a part of a learner has none."""
        return {f"velocity.{i}": velocity for i, velocity in enumerate(self._velocities)}

    def own_state(self) -> dict[str, Array]:
        """Return the next gradient's inputs except the parameters, by name; live arrays."""
        return {}

    def load_arrays(self, live: Mapping[str, Array], state: Mapping[str, Array]) -> None:
        """Copy a state of the step into its ``live`` arrays.

        Raises
        ------
        KeyError, ValueError
            If it lacks an array, or has one of another shape.
        """
        for name, array in live.items():
            np.copyto(array, self.backend.asarray(state[name]))

    def restart(self) -> None:
        """Set :meth:`state` back to before the first step."""
        for array in self.state().values():
            array.fill(0)

    def restore(self, snapshot: Layer) -> None:
        """Take the parameters of a snapshot.

        Raises
        ------
        KeyError, ValueError
            If it is of another shape, or lacks an array.
        """
        if snapshot.shape != self._now.shape:
            raise ValueError(f"got {snapshot.shape}, expected {self._now.shape}")
        arrays = dict(snapshot.to(self.backend.asarray).parameters())
        for name, array in self._now.parameters():
            np.copyto(array, arrays[name])


def copy_hidden(parts: Iterable[tuple[slice, Array | None]], out: Array) -> bool:
    """Copy the hidden means of some rows each into ``out``; return False where there are none."""
    for own, hidden in parts:
        if hidden is None:
            return False
        np.copyto(out[own], hidden)
    return True


ALIGNED = 4  # numbers, which are 16 bytes


class Places:
    """The places of some parts in a flat vector, one after the other, on a device with gaps.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of each part.
    backend : Backend

    Attributes
    ----------
    starts : list of int
        Offset at which each part begins, and the end of the vector.
    """

    def __init__(self, sizes: Sequence[int], backend: Backend) -> None:
        unit = ALIGNED if backend.devices() else 1
        self.starts = list(accumulate((-(-size // unit) * unit for size in sizes), initial=0))
        self._parts = [slice(at, at + n) for at, n in zip(self.starts, sizes, strict=False)]
        self._count = sum(sizes)

    def packed(self, vector: Array) -> Array:
        """Return a vector of the host without gaps; an empty one, or one without, as it is."""
        if self._count == self.starts[-1] or not vector.size:
            return vector
        return np.concatenate([vector[part] for part in self._parts])

    def spread(self, vector: Array) -> Array:
        """Return a vector of the host with the gaps that :meth:`packed` has left out.

        Raises
        ------
        ValueError
            If it has another number of parameters.
        """
        if self._count == self.starts[-1] or not vector.size:
            return vector
        if vector.shape != (self._count,):
            raise ValueError(f"got {vector.shape}, expected {(self._count,)}")
        spread, at = np.zeros(self.starts[-1], vector.dtype), 0
        for part in self._parts:
            spread[part] = vector[at : at + part.stop - part.start]
            at += part.stop - part.start
        return spread


class FlatParameters:
    """Flat arrays that hold the parameters of a layer on a device, their gradients and velocities.

    One launch updates all parameters. Weights, which decay, lie before the biases. Each array
    begins at a multiple of 16 bytes, where a product reads its rows fastest; gaps stay 0.

    Parameters
    ----------
    given : dict of str to ndarray
        The parameters by name, which are copied to the backend on the current stream.
    backend : Backend

    Attributes
    ----------
    parameters, gradients, velocities : ndarray of shape (n,)
        The last two are 0 at first.
    weights : int
        The count of numbers before the biases.
    """

    def __init__(self, given: Mapping[str, Array], backend: Backend) -> None:
        self._backend = backend
        self._places: dict[str, tuple[slice, tuple[int, ...]]] = {}
        names = sorted(given, key=lambda name: given[name].ndim == 1)
        starts = Places([given[name].size for name in names], backend).starts
        for name, start in zip(names, starts, strict=False):
            self._places[name] = slice(start, start + given[name].size), given[name].shape
        self.weights = starts[sum(given[name].ndim > 1 for name in names)]
        vectors = (backend.zeros(starts[-1]) for _ in range(3))
        self.parameters, self.gradients, self.velocities = vectors
        for name, own in self.views(self.parameters).items():
            np.copyto(own, backend.asarray(given[name]))

    def part(self) -> FlatParameters:
        """Return the same parameters with gradients of a shard."""
        part = copy.copy(self)
        part.gradients = self._backend.zeros(len(self.parameters))
        return part

    def views(self, vector: Array) -> dict[str, Array]:
        """Return the arrays within one of the flat vectors, by name."""
        return {name: vector[own].reshape(shape) for name, (own, shape) in self._places.items()}
