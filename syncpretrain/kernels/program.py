"""A whole step of training as a list of operations, recorded once and run in every step.

A program is phases of shards of operations: all shards of a phase may run at once, and the
next phase begins when all are done. An operation is a tuple of its name, its arrays, which are the
same in every step, and its other arguments. Where the compiled kernels and NumPy's own BLAS can run
all of them, a step is one call without the interpreter's lock: for two workers that share a step of
some ms, to hand it over in each of its phases costs a tenth of the time. Elsewhere the equations of
this package are called one after another. Both do the same in the same order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from syncpretrain.kernels import backprop, convolution
from syncpretrain.kernels import contrastive_divergence as cd
from syncpretrain.kernels.activations import activate, means, normalize, times_derivative
from syncpretrain.kernels.conditions import as_documents
from syncpretrain.kernels.dispatch import form_for, multiply
from syncpretrain.kernels.native import extension, shape_numbers
from syncpretrain.kernels.operations import Operation, check_program
from syncpretrain.kernels.optimizers import BETAS, adam_rates, adam_step, sgd_step, shrink
from syncpretrain.kernels.precision import multiply_bfloat16, multiply_float32, multiply_tf32
from syncpretrain.rng import Address, Purpose
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import kind_of

Phase = Callable[[int], None]  # runs a shard; the next phase begins when all shards are done
OperationPhases = Sequence[Sequence[Sequence[Operation]]]  # phases of shards of operations
SHARED_COUNTERS = 17  # number of counters of :meth:`Program.share`
EXACT = 2**24  # integers that a float32 holds
# With NumPy's prefix or not, with the suffix that says integers of 64 bits or not.
BLAS_NAMES = ("scipy_cblas_{}64_", "cblas_{}64_", "scipy_cblas_{}", "cblas_{}")


class _Call(NamedTuple):
    """An operation that is not compiled: a function, its arguments, and the slot of its result."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    slot: int | None


