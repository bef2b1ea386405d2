"""Compiled forms of the elementwise equations.

The C extension ``_native`` is optional: it is built where there is a C compiler. Then its forms
stand in for the NumPy forms, for rows of float32 with elements side by side; anything else goes to
NumPy still. The environment variable ``SYNCPRETRAIN_KERNELS`` chooses: ``numpy`` leaves the
extension out, ``native`` insists on it. ``SYNCPRETRAIN_BFLOAT16`` chooses the order of sums of
bfloat16 products, ``pairs`` or ``tiles``, instead of the one that this CPU takes fastest;
``SYNCPRETRAIN_VECTORS`` the vectors, ``avx512``, ``avx2`` or ``portable``, instead of the widest.

Equal to the NumPy forms bit for bit, with one row or column or none, with infinities, signed zeros
and numbers below 2^-126: the random numbers; the means of Gaussian and rectified units; the
derivatives of units; the differences of phases; the steps of momentum, of descent and of Adam; the
differences of a squared error; sums of rows and counts of wrong rows in a program; the largest of
blocks and their places; products by :func:`~syncpretrain.kernels.precision.multiply_float32`. Any
nan is as good as another; for several nans in a block the place is the last one here, and the first
in NumPy.

Not equal: the sigmoid, the hyperbolic tangent and the softmax, which differ in their last bits, and
the states and documents that these decide; sums of squared errors and over channels, points along
a document, and all other products: their terms have another order than in NumPy or its BLAS.
Products that leave out zeros (of binary states, of rows that are mostly zeros, of the largest of
blocks) take 0 times infinity or nan for 0. For a product with one row or column NumPy calls another
function of the BLAS than a program does.
Nothing warns of a number that is not finite; ``noise``, ``scratch`` and what else a NumPy form uses
up stays as it is.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from syncpretrain.errors import SyncpretrainError
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import register
from syncpretrain.kernels.optimizers import adam_rates
from syncpretrain.rng import Address
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import kind_of

VARIABLE = "SYNCPRETRAIN_KERNELS"
ORDER_VARIABLE = "SYNCPRETRAIN_BFLOAT16"
VECTORS_VARIABLE = "SYNCPRETRAIN_VECTORS"
VECTORS = ("avx512", "avx2", "portable")
ORDERS = ("pairs", "tiles")  # of sums; a form's name ends with its order


class NativeKernelsError(SyncpretrainError, ImportError):
    """The compiled kernels were asked for but are missing, or another kind was that is unknown."""


def _loaded() -> Any:
    """Return the extension, or None where it was not built or is not wanted."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "native", "numpy"):
        raise NativeKernelsError(f"got {VARIABLE}={wanted!r}; expected 'native', 'numpy' or none")
    if wanted == "numpy":
        return None
    try:
        import syncpretrain.kernels._native as _native
    except ImportError as error:
        if wanted == "native":
            raise NativeKernelsError(
                f"got {VARIABLE}=native, but the compiled kernels are missing ({error}); install "
                "syncpretrain again with a C compiler (GCC or Clang) and Python's headers, or "
                f"unset {VARIABLE} to use NumPy's"
            ) from error
        return None
    return _native


def _keep_order(extension: Any) -> None:
    """Take sums of bfloat16 products in the order that the environment names, if it does."""
    wanted = os.environ.get(ORDER_VARIABLE, "")
    if wanted not in ("", *ORDERS):
        raise NativeKernelsError(
            f"got {ORDER_VARIABLE}={wanted!r}; expected {', '.join(map(repr, ORDERS))} or none"
        )
    if extension is not None and wanted:
        forms = extension.bfloat16_forms()
        extension.keep_bfloat16_form(next(form for form in forms if form.endswith(wanted)))


