"""The backend interface: memory for arrays, random numbers, streams and kernels.

The equations are written once (:mod:`syncpretrain.kernels`) and act on arrays of any backend. What
differs is how arrays are allocated, how rows are gathered, where random numbers are drawn, and
how to synchronize: that is a :class:`Backend`. The classes here are the host's, NumPy on the cores
of this machine; a device has subclasses of them.

On a device, work is queued on a *stream* and done in its order; two streams are not synchronized.
So a caller that passes an array to another stream waits for its own stream first. One wait at the
end of each epoch, before its version is published, is enough: a version is read after it was
published, and its memory is used again after its reader's epoch has ended. Where streams read each
other's work within an epoch, they wait for each other's events, and the host for neither.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from syncpretrain.data.blocks import StoredRows
from syncpretrain.kernels.arrays import ordered_sum
from syncpretrain.rng import Address


class Stream(AbstractContextManager["Stream"]):
    """A queue of work on one device. In its ``with`` block, this thread's work goes there.

    The end of the block waits for nothing. This one is the host's, a null object: a call of NumPy
    returns when its work is finished.
    """

    def __exit__(self, *error: object) -> None:
        """Go back to where work was queued before."""

    def synchronize(self) -> None:
        """Wait until all that was queued here is done."""


class Event:
    """A place in the work of one stream, which others can wait for.

    This one is the host's, a null object: what it marks is finished when it is recorded.
    """

    def record(self) -> None:
        """Mark the end of the work queued by now on the current stream of the event's device."""

    def wait(self) -> None:
        """Make the current stream, not the host, wait for the mark before the work queued next."""


# A step of training on some rows of X: a call with X, rows, and the keywords epoch and step. It
# returns the error of the rows, on a device an array of shape ().
TrainStep = Callable[..., Any]


class StepBlock(NamedTuple):
    """A block of successive steps of one learner or network.

    Attributes
    ----------
    work : TrainStep
        May be called once for many blocks: beside its arguments and the arrays that it writes to,
        it depends on ``constants`` alone.
    X : array of shape (examples, V), or None
        None for rows that are always in the same place, which ``work`` knows.
    rows : array of int64
        The numbers of the rows of all minibatches, one after another.
    batch_size : int
    epoch, step : int
        Epoch and step of the first minibatch.
    constants : hashable
        The numbers that ``work`` computes with, as long as they do not change with the step.
    numbers : ndarray of shape (steps, n), float32, optional
        Numbers of each step that the optimizer, and nothing else, computes with; see
        :meth:`syncpretrain.finetuning.optimizers.Optimizer.numbers`.
    """

    work: TrainStep
    X: Any
    rows: Any
    batch_size: int
    epoch: int
    step: int
    constants: Hashable
    numbers: NDArray[np.float32] | None = None

    def steps(self) -> Iterator[Callable[[], Any]]:
        """Yield one function after another that works a step and returns its error."""
        for number, start in enumerate(range(0, len(self.rows), self.batch_size)):
            own = self.rows[start : start + self.batch_size]
            yield partial(self.work, self.X, own, epoch=self.epoch, step=self.step + number)


class Recorder:
    """Recorder of one learner's steps, a block of them at a time; this one records nothing."""

    def take_notice(self) -> str | None:
        """Return how steps are worked that might be recorded and are not, and why.

        Return None where there is nothing to say, and where it was returned before.
        """
        return None

    def train(self, block: StepBlock) -> Any:
        """Work the steps of a block; return the sum of their errors."""
        return ordered_sum((work() for work in block.steps()), 0.0)


class FusedArrays(NamedTuple):
    """The arrays of an RBM in training, all on one device.

    Attributes
    ----------
    parameters, velocities : tuple of arrays
        Weights of shape (V, H), visible biases and hidden biases; and how each moves.
    v, h : arrays of shape (2B, V) and (2B, H)
        Room for both phases of minibatches of up to B examples; the hidden means of the data are
        in the first rows of h after a step.
    states : array of shape (B, H)
        Room for hidden states.
    visible_units, hidden_units : str
    precision : str
        Precision of the products; see :mod:`syncpretrain.kernels.precision`.
    """

    parameters: tuple[Any, ...]
    velocities: tuple[Any, ...]
    v: Any
    h: Any
    states: Any
    visible_units: str
    hidden_units: str
    precision: str = "float32"