class Program:
    """The operations of a step.

    ``matmul`` (a, b, out), ``multiply`` and ``add`` are NumPy's; ``matmul_bfloat16`` and
    ``matmul_tf32`` round their factors, ``matmul_float32`` has the same bits everywhere;
    ``means`` (x, bias, units), ``squared_error`` (x, y, out, slot of ``results``),
    ``phase_differences`` (v, h, da, db, scratch, examples), ``times_derivative`` (delta, a,
    units) are equations of this package, and so are ``sample_states`` (x, bias, noise, out,
    units, shard, block), ``sample_fixed``, with the same bits everywhere, ``momentum_step``
    (parameter, gradient, velocity, weight decay, l1), ``adam_step`` (parameters, gradient,
    moments) and ``sgd_step`` (parameters, gradient, velocity, momentum, nesterov), which also
    take the values given to :meth:`prepare`. ``sum_rows`` (x, out), ``scale`` (x, factor),
    ``decay`` (parameters, amount) by 1 - rate * amount, ``copy`` (x, out), ``softmax`` (x),
    ``softmax_fixed``, and ``wrong`` (target, y, slot) are what they say. ``documents`` (y,
    target, units) gives shares of words the numbers of words of their targets; ``update``
    (parameters, gradient, function) calls function(parameters, gradient, rate=, step=). These
    two are not compiled, nor are ``sample_fixed``, ``output_delta`` (target, y, out, sums,
    units, loss, slot) and ``derivative_and_sums`` (delta, a, sums, units), which devices make
    in one launch each. ``convolve``, ``convolve_gradient``, ``convolve_back``,
    ``visible_means`` and ``sum_channels`` are functions of
    :mod:`syncpretrain.kernels.convolution`, with all arguments by position; a slice is its
    first number and the number behind its last.

    Parameters
    ----------
    phases : sequence of sequence of sequence of Operation
        Every phase has as many shards. All arrays are float32; or float64, in operations that are
        then never compiled.
    slots : int
        The number of results.
    results : list, optional
        Takes the results, one a slot, if the operations' arrays are on a device: arrays that are
        not synchronized. Then nothing is compiled, and the forms of the operations check their
        arrays.

    Attributes
    ----------
    shards, length : int
        Number of shards in each phase, and number of phases.
    operations : sequence of sequence of sequence of Operation
        The phases as they were given.
    results : ndarray of shape (slots,), float64
    is_compiled : bool
        True if a step is one call.

    Raises
    ------
    TypeError, ValueError
        If an operation is unknown, or its arguments do not fit; see
        :func:`syncpretrain.kernels.operations.check_program`.
    """

    def __init__(self, phases: OperationPhases, slots: int, results: Any = None) -> None:
        if results is None:
            check_program(phases, slots)
        self.shards, self.length = len(phases[0]), len(phases)
        self.results = np.zeros(slots) if results is None else results
        self._numbers = np.zeros(4)  # momentum, rate, and the size and floor of Adam's steps
        self._words = np.zeros(4, dtype=np.uint64)  # of an address: key, step, epoch
        # The same where it is not compiled: all operations that take a set of arguments share one
        # dict. They do not hold the program: a cycle would keep the arrays of a device.
        self._rate: dict[str, Any] = {"learning_rate": 0.0}
        self._step: dict[str, Any] = {**self._rate, "step": 0}
        self._momentum: dict[str, Any] = {**self._rate, "momentum": 0.0}
        self._place: dict[str, Any] = {"address": Address(0, Purpose.HIDDEN)}
        self.operations = phases
        self._compiled = compiled_program(phases) if results is None else None
        self.is_compiled = self._compiled is not None

    def prepare(
        self, *, rate: float, momentum: float = 0.0, steps: int = 0, address: Address | None = None
    ) -> None:
        """Set what differs from step to step.

        Learning rate, momentum, the number of this step of Adam from 1, and where the step draws.
        """
        self._numbers[0], self._numbers[1] = momentum, rate
        if steps and self.is_compiled:
            self._numbers[2:] = adam_rates(steps, rate)
        for options in (self._rate, self._step, self._momentum):
            options["learning_rate"] = float(rate)
        self._step["step"], self._momentum["momentum"] = steps, float(momentum)
        if address is not None:
            self._place["address"] = address
            self._words[:2] = address.key
            self._words[2], self._words[3] = address.step, address.epoch

    @property
    def phases(self) -> list[Callable[[int], None]]:
        """The phases as functions of a shard's number, where it is not compiled."""
        return [partial(self._work_shard, shards) for shards in self._calls]

    def work_alone(self) -> None:
        """Run all shards of all phases in this thread."""
        if self.is_compiled:
            self.work()
        else:
            self._work(chain.from_iterable(chain.from_iterable(self._calls)))

    def work(self) -> None:
        """Run all shards in this thread, without the interpreter's lock, if it is compiled."""
        extension.run_program(self._compiled, self._numbers, self._words, self.results)

    def share(
        self,
        counters: NDArray[np.int64],
        *,
        base: int,
        broken: int,
        is_owner: bool,
        spin_seconds: float = 0.0,
        look_seconds: float = 1.0,
        timeout_seconds: float = 0.0,
    ) -> int:
        """Run shards that no thread has taken yet, as :meth:`work` does, if it is compiled.

        The one owner begins the step, and returns when all of it is done. Any other thread returns
        when all shards are taken. Shards are numbered through all steps: ``base`` have been before
        this one. ``counters`` begins with :data:`SHARED_COUNTERS` counters, 0 before the first
        step.

        Returns
        -------
        int
            As ``wait_for_counters``; late if a phase takes longer than ``timeout_seconds``.
        """
        own = self._compiled, self._numbers, self._words, self.results, counters
        limits = spin_seconds, look_seconds, timeout_seconds
        return int(extension.share_program(*own, 0, base, broken, is_owner, *limits))

    @cached_property
    def _calls(self) -> list[list[list[_Call]]]:
        """The operations as calls: all that is the same in every step is looked up once."""
        return [
            [[_INTERPRETED[name](self, *given) for name, *given in ops] for ops in shards]
            for shards in self.operations
        ]

    def _work_shard(self, shards: Sequence[Sequence[_Call]], shard: int) -> None:
        self._work(shards[shard])

    def _work(self, calls: Iterable[_Call]) -> None:
        for function, arguments, options, slot in calls:
            result = function(*arguments, **options)
            if slot is not None:
                self.results[slot] = result


Phases = Sequence[Phase] | Program  # a program knows its own phases
PhaseRunner = Callable[[Phases, int], None]  # runs the phases of a number of shards