def _keep_vectors(extension: Any) -> None:
    """Take the vectors that the environment names, if it does, where a kernel has forms of each."""
    wanted = os.environ.get(VECTORS_VARIABLE, "")
    present = VECTORS if extension is None else extension.float32_forms()
    if wanted not in ("", *present):
        raise NativeKernelsError(
            f"got {VECTORS_VARIABLE}={wanted!r}; expected {', '.join(map(repr, present))} or none,"
            " which this CPU has"
        )
    if extension is not None and wanted:
        extension.keep_float32_form(wanted)


extension: Any = _loaded()  # the module, or None
_keep_order(extension)
_keep_vectors(extension)


def bfloat16_order() -> str:
    """Return the order in which sums of bfloat16 products are taken here: it decides their bits.

    One of :data:`ORDERS`, or ``numpy`` without the compiled kernels.
    """
    if extension is None:
        return "numpy"
    usual: str = extension.bfloat16_forms()[0]
    return usual.removeprefix("portable ")


def available() -> bool:
    """Return whether the compiled forms are in use."""
    return extension is not None


def _means(x: Array, bias: Array, units: str) -> Any:
    return extension.means(x, bias, units)


def _times_derivative(delta: Array, a: Array, units: str = "bernoulli") -> Any:
    return extension.times_derivative(delta, a, units)


def _normalize(x: Array, spread: Array) -> Any:
    return extension.normalize(x, spread)


def _denormalize(delta: Array, normal: Array, spread: Array) -> Any:
    return extension.denormalize(delta, normal, spread)


def _sample_states(
    x: Array, bias: Array, units: str, address: Address, *, noise: Array, out: Array
) -> Any:
    if units in extension.DRAWN:
        return extension.sample_states(x, bias, out, address.key, address.counter)
    blocks = kind_of(units).blocks
    if blocks is None or len(blocks.parts) > 1 or not blocks.groups:
        return NotImplemented
    choices = blocks.parts[0].choices
    return extension.sample_choices(x, bias, out, choices, address.key, address.counter)


def _fill_normal(out: Array, address: Address) -> Any:
    return extension.normal(out, address.key, address.counter)


def _phase_differences(v: Array, h: Array, *, da: Array, db: Array, examples: int) -> Any:
    return extension.phase_differences(v, h, da, db, examples)


def _momentum_step(
    parameter: Array,
    gradient: Array,
    velocity: Array,
    *,
    momentum: float,
    learning_rate: float,
    weight_decay: float = 0.0,
    l1: float = 0.0,
) -> Any:
    return extension.momentum_step(
        parameter, gradient, velocity, momentum, learning_rate, weight_decay, l1
    )


def _squared_error(x: Array, y: Array, *, out: Array) -> Any:
    return extension.squared_error(x, y, out)


