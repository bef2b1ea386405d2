"""The operations of a program, and the requirements on their arguments.

A compiled program reads and writes at the addresses it was given, unchecked. So its operations are
checked here once, when it is built, for both forms of a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.kernels.convolution import scratch_size
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import KINDS, kind_of

Operation = tuple[Any, ...]  # a name and its arguments
LOSSES = ("squared", "cross-entropy")
# Operations without a compiled form: of GPUs, of blocks of units, and of a user's own optimizer.
INTERPRETED = frozenset(
    {"matmul_tf32", "output_delta", "derivative_and_sums", "documents", "sample_fixed", "update"}
)
EXACT = 2**53  # integers that a float64 holds
WHOLE = (int, np.integer)
NUMBERS = (*WHOLE, float, np.floating)


class _Array(NamedTuple):
    name: str
    axes: str  # a letter an axis, the same letter for the same length; "*": one or two of any
    written: bool

    def is_left_out(self, given: NDArray[Any]) -> bool:
        """Return whether an array is none, where there need not be one."""
        return self.axes.endswith("?") and not given.size


Pairs = list[tuple[_Array, NDArray[Any]]]  # what an operation expects, and what it was given


class _Signature(NamedTuple):
    arrays: tuple[_Array, ...]
    others: tuple[str, ...]
    in_place: bool  # whether an output may be one of the inputs
    rows: int  # of the first array, at least
    columns: int


def _signature(
    text: str, *others: str, in_place: bool = False, rows: int = 0, columns: int = 0
) -> _Signature:
    """Return a signature from words such as ``>out:mn``.

    ``>`` marks an array that is written to, ``?`` one that may have no size, ``+`` one that may be
    longer. An operation with a ``shape`` has ``v`` visible and ``h`` hidden units, ``c`` channels,
    ``f`` filters of ``k`` weights, and needs a scratch of ``s`` numbers.
    """
    split = ((word, *word.lstrip(">").split(":")) for word in text.split())
    arrays = tuple(_Array(name, axes, word.startswith(">")) for word, name, axes in split)
    return _Signature(arrays, others, in_place, rows, columns)


SIGNATURES = {
    "matmul": _signature("a:mk b:kn >out:mn"),
    "matmul_bfloat16": _signature("a:mk b:kn >out:mn"),
    "matmul_float32": _signature("a:mk b:kn >out:mn"),
    "matmul_tf32": _signature("a:mk b:kn >out:mn"),
    "multiply": _signature("x:* y:* >out:*", in_place=True),
    "add": _signature("x:* y:* >out:*", in_place=True),
    "means": _signature(">x:mn bias:n", "units"),
    "softmax": _signature(">x:mn", columns=1),
    "softmax_fixed": _signature(">x:mn", columns=1),
    "normalize": _signature(">x:mn >spread:n", rows=1),
    "denormalize": _signature(">delta:mn normal:mn spread:n", rows=1),
    "times_derivative": _signature(">delta:* a:*", "units"),
    "sum_rows": _signature("x:mn >out:n", rows=1),
    "scale": _signature(">x:*", "number"),
    "decay": _signature(">parameters:*", "number"),
    "copy": _signature("x:* >out:*"),
    "sample_states": _signature(">x:mn bias:n >noise:mn >out:mn", "units", "shard", "block"),
    "sample_fixed": _signature(">x:mn bias:n >noise:mn >out:mn", "units", "shard", "block"),
    "documents": _signature(">y:mn target:mn", "units"),
    "squared_error": _signature("x:* y:* >out:*", "slot", in_place=True),
    "wrong": _signature("target:mn y:mn", "slot", columns=1),
    "output_delta": _signature("target:mn >y:mn >out:mn >sums:n", "units", "loss", "slot"),
    "derivative_and_sums": _signature(">delta:mn a:mn >sums:n", "units"),
    "phase_differences": _signature(">v:mi h:mj >da:i >db:j >scratch:j", "examples", rows=2),
    "momentum_step": _signature(">parameter:* >gradient:* >velocity:*", "number", "number"),
    "adam_step": _signature(">parameters:n gradient:n >first:n >second:n"),
    "sgd_step": _signature(">parameters:n >gradient:n >velocity:n", "number", "flag"),
    "update": _signature(">parameters:n gradient:n", "function"),
    "convolve": _signature(
        "x:nv weight:kf bias:f >out:nh >places:nh? >scratch:s+",
        *("shape", "units", "first_filter", "last_filter"),
    ),
    "convolve_gradient": _signature(
        "x:nv delta:nh places:nh? >out:kf >scratch:s+", "shape", "first_filter", "last_filter"
    ),
    "convolve_back": _signature(
        "delta:nh places:nh? weight:kf >out:nv >scratch:s+",
        *("shape", "first_channel", "last_channel"),
    ),
    "visible_means": _signature(">x:nv bias:c", "shape", "units"),
    "sum_channels": _signature("x:nv >out:c", "shape"),
}


def check_program(phases: Any, slots: int) -> None:
    """Check phases of shards of operations, which write to ``slots`` slots.

    Raises
    ------
    TypeError
        If these are not sequences of sequences of tuples, with as many shards in each phase, or if
        an argument of an operation is of another type than its name says.
    ValueError
        If an operation is unknown, its arrays do not fit each other, or another argument is out of
        its range.
    """
    if not _is_sequence(phases) or not phases or not all(map(_is_sequence, phases)):
        raise TypeError("got no phases; expected a sequence of sequences of shards")
    lengths = {len(shards) for shards in phases}
    if len(lengths) > 1 or 0 in lengths:
        raise TypeError(
            f"got phases of {', '.join(map(str, sorted(lengths)))} shards; expected as many in"
            " each, at least one"
        )
    for shard in chain.from_iterable(phases):
        if not _is_sequence(shard) or not all(isinstance(op, tuple) and op for op in shard):
            raise TypeError(f"got the shard {shard!r}; expected a sequence of tuples")
        for operation in shard:
            _check_operation(slots, *operation)


def _is_sequence(thing: Any) -> bool:
    return isinstance(thing, Sequence) and not isinstance(thing, str)


def _check_operation(slots: int, name: Any, *arguments: Any) -> None:
    signature = SIGNATURES.get(name) if isinstance(name, str) else None
    if signature is None:
        raise ValueError(f"got operation {name!r}; expected one of {', '.join(SIGNATURES)}")
    expected = signature.arrays
    wanted = [array.name for array in expected] + list(signature.others)
    if len(arguments) != len(wanted):
        raise TypeError(f"{name}: got {len(arguments)} arguments; expected {', '.join(wanted)}")
    arrays, others = arguments[: len(expected)], arguments[len(expected) :]
    named = dict(zip(signature.others, others, strict=True))
    for kind, value in named.items():
        _check_value(f"{name}: got {kind} {value!r}", kind, value, slots)
    for array, given in zip(expected, arrays, strict=True):
        _check_array(f"{name}: {array.name}", array, given)
    kinds = {str(given.dtype) for given in arrays}
    if len(kinds) > 1:
        raise TypeError(f"{name}: got arrays of {' and '.join(sorted(kinds))}; expected one type")
    if name == "sgd_step" and not others[0]:
        expected = expected[:2]  # without momentum there is no velocity
    pairs = list(zip(expected, arrays, strict=False))
    _check_shapes(name, signature, pairs, named.get("shape"))
    _check_places(name, signature, pairs)
    _check_range(name, named)


def _check_value(got: str, kind: str, value: Any, slots: int) -> None:
    if kind == "shape":
        _check_convolution(got, value)
    if kind == "units" and not _is_kind(value):
        raise ValueError(f"{got}; expected one of {', '.join(KINDS)}")
    if kind == "loss" and value not in LOSSES:
        raise ValueError(f"{got}; expected one of {', '.join(LOSSES)}")
    if kind == "function" and not callable(value):
        raise TypeError(f"{got}; expected a function")
    if kind in ("shape", "units", "loss", "function"):
        return
    whole = kind in ("slot", "shard", "block") or kind.startswith(("first", "last"))
    if not isinstance(value, WHOLE if whole else NUMBERS):
        raise TypeError(f"{got}; expected {'an integer' if whole else 'a number'}")
    end = {"slot": slots, "shard": EXACT, "block": EXACT}.get(kind)
    if end is not None and not 0 <= value < end:
        raise ValueError(f"{got}; expected 0 to {end - 1}, for there are {end}")
    if kind == "examples" and not value > 0:
        raise ValueError(f"{got}; expected a number above 0")


def _is_kind(value: Any) -> bool:
    """Return whether this is a kind of units, or blocks of some."""
    try:
        return isinstance(value, str) and bool(kind_of(value))
    except ValueError:
        return False


def _check_convolution(got: str, value: Any) -> None:
    if not isinstance(value, ConvolutionShape):
        raise TypeError(f"{got}; expected a ConvolutionShape")
    sizes = (value.channels, value.height, value.width, value.filters, value.size, value.pool)
    numbers = (*sizes, value.groups)
    if not all(isinstance(number, WHOLE) and number > 0 for number in numbers):
        raise ValueError(f"{got}; expected whole numbers above 0")
    if value.channels % value.groups or value.filters % value.groups:
        raise ValueError(f"{got}; expected groups that divide filters and channels")
    if not isinstance(value.pad, WHOLE) or value.pad < 0 or value.pooling not in ("max", "mean"):
        raise ValueError(f"{got}; expected a pad of at least 0, and to pool by max or mean")
    if min(value.map_height, value.map_width) < 1:
        raise ValueError(f"{got}; expected filters that are not larger than the padded image")
    if value.map_height % value.pool or value.map_width % value.pool:
        raise ValueError(f"{got}; expected maps that the blocks which are pooled fill")


def _check_range(name: str, named: dict[str, Any]) -> None:
    if name in ("sample_states", "sample_fixed") and KINDS[named["units"]].sample is None:
        raise ValueError(f"{name}: got {named['units']} units; expected units that have states")
    for kind in ("filter", "channel"):
        if f"first_{kind}" not in named:
            continue
        first, last = named[f"first_{kind}"], named[f"last_{kind}"]
        end = getattr(named["shape"], f"{kind}s")
        if not 0 <= first <= last <= end:
            raise ValueError(
                f"{name}: got the {kind}s {first} to {last}; expected a range from 0 to {end}"
            )


def _check_array(name: str, array: _Array, given: Any) -> None:
    if not isinstance(given, np.ndarray) or given.dtype not in (np.float32, np.float64):
        got = f"an array of {given.dtype}" if isinstance(given, np.ndarray) else repr(given)
        raise TypeError(f"{name}: got {got}; expected an array of float32")
    if array.is_left_out(given):
        return
    axes = (1, 2) if array.axes == "*" else (len(array.axes.rstrip("?+")),)
    if given.ndim not in axes:
        raise ValueError(f"{name}: got shape {given.shape}; expected {axes[-1]} axes")
    if array.written and not given.flags.writeable:
        raise ValueError(f"{name}: got an array that is read-only; expected one to write to")


def _check_shapes(
    name: str, signature: _Signature, pairs: Pairs, shape: ConvolutionShape | None
) -> None:
    found: dict[str, Any] = {} if shape is None else _lengths(shape)
    for array, given in pairs:
        if array.is_left_out(given):
            continue
        letters = array.axes.rstrip("?+")
        lengths = [("*", given.shape)] if letters == "*" else zip(letters, given.shape, strict=True)
        for axis, length in lengths:
            wanted = found.setdefault(axis, length)
            if length != wanted and not (array.axes.endswith("+") and length > wanted):
                shapes = ", ".join(f"{other.name} {x.shape}" for other, x in pairs)
                shapes += "" if shape is None else f", {shape}"
                raise ValueError(f"{name}: got shapes that do not fit each other: {shapes}")
    first = pairs[0][1]
    odd = name == "phase_differences" and len(first) % 2
    if odd or len(first) < signature.rows or first.shape[-1] < signature.columns:
        raise ValueError(f"{name}: got {pairs[0][0].name} of shape {first.shape}; it is too small")


def _lengths(shape: ConvolutionShape) -> dict[str, int]:
    """Return the lengths of axes that a shape fixes, by their letters."""
    lengths = {"v": shape.visible, "h": shape.hidden, "c": shape.channels, "f": shape.filters}
    return {**lengths, "k": shape.fan_in, "s": scratch_size(shape)}


def _check_places(name: str, signature: _Signature, pairs: Pairs) -> None:
    for (one, a), (other, b) in combinations(pairs, 2):
        if not (one.written or other.written) or not np.shares_memory(a, b):
            continue
        same = a.ctypes.data == b.ctypes.data and a.strides == b.strides
        if not (same and signature.in_place):
            raise ValueError(
                f"{name}: got {one.name} and {other.name} that share memory; expected arrays apart"
            )
