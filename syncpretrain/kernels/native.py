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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.errors import SyncpretrainError
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.dispatch import register
from syncpretrain.kernels.optimizers import adam_numbers
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


def _wanted(variable: str, known: Sequence[str], note: str = "") -> str:
    """Return what the environment names, one of what is known, or nothing."""
    wanted = os.environ.get(variable, "")
    if wanted not in ("", *known):
        expected = ", ".join(map(repr, known))
        raise NativeKernelsError(f"got {variable}={wanted!r}; expected {expected} or none{note}")
    return wanted


def _loaded() -> Any:
    """Return the extension, or None where it was not built or is not wanted."""
    wanted = _wanted(VARIABLE, ("native", "numpy"))
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
    wanted = _wanted(ORDER_VARIABLE, ORDERS)
    if extension is not None and wanted:
        forms = extension.bfloat16_forms()
        extension.keep_bfloat16_form(next(form for form in forms if form.endswith(wanted)))


def _keep_vectors(extension: Any) -> None:
    """Take the vectors that the environment names, if it does, where a kernel has forms of each."""
    present = VECTORS if extension is None else extension.float32_forms()
    wanted = _wanted(VECTORS_VARIABLE, present, ", which this CPU has")
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
    return str(extension.bfloat16_forms()[0]).removeprefix("portable ")


def available() -> bool:
    """Return whether the compiled forms are in use."""
    return extension is not None


def shape_numbers(shape: ConvolutionShape) -> tuple[int, ...]:
    """Return a shape as the numbers that the extension takes."""
    return (
        *(shape.channels, shape.height, shape.width, shape.filters, shape.size, shape.pad),
        *(shape.pool, int(shape.pooling == "max"), int(shape.channels_first), shape.groups),
        int(shape.rounded),
    )


def _of_part(name: str, count: int, length: str) -> Callable[..., Any]:
    """Return the form of a convolution that computes some filters or channels, by default all.

    It is given ``count`` arrays, the shape, the units of a convolution that has some, and the part.
    """
    form = getattr(extension, name)

    def convolution(*given: Any) -> Any:
        arrays, (shape, *others) = given[:count], given[count:]
        part = others.pop() if others and isinstance(others[-1], slice) else slice(None)
        first, last, step = part.indices(getattr(shape, length))
        if step != 1 or not extension.UNITS.keys() >= set(others):
            return NotImplemented
        kinds = (extension.UNITS[units] for units in others)
        return form(*arrays, (*shape_numbers(shape), *kinds, first, last))

    return convolution


def _visible_means(x: Array, bias: Array, shape: ConvolutionShape, units: str) -> Any:
    if units not in extension.UNITS:
        return NotImplemented
    result = extension.visible_means(x, bias, (*shape_numbers(shape), extension.UNITS[units]))
    return x if result is None else result


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


def _product(multiply: Callable[..., Any], a: Array, b: Array, *, out: Array | None = None) -> Any:
    if out is None:
        out = np.empty((len(a), b.shape[-1]), dtype=np.float32)
    return multiply(a, b, out, None)


if extension is not None:
    # The extension takes all arguments by position; the equations' signatures are kept here.
    FORMS: dict[str, Callable[..., Any]] = {
        "means": extension.means,
        "times_derivative": lambda delta, a, units="bernoulli": extension.times_derivative(
            delta, a, units
        ),
        "normalize": extension.normalize,
        "denormalize": extension.denormalize,
        "sample_states": _sample_states,
        "fill_normal": lambda out, at: extension.normal(out, at.key, at.counter),
        "phase_differences": lambda v, h, *, da, db, examples: extension.phase_differences(
            v, h, da, db, examples
        ),
        "momentum_step": lambda *arrays, momentum, learning_rate, weight_decay=0.0, l1=0.0: (
            extension.momentum_step(*arrays, momentum, learning_rate, weight_decay, l1)
        ),
        "squared_error": lambda x, y, *, out: extension.squared_error(x, y, out),
        "sgd_step": lambda *arrays, learning_rate, scratch=None, momentum=0.0, nesterov=False: (
            extension.sgd_step(*arrays, learning_rate, momentum, nesterov)
        ),
        "adam_step": lambda *arrays, scratch=None, **numbers: extension.adam_step(
            *arrays, *adam_numbers(**numbers)
        ),
        "convolve": _of_part("convolve", 6, "filters"),
        "convolve_gradient": _of_part("convolve_gradient", 5, "filters"),
        "convolve_back": _of_part("convolve_back", 5, "channels"),
        "visible_means": _visible_means,
        "binary_product": lambda h, weight, *, out: extension.binary_product(h, weight, out),
        "sparse_product": lambda v, weight, *, out: extension.sparse_product(v, weight, out),
        "transposed_product": lambda v, h, *, out, adds=False: extension.transposed_product(
            v, h, out, adds
        ),
        "csr_product": lambda data, indices, indptr, weight, *, out: extension.csr_product(
            data, weight, out, indices, indptr
        ),
        "multiply_bfloat16": partial(_product, extension.multiply_bfloat16),
        "multiply_float32": partial(_product, extension.multiply_float32),
        "draw_documents": extension.draw_documents,
        "reconstruct_documents": extension.reconstruct_documents,
    }
    register(np.ndarray, FORMS)
