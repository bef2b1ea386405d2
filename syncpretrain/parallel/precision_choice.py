"""Choices of ``auto``: bfloat16 where this CPU multiplies it faster, own products if they pay.

Guarantee: what was named is never changed. On a GPU ``auto`` is float32: less is never
taken where its gain has not been measured, and there has been no GPU to measure it on.

Assumption: the gain of one product on one core, measured once, holds for the whole process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from timeit import timeit
from typing import Any

import msgspec
import numpy as np

from syncpretrain.errors import SettingsError
from syncpretrain.kernels.native import extension
from syncpretrain.kernels.precision import PRECISIONS
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.settings.devices import check_precision
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.shapes import DenseShape, LayerShape

TIMED_PRODUCT = (100, 784, 1000)  # the widest of the paper's stack
PAIRS = 7  # of timings: the median is right though three are disturbed
PAYING_GAIN = 1.1
WORTH_OWN = 1 << 16  # weights of a stack: the BLAS multiplies narrower layers faster
INSTRUCTIONS = {"tiles": "AMX", "pairs": "AVX512-BF16"}  # by the compiled form that takes them


def bfloat16_instructions() -> str | None:
    """Return the instructions by which this CPU multiplies bfloat16, such as ``AMX``.

    None where it has none, or no compiled kernels that take them.
    """
    return None if extension is None else INSTRUCTIONS.get(extension.bfloat16_forms()[0])


@cache
def bfloat16_gain() -> float:
    """Return how many times as fast as float32 one core multiplies bfloat16, in some 30 ms.

    1 where it has no instruction for it. It is measured once in a process.
    """
    if bfloat16_instructions() is None:
        return 1.0
    try:
        with blas_limit(1):
            return _gain()
    except SettingsError:  # a run in this process holds another number
        return _gain()


def _gain() -> float:
    draw = np.random.default_rng(0).random
    B, V, H = TIMED_PRODUCT
    v, W = draw((B, V), dtype=np.float32), draw((V, H), dtype=np.float32)
    out = np.empty((B, H), dtype=np.float32)
    both = PRECISIONS["float32"], PRECISIONS["bfloat16"]
    products = [partial(own.multiply, v, W, out=out) for own in both]
    # Both of a pair lie next to each other in time, so that a slow moment slows both.
    pairs = [[timeit(product, number=1) for product in products] for _ in range(PAIRS + 1)]
    # The first warms the caches.
    return float(np.median([exact / rough for exact, rough in pairs[1:]]))


def resolve_precision(name: str, backend: str, setting: str = "precision") -> str:
    """Return the precision that ``auto`` stands for here, or the one that was named.

    Parameters
    ----------
    name : str
        ``float32``, ``tf32``, ``bfloat16`` or ``auto``.
    backend : str
        As :func:`syncpretrain.backends.choice.resolve_backend` returns it.
    setting : str
        The setting that has this value, for messages.

    Raises
    ------
    SettingsError
        If it is ``tf32`` and the backend is the CPU.
    """
    check_precision(name, backend, setting)
    if name != "auto":
        return name
    pays = backend == "numpy" and bfloat16_gain() >= PAYING_GAIN
    return "bfloat16" if pays else "float32"


def resolve_products(
    name: str, precision: str, backend: str, shapes: Sequence[LayerShape], *, prefers_blas: bool
) -> Any:
    """Return the products that ``auto`` stands for here, or those that were named.

    Parameters
    ----------
    name : str
        ``blas``, ``own`` or ``auto``.
    precision, backend : str
        As they were resolved.
    shapes : sequence of LayerShape
        The layers that are multiplied by.
    prefers_blas : bool
        True if the BLAS is faster all the same: it has all cores, or rows are sparse.
    """
    if name != "auto":
        return name
    is_wide = sum(shape.weights for shape in shapes) >= WORTH_OWN
    is_exact = (precision, backend) == ("float32", "numpy")
    pays = is_exact and is_wide and not prefers_blas and all(type(x) is DenseShape for x in shapes)
    has_vectors = extension is not None and extension.float32_forms()[0] != "portable"
    return "own" if pays and has_vectors else "blas"


def resolved(settings: PretrainSettings, backend: str, *, sparse: bool = False) -> PretrainSettings:
    """Return settings of pretraining on a backend, with what ``auto`` stands for in them.

    Raises SettingsError as :func:`resolve_precision` does.
    """
    precision = resolve_precision(settings.precision, backend)
    given = settings.products, precision, backend, settings.shapes
    numbers = enumerate(settings.shapes, start=1)
    wide = [settings.of_layer(i) for i, shape in numbers if shape.weights >= WORTH_OWN]
    is_divisible = settings.model == "rbm" and all(own.is_divisible for own in wide)
    is_alone = settings.schedule == "greedy" and not is_divisible  # the BLAS has all cores
    own = resolve_products(*given, prefers_blas=sparse or is_alone)
    return msgspec.structs.replace(settings, backend=backend, precision=precision, products=own)
