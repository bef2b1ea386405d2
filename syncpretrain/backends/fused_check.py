"""The check of whole steps on a GPU: some are compared with the same steps in float64.

Factors of products are rounded there as the precision says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.cuda_fused import CudaFused, CudaTuning
from syncpretrain.backends.fused import FusedArrays, Pace, Rule, TunedArrays
from syncpretrain.kernels.activations import affine
from syncpretrain.kernels.optimizers import BETAS
from syncpretrain.kernels.precision import factors
from syncpretrain.rng import Address, Purpose
from syncpretrain.units.kinds import kind_of

LEAST_CAPABILITY = 80  # that has tensor cores for TF32, and copies to shared memory
# Examples, visible and hidden units: with alignment, and more of each than a tile has; without, and
# with sums so long that it shows where tensor cores, which round toward zero, take them whole.
TRIAL_SIZES = ((70, 76, 68), (9, 2001, 3))
# Of means and parameters. Of long sums in float32, whole ones of tensor cores are off by 9e-6, in
# TF32 and bfloat16 by 3e-5 at most. Factors that are rounded otherwise are off by 8e-4 at least.
MOST_OFF = {"float32": 5e-6, "tf32": 8e-5, "bfloat16": 8e-5}
PACE = Pace(0.5, 0.1, 0.01, 0.001)
# Multiplications of a product up to which whole steps are the faster, as measured on an H200: few
# launches gain more there than the tiles of cuBLAS, which are larger. By the sizes alone, and not
# by a time: steps in parts have other bits.
MOST_OF_STEPS = {"float32": 4.5e8, "tf32": 1.2e8, "bfloat16": 4.5e8}
MOST_OF_TUNING = {"float32": 1.2e9, "tf32": 4.8e8, "bfloat16": 7.5e8}  # in the mean of the layers


def has_fused_steps(
    cupy: Any, device: int, precision: str, multiplications: float, *, tunes: bool = False
) -> bool:
    """Return whether a device has fused steps that passed their trial, and such sizes gain by.

    The steps are of contrastive divergence, or of fine-tuning (``tunes``).
    """
    most = (MOST_OF_TUNING if tunes else MOST_OF_STEPS)[precision]
    if not has_tensor_cores(cupy, device) or multiplications > most:
        return False
    return why_not_fused(cupy, device, precision, tunes=tunes) is None


@cache
def why_not_fused(
    cupy: Any, device: int, precision: str = "float32", *, tunes: bool = False
) -> str | None:
    """Return what is wrong with the fused steps of a device that should have them; else None.

    They are tried once a process.
    """
    if not has_tensor_cores(cupy, device):
        return None
    trial: tuple[str, Callable[..., float], Sequence[Any], dict[str, float]]
    trial = "steps", _difference, TRIAL_SIZES, MOST_OFF
    if tunes:
        trial = "steps of fine-tuning", _tuning_difference, TRIED_STEPS, MOST_AWAY
    what, difference, tried, most = trial
    failures = (RuntimeError, OSError, MemoryError, cupy.cuda.compiler.CompileException)
    try:
        with cupy.cuda.Device(device):
            off = float(np.max([difference(cupy, precision, *given) for given in tried]))
    except failures as error:
        return f"GPU {device} makes its {what} in parts, since whole ones fail: {error}"
    if not off <= most[precision]:
        return f"GPU {device} makes its {what} in parts, since whole ones are off by {off:.1g}"
    return None


def has_tensor_cores(cupy: Any, device: int) -> bool:
    """Return whether a device has the tensor cores that whole steps are made with."""
    return int(cupy.cuda.Device(device).compute_capability) >= LEAST_CAPABILITY


def _difference(cupy: Any, precision: str, n: int, visible: int, hidden: int) -> float:
    """Return the largest difference of a parameter after one step."""
    draws, address = np.random.default_rng(0), Address(1, Purpose.HIDDEN, 1, 2, 3)
    X, rows = draws.random((n + 5, visible), dtype=np.float32), draws.permutation(n + 5)[:n]
    shapes = (visible, hidden), (visible,), (hidden,)
    W, a, b = (draws.standard_normal(shape, dtype=np.float32) for shape in shapes)
    # Terms of one sign add up to some 24. Biases make units of that which are neither on nor off.
    W = np.abs(W) * np.float32(60 / visible)
    before = [W, a - W.sum(axis=1) / 2, b - W.sum(axis=0) / 2]
    arrays = FusedArrays(
        parameters=tuple(cupy.asarray(parameter) for parameter in before),
        velocities=tuple(cupy.zeros(shape, dtype=np.float32) for shape in shapes),
        v=cupy.empty((2 * n, visible), dtype=np.float32),
        h=cupy.empty((2 * n, hidden), dtype=np.float32),
        states=cupy.empty((n, hidden), dtype=np.float32),
        visible_units="bernoulli",
        hidden_units="bernoulli",
        precision=precision,
    )
    step = CudaFused(cupy, arrays)
    words = (*address.key, *address.counter)
    found = step(cupy.asarray(X), cupy.asarray(rows), [words], PACE)
    states, means = arrays.states.get(), arrays.h.get()[:n]
    drawn = address.generator().random((n, hidden), dtype=np.float32)
    after, right_means, error = _step(before, X[rows].astype(np.float64), states, precision)
    pairs: list[tuple[Any, Any]] = [(states, drawn < means), (found.get() / error, 1.0)]
    pairs.append((means, right_means))
    pairs += [(array.get(), right) for array, right in zip(arrays.parameters, after, strict=True)]
    return float(np.max([np.abs(ours - right).max() for ours, right in pairs]))  # NaN if one is


def _product_in(precision: str) -> Callable[..., NDArray[np.float64]]:
    """Return the product in float64 of factors that are rounded as a precision says."""

    def product(x: Any, y: Any, *, out: Any = None) -> NDArray[np.float64]:
        x, y = map(np.float64, factors(x, y, precision=precision))
        return np.matmul(x, y, out=out)  # type: ignore[no-any-return]

    return product


def _step(before: list[Any], v0: Any, states: Any, precision: str) -> tuple[list[Any], Any, float]:
    """Return parameters after a step in float64 without velocity, hidden means, and its error."""
    W, a, b = (parameter.astype(np.float64) for parameter in before)
    product = _product_in(precision)
    h0 = affine(v0, W, b, multiply=product)
    v1 = affine(states, W.T, a, multiply=product)
    h1 = affine(v1, W, b, multiply=product)
    dW = product(v0.T, h0) - product(v1.T, h1)
    da, db = (v0 - v1).sum(axis=0), (h0 - h1).sum(axis=0)
    _, rate, decay, l1 = PACE
    W = W + rate * (dW / len(v0) - decay * W - l1 * np.sign(W))
    after = [W, a + rate * da / len(v0), b + rate * db / len(v0)]
    return after, h0, float(np.square(v1 - v0).sum())


TRIED_UNITS = ("tanh", "relu", "bernoulli")
# An optimizer, examples, and the sizes of a chain. In the first rows begin at multiples of 16
# bytes, which kernels load at once, and there are more examples and units than a tile has; in the
# second neither is so.
TRIED_STEPS = (
    (Rule("adam"), 70, (36, 76, 12, 68)),
    (Rule("sgd", 0.5, nesterov=True), 9, (5, 3, 2, 5)),
)
SHRINK, SIZE, FLOOR = 0.99, 0.05, 0.5
# Largest difference of parameters and moments near 1. Factors rounded in another way are off by
# more. A number that differs in its last bit may be rounded to its neighbour.
MOST_AWAY = {"float32": 1e-5, "tf32": 3e-5, "bfloat16": 3e-4}


def _tuning_difference(
    cupy: Any, precision: str, rule: Rule, n: int, sizes: Sequence[int]
) -> float:
    """Return the largest difference of a parameter or a moment after one step."""
    draws, shapes = np.random.default_rng(0), list(pairwise(sizes))
    count = sum((inputs + 1) * outputs for inputs, outputs in shapes)
    before = [draws.random(count, dtype=np.float32) for _ in range(3 if rule.name == "adam" else 2)]
    before[0] -= np.float32(0.5)
    x, target = (draws.random((n, width), dtype=np.float32) for width in (sizes[0], sizes[-1]))
    vectors = [cupy.asarray(vector) for vector in before]
    room = [[cupy.empty((n, width), dtype=np.float32) for width in sizes[1:]] for _ in range(2)]
    parameters, *moments = vectors
    chain, (activations, deltas) = _views(parameters, shapes), room
    arrays = TunedArrays(
        parameters,
        tuple(moments),
        chain,
        activations,
        deltas,
        units=TRIED_UNITS,
        loss="squared",
        precision=precision,
    )
    numbers = (SIZE, SHRINK, FLOOR)
    found = CudaTuning(cupy, arrays, rule)(cupy.asarray(x), cupy.asarray(target), numbers)
    after, error = _tuned(precision, rule, shapes, [np.float64(v) for v in before], x, target)
    off = [np.abs(ours.get() - right).max() for ours, right in zip(vectors, after, strict=True)]
    return float(np.max([*off, abs(found.get() / error - 1)]))  # NaN if one of them is


def _views(vector: Any, shapes: Sequence[tuple[int, int]]) -> list[tuple[Any, Any]]:
    views, at = [], 0
    for inputs, outputs in shapes:
        middle = at + inputs * outputs
        end = middle + outputs
        views.append((vector[at:middle].reshape(inputs, outputs), vector[middle:end]))
        at = end
    return views


def _tuned(
    precision: str,
    rule: Rule,
    shapes: Sequence[tuple[int, int]],
    vectors: list[NDArray[np.float64]],
    x: NDArray[np.float32],
    target: NDArray[np.float32],
) -> tuple[list[NDArray[np.float64]], float]:
    """Return parameters and moments after a step in float64, and its error."""
    product = _product_in(precision)
    chain, activations = _views(vectors[0], shapes), [np.float64(x)]
    for (weight, bias), units in zip(chain, TRIED_UNITS, strict=True):
        activations.append(affine(activations[-1], weight, bias, units, multiply=product))
    difference = activations[-1] - target
    delta, gradient = 2 / len(x) * difference, np.empty_like(vectors[0])
    for layer in reversed(range(len(shapes))):
        slope = kind_of(TRIED_UNITS[layer]).times_derivative
        assert slope is not None
        slope(np, activations[layer + 1], delta)
        dW, db = _views(gradient, shapes)[layer]
        dW[...], db[...] = product(activations[layer].T, delta), delta.sum(axis=0)
        delta = product(delta, chain[layer][0].T)
    for weight, _ in chain:
        weight *= SHRINK
    parameters, first, *second = vectors
    if second:
        first[:] = BETAS[0] * first + gradient
        second[0][:] = BETAS[1] * second[0] + gradient**2
        parameters -= SIZE * first / (np.sqrt(second[0]) + FLOOR)
    else:
        first[:] = rule.momentum * first - SIZE * gradient
        parameters += rule.momentum * first - SIZE * gradient
    return vectors, float(np.square(difference).sum())