class Pace(NamedTuple):
    """How parameters move: see ``momentum_step`` among the equations."""

    momentum: float
    learning_rate: float
    weight_decay: float
    l1: float


class Rule(NamedTuple):
    """An optimizer: ``adam``, or ``sgd`` with momentum, Nesterov's if asked."""

    name: str
    momentum: float = 0.0
    nesterov: bool = False


class TunedArrays(NamedTuple):
    """The arrays of a network of dense layers, and of its optimizer, all on one device.

    Attributes
    ----------
    parameters : array of shape (n,)
        The weight of each layer with its bias behind it, and gaps between layers that align these.
    moments : tuple of arrays of that shape
        Both moments of Adam; the velocity of gradient descent with momentum; else none.
    chain : sequence of (weight, bias)
        Views of the parameters.
    activations, deltas : sequence of arrays of shape (B, units)
        Room for minibatches of up to B examples, a pair a layer.
    units : sequence of str
    loss : str
        ``squared`` or ``cross-entropy``.
    precision : str
        Precision of the products; see :mod:`syncpretrain.kernels.precision`.
    """

    parameters: Any
    moments: tuple[Any, ...]
    chain: Sequence[tuple[Any, Any]]
    activations: Sequence[Any]
    deltas: Sequence[Any]
    units: Sequence[str]
    loss: str
    precision: str