def _sgd_step(
    parameters: Array,
    gradient: Array,
    velocity: Array,
    *,
    learning_rate: float,
    scratch: Array | None = None,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> Any:
    return extension.sgd_step(parameters, gradient, velocity, learning_rate, momentum, nesterov)


def _adam_step(
    parameters: Array,
    gradient: Array,
    first: Array,
    second: Array,
    *,
    step: int,
    learning_rate: float,
    scratch: Array | None = None,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Any:
    size, floor = adam_rates(step, learning_rate, beta1, beta2, epsilon)
    return extension.adam_step(parameters, gradient, first, second, beta1, beta2, size, floor)


def shape_numbers(shape: ConvolutionShape) -> tuple[int, ...]:
    """Return a shape as the numbers that the extension takes."""
    return (
        *(shape.channels, shape.height, shape.width, shape.filters, shape.size, shape.pad),
        *(shape.pool, int(shape.pooling == "max"), int(shape.channels_first), shape.groups),
        int(shape.rounded),
    )


def _ends(part: slice, length: int) -> tuple[int, int] | None:
    """Return where a part begins and ends, None if it leaves numbers out."""
    first, last, step = part.indices(length)
    return (first, last) if step == 1 else None


def _convolve(
    x: Array,
    weight: Array,
    bias: Array,
    out: Array,
    places: Array,
    scratch: Array,
    shape: ConvolutionShape,
    units: str,
    filters: slice = slice(None),
) -> Any:
    own = _ends(filters, shape.filters)
    if own is None or units not in extension.UNITS:
        return NotImplemented
    numbers = (*shape_numbers(shape), extension.UNITS[units], *own)
    return extension.convolve(x, weight, bias, out, places, scratch, numbers)


def _convolve_gradient(
    x: Array,
    delta: Array,
    places: Array,
    out: Array,
    scratch: Array,
    shape: ConvolutionShape,
    filters: slice = slice(None),
) -> Any:
    own = _ends(filters, shape.filters)
    if own is None:
        return NotImplemented
    numbers = (*shape_numbers(shape), *own)
    return extension.convolve_gradient(x, delta, places, out, scratch, numbers)


def _convolve_back(
    delta: Array,
    places: Array,
    weight: Array,
    out: Array,
    scratch: Array,
    shape: ConvolutionShape,
    channels: slice = slice(None),
) -> Any:
    own = _ends(channels, shape.channels)
    if own is None:
        return NotImplemented
    numbers = (*shape_numbers(shape), *own)
    return extension.convolve_back(delta, places, weight, out, scratch, numbers)


def _visible_means(x: Array, bias: Array, shape: ConvolutionShape, units: str) -> Any:
    if units not in extension.UNITS:
        return NotImplemented
    result = extension.visible_means(x, bias, (*shape_numbers(shape), extension.UNITS[units]))
    return x if result is None else result


def _binary_product(states: Array, weight: Array, *, out: Array) -> Any:
    return extension.binary_product(states, weight, out)


def _sparse_product(v: Array, weight: Array, *, out: Array) -> Any:
    return extension.sparse_product(v, weight, out)


def _transposed_product(v: Array, h: Array, *, out: Array, adds: bool = False) -> Any:
    return extension.transposed_product(v, h, out, adds)


def _multiply_bfloat16(a: Array, b: Array, *, out: Array | None = None) -> Any:
    if out is None:
        out = np.empty((len(a), b.shape[-1]), dtype=np.float32)
    return extension.multiply_bfloat16(a, b, out, None)


def _multiply_float32(a: Array, b: Array, *, out: Array | None = None) -> Any:
    if out is None:
        out = np.empty((len(a), b.shape[-1]), dtype=np.float32)
    return extension.multiply_float32(a, b, out, None)


def _draw_documents(shares: Array, points: Any, ends: Any) -> Any:
    return extension.draw_documents(shares, points, ends)


def _reconstruct_documents(inputs: Array, bias: Array, like: Array, points: Any, ends: Any) -> Any:
    return extension.reconstruct_documents(inputs, bias, like, points, ends)


def _csr_product(data: Array, indices: Any, indptr: Any, weight: Array, *, out: Array) -> Any:
    return extension.csr_product(data, weight, out, indices, indptr)


if extension is not None:
    register(
        np.ndarray,
        {
            "means": _means,
            "times_derivative": _times_derivative,
            "normalize": _normalize,
            "denormalize": _denormalize,
            "sample_states": _sample_states,
            "fill_normal": _fill_normal,
            "phase_differences": _phase_differences,
            "momentum_step": _momentum_step,
            "squared_error": _squared_error,
            "sgd_step": _sgd_step,
            "adam_step": _adam_step,
            "convolve": _convolve,
            "convolve_gradient": _convolve_gradient,
            "convolve_back": _convolve_back,
            "visible_means": _visible_means,
            "binary_product": _binary_product,
            "sparse_product": _sparse_product,
            "transposed_product": _transposed_product,
            "csr_product": _csr_product,
            "multiply_bfloat16": _multiply_bfloat16,
            "multiply_float32": _multiply_float32,
            "draw_documents": _draw_documents,
            "reconstruct_documents": _reconstruct_documents,
        },
    )