def in_turn(phases: Phases, shards: int) -> None:
    """Run all shards of all phases, one after another."""
    if isinstance(phases, Program):
        phases.work_alone()
        return
    for phase in phases:
        for shard in range(shards):
            phase(shard)


def compiled_program(phases: Any) -> Any:
    """Return phases of shards of operations for :meth:`Program.work`.

    None where the extension is missing, or an operation or array is not for it.
    """
    blas = None if extension is None else _blas_sgemm()
    if blas is None:
        return None
    try:
        forms = [
            [[form for op in ops for form in _compiled_forms(*op)] for ops in shards]
            for shards in phases
        ]
        return extension.program(forms, *blas)
    except ValueError:
        return None


class Sgemm(NamedTuple):
    """The single-precision matrix product of a BLAS: its address, and whether it takes int64."""

    address: int
    wide: bool


def sgemm_of(library: Any, name: str) -> Sgemm | None:
    """Return the product of a library; ``name`` is the pattern of its names.

    None if it is not sure that its integers have 32 bits, or that they have 64.
    """
    wide = _takes_int64(getattr(library, name.format("scopy"), None))
    if wide is None or ("64" in name and not wide):
        return None
    return Sgemm(_address(getattr(library, name.format("sgemm"))), wide)


@cache
def _blas_sgemm() -> Sgemm | None:
    """Return the product of NumPy's own BLAS, or None if it is not found or not sure."""
    found = [info["filepath"] for info in threadpool_info() if info["user_api"] == "blas"]
    for path in sorted(found, key=lambda path: "numpy" not in path):
        library = ctypes.CDLL(path)
        for name in BLAS_NAMES:
            if hasattr(library, name.format("sgemm")):
                return sgemm_of(library, name)
    return None


def _takes_int64(scopy: Any) -> bool | None:
    """Return whether the integers of a BLAS have 64 bits, as its ``cblas_scopy`` sees them.

    Neither the symbol nor the file is named after them in every build. So a number is copied n
    times, where n is 1 in its lower 32 bits and negative as a whole: nothing is copied if it is
    read as a whole. All arguments lie in registers, and a function may read their lower half. None
    if it did not copy as it should.
    """
    if scopy is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    kinds = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    copy = ctypes.CFUNCTYPE(None, *kinds)(_address(scopy))
    given = np.ones(1, dtype=np.float32)
    taken = np.zeros((2, 1), dtype=np.float32)
    for n, out in zip((1, 1 - 2**32), taken, strict=True):
        copy(n, given.ctypes.data, 1, out.ctypes.data, 1)
    if not taken[0, 0]:
        return None
    return not taken[1, 0]


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def _compiled_forms(name: str, *arguments: Any) -> list[tuple[Any, ...]]:
    """Return an operation as the extension takes it, in one operation or two.

    Raises
    ------
    ValueError
        If it has no such form.
    """
    if name == "means" and kind_of(arguments[2]).is_exclusive and arguments[0].shape[1]:
        x, bias, _ = arguments
        return [*_compiled_forms("means", x, bias, "gaussian"), ("softmax", x)]
    if name == "sample_states":
        x, bias, _, out, units, *place = arguments
        if units not in extension.DRAWN:
            raise ValueError(units)
        return [(name, x, bias, out, *place)]
    if name == "phase_differences" and arguments[-1] > EXACT:
        raise ValueError(arguments[-1])
    betas = BETAS if name == "adam_step" else ()
    return [(name, *chain.from_iterable(map(_compiled_values, arguments)), *betas)]


def _compiled_values(argument: Any) -> tuple[Any, ...]:
    """Return an argument as the extension takes it: numbers for a shape, and for units."""
    if isinstance(argument, ConvolutionShape):
        return shape_numbers(argument)
    if not isinstance(argument, str):
        return (argument,)
    if argument not in extension.UNITS:
        raise ValueError(argument)
    return (extension.UNITS[argument],)


def _call(
    function: Callable[..., Any], *given: Any, slot: int | None = None, **options: Any
) -> _Call:
    """Return the call of a function with arrays; the first array decides its form."""
    return _Call(form_for(function, given[0]), given, options, slot)


def _of_some(function: Callable[..., Any], *given: Any) -> _Call:
    """Return the call of some filters or channels, given the first and the end of them."""
    *others, first, end = given
    return _call(function, *others, slice(first, end))