class Backend:
    """One place to compute: NumPy on this machine's cores, or in a subclass CuPy on one GPU.

    Attributes
    ----------
    name : str
        "numpy", or "cupy:0" with the number of the GPU.
    xp : module
        The array module, numpy or cupy.
    array_type : type
        Type of its arrays, which faster forms of the equations are registered for.
    forms : mapping of str to callable
        Those faster forms, by the equation's name.
    steps_at_once : int
        Minibatches that are worked as one block. Their error is read after the block, because each
        reading waits for the device.
    blocks_behind : int
        Blocks that are queued before the error of the first one is read.
    """

    name = "numpy"
    xp: Any = np
    array_type: type = np.ndarray
    forms: Mapping[str, Callable[..., Any]] = {}
    # On the host an error is known when its step returns: nothing is saved by reading it later.
    steps_at_once = 1
    blocks_behind = 0

    def devices(self) -> tuple[int, ...]:
        """Return the numbers of the devices that layers are dealt to; none for NumPy."""
        return ()

    def group(self) -> tuple[int, ...]:
        """Return the devices of the layer that this is the backend of, its own first."""
        return ()

    def dealt(self, costs: Sequence[float], replicas: Sequence[int]) -> Backend:
        """Return a backend that deals its layers to the devices by their costs.

        A layer is dealt to as many devices as it has replicas, if there are as many.
        """
        return self

    def for_layer(self, layer: int) -> Backend:
        """Return the backend of a layer: its own device, as dealt; of others round-robin."""
        return self

    def for_replicas(self, replicas: int) -> Sequence[Backend]:
        """Return the devices that the workers of a layer are dealt to, this one first.

        There are as many as replicas, or as all devices if these are fewer.

        Raises
        ------
        SettingsError
            If one of them cannot read the memory of another.
        """
        return (self,)

    def peers(self, vectors: Sequence[Any]) -> Any:
        """Return vectors of the devices of a layer as an equation takes them on this one."""
        return vectors

    def fused_step(self, arrays: FusedArrays) -> Any:
        """Return the step of contrastive divergence as a whole; None without one for the arrays.

        It is a :class:`~syncpretrain.backends.cuda_fused.CudaFused`. The host has none: a program
        is as good there.
        """
        return None

    def fused_tuning(self, arrays: TunedArrays, rule: Rule) -> Any:
        """Return the step of fine-tuning as a whole; None without one for the arrays.

        It is a :class:`~syncpretrain.backends.cuda_fused.CudaTuning`.
        """
        return None

    def asarray(self, array: Any) -> Any:
        """Return an array of this backend with the same contents, from the host or any device.

        On NumPy the array itself, and what lies in a file stays there. What another stream is still
        writing is to be waited for first.
        """
        return array if isinstance(array, StoredRows) else np.asarray(array)

    def to_device_if_fits(self, X: Any) -> Any:
        """Copy rows of another device to this one, if they fit; else return them as they are.

        Rows of this device or of the host are returned as they are too.
        """
        return X

    def examples(self, X: Any, beside: int = 0) -> Any:
        """Return examples of the host as they are kept here, with the same values.

        Either an array of this backend, or what is like one in its length, shape and slices, takes
        less memory of the device, and goes to :meth:`gather`, and in runs to :meth:`asarray`.
        ``beside`` are bytes that are still to be allocated on the devices of this backend.
        """
        return self.asarray(X)

    def order(self, X: Any, rows: NDArray[np.intp]) -> Any:
        """Return the row numbers of an epoch on X; :meth:`gather` takes slices of them."""
        return rows

    def tohost(self, array: Any) -> NDArray[Any]:
        """Return a NumPy array with the same contents, after all work queued before is done."""
        return np.asarray(array)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> Any:
        """Return a new array, its contents undefined."""
        return np.empty(shape, dtype=dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> Any:
        """Return a new array of zeros."""
        return np.zeros(shape, dtype=dtype)

    def gather(self, X: Any, rows: Any, *, out: Any) -> Any:
        """Copy some rows of X into ``out`` and return it.

        ``rows`` of shape (B,) are on the host or, which saves a copy a step, on the device.
        """
        # With mode "raise" NumPy would fill a buffer, to leave ``out`` alone if a number is wrong.
        return np.take(X, rows, axis=0, out=out, mode="clip")

    def generator(self, address: Address) -> Any:
        """Return the generator that begins at an address: NumPy's, or one that draws float32.

        Training draws with its methods ``random`` and ``standard_normal``. The numbers are NumPy's,
        but for normal ones of a device.
        """
        return address.generator()

    def recorder(self) -> Recorder:
        """Return a recorder for one learner, which works its steps on the current stream."""
        return Recorder()

    def later(self, number: Any) -> Callable[[], float]:
        """Return a function that returns a number of shape () as it is after what is queued now.

        The function waits for the work queued before the number was asked for, and no more.
        """
        return lambda: number

    def stream(self, priority: int = 0) -> Stream:
        """Return a new stream.

        A device begins the work of a stream of lower ``priority`` first, where both have some.
        """
        return Stream()

    def event(self) -> Event:
        """Return a new event of this device."""
        return Event()

    def send(self, array: Any, *, out: Any) -> None:
        """Copy a contiguous array into one of this or another device, on the current stream."""
        np.copyto(out, array)

    def free_bytes(self) -> int | None:
        """Return the memory that its group has for new arrays; None if it is the machine's."""
        return None

    def free_unused(self) -> None:
        """Give memory of its devices that no array has back to them, for others' use.

        On the host memory is given back where an array ends.
        """

    def synchronize(self) -> None:
        """Wait for all work queued on this device."""


def device_of(layer: int, devices: Sequence[int]) -> int:
    """Return the device of a layer, counted from 1, with the layers dealt round-robin."""
    return devices[(layer - 1) % len(devices)]


def deal(
    costs: Sequence[float], places: Sequence[int], shares: Sequence[int] = ()
) -> tuple[tuple[int, ...], ...]:
    """Return where each piece of work is done, so that no place has much more than others.

    The costliest piece comes first, and goes to the place with the least by then (longest
    processing time first; Graham 1969: at most 4/3 of the least that is possible). What is equal
    goes to the first.

    Parameters
    ----------
    costs : sequence of float
    places : sequence of int
        At least one.
    shares : sequence of int, optional
        Number of places that each piece is spread over evenly, if there are as many; 1 by default.

    Returns
    -------
    tuple of tuple of int
        The places of each piece.
    """
    loads = dict.fromkeys(places, 0.0)
    most = [min(n, len(loads)) for n in shares] or [1] * len(costs)
    found: list[tuple[int, ...]] = [()] * len(costs)
    # What counts is the part that one place gets. Sorting is stable, so equal pieces keep their
    # order and every run deals alike.
    for i in sorted(range(len(costs)), key=lambda i: -costs[i] / most[i]):
        found[i] = tuple(sorted(loads, key=lambda place: loads[place])[: most[i]])
        for place in found[i]:
            loads[place] += costs[i] / most[i]
    return tuple(found)