def _varying(
    options: dict[str, Any], function: Callable[..., Any], *given: Any, **constants: Any
) -> _Call:
    """Return the call of a function with some options that differ from step to step."""
    return _Call(partial(form_for(function, given[0]), **constants), given, options, None)


def _draw(sample: Callable[..., Any], *given: Any, address: Address) -> None:
    x, bias, noise, out, units, shard, block = given
    sample(x, bias, units, address._replace(shard=shard, block=block), noise=noise, out=out)


def _decay(parameters: Any, amount: float, *, learning_rate: float) -> None:
    shrink(parameters, 1 - learning_rate * float(amount))


def _update(
    parameters: Any, gradient: Any, function: Callable[..., Any], *, learning_rate: float, step: int
) -> None:
    if not isinstance(parameters, np.ndarray):  # a recorded graph would keep rate and step
        raise TypeError("update: got arrays of a device; expected an operation of its own there")
    function(parameters, gradient, rate=learning_rate, step=step)


# By the operation's name; each is given the program and the operation's arguments.
_INTERPRETED: dict[str, Callable[..., _Call]] = {
    "matmul": lambda own, a, b, out: _call(multiply, a, b, out=out),
    "matmul_bfloat16": lambda own, a, b, out: _call(multiply_bfloat16, a, b, out=out),
    "matmul_float32": lambda own, a, b, out: _call(multiply_float32, a, b, out=out),
    "matmul_tf32": lambda own, a, b, out: _call(multiply_tf32, a, b, out=out),
    "multiply": lambda own, x, y, out: _call(np.multiply, x, y, out=out),
    "add": lambda own, x, y, out: _call(np.add, x, y, out=out),
    "means": lambda own, *given: _call(means, *given),
    "softmax": lambda own, x: _call(activate, x, "softmax"),
    "softmax_fixed": lambda own, x: _call(activate, x, "softmax"),
    "times_derivative": lambda own, *given: _call(times_derivative, *given),
    "normalize": lambda own, *given: _call(normalize, *given),
    "denormalize": lambda own, *given: _call(backprop.denormalize, *given),
    "sum_rows": lambda own, x, out: _call(cd.sum_rows, x, out=out),
    "scale": lambda own, x, factor: _call(np.multiply, x, float(factor), out=x),
    "copy": lambda own, x, out: _call(np.copyto, out, x),
    "sample_states": lambda own, *given: _varying(own._place, _draw, cd.sample_states, *given),
    "sample_fixed": lambda own, *given: _varying(own._place, _draw, cd.sample_fixed, *given),
    "squared_error": lambda own, x, y, out, slot: _call(
        backprop.squared_error, x, y, out=out, slot=slot
    ),
    "wrong": lambda own, target, y, slot: _call(backprop.count_errors, target, y, slot=slot),
    "phase_differences": lambda own, v, h, da, db, scratch, examples: _call(
        cd.phase_differences, v, h, da=da, db=db, examples=examples
    ),
    "momentum_step": lambda own, p, g, v, decay, l1: _varying(
        own._momentum, cd.momentum_step, p, g, v, weight_decay=decay, l1=l1
    ),
    "adam_step": lambda own, *given: _varying(own._step, adam_step, *given, scratch=None),
    "sgd_step": lambda own, p, g, v, momentum, nesterov: _varying(
        own._rate, sgd_step, p, g, v, momentum=momentum, nesterov=nesterov, scratch=None
    ),
    "decay": lambda own, *given: _varying(own._rate, _decay, *given),
    "documents": lambda own, *given: _call(as_documents, *given),
    "update": lambda own, *given: _varying(own._step, _update, *given),
    "output_delta": lambda own, target, y, out, sums, units, loss, slot: _call(
        backprop.output_delta, target, y, units, loss, out=out, sums=sums, slot=slot
    ),
    "derivative_and_sums": lambda own, delta, a, sums, units: _call(
        backprop.derivative_and_sums, delta, a, units, sums=sums
    ),
    "convolve": lambda own, *given: _of_some(convolution.convolve, *given),
    "convolve_gradient": lambda own, *given: _of_some(convolution.convolve_gradient, *given),
    "convolve_back": lambda own, *given: _of_some(convolution.convolve_back, *given),
    "visible_means": lambda own, *given: _call(convolution.visible_means, *given),
    "sum_channels": lambda own, x, out, shape: _call(convolution.sum_channels, x, shape, out=out),
}
