"""The check of whole steps of fine-tuning on a GPU: some are compared with steps in float64.

Factors of products are rounded there as the precision says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.cuda_tuning import BETAS, CudaTuning
from syncpretrain.backends.fused_check import has_tensor_cores, trial
from syncpretrain.backends.fused_tuning import Rule, TunedArrays
from syncpretrain.kernels.precision import factors
from syncpretrain.units.kinds import kind_of

__all__ = ["has_fused_tuning", "why_not_tuned"]

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


def has_fused_tuning(cupy: Any, device: int, precision: str = "float32") -> bool:
    """Return whether a device has whole steps of fine-tuning, which have passed their trial."""
    return has_tensor_cores(cupy, device) and why_not_tuned(cupy, device, precision) is None


@cache
def why_not_tuned(cupy: Any, device: int, precision: str = "float32") -> str | None:
    """Return what is wrong with the whole steps of a device that should have them; else None.

    They are tried once a process.
    """
    if not has_tensor_cores(cupy, device):
        return None
    steps = [partial(_difference, cupy, precision, *given) for given in TRIED_STEPS]
    return trial(cupy, device, "steps of fine-tuning", steps, MOST_AWAY[precision])


def _difference(cupy: Any, precision: str, rule: Rule, n: int, sizes: Sequence[int]) -> float:
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
    after, error = _step(precision, rule, shapes, [np.float64(v) for v in before], x, target)
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


def _step(
    precision: str,
    rule: Rule,
    shapes: Sequence[tuple[int, int]],
    vectors: list[NDArray[np.float64]],
    x: NDArray[np.float32],
    target: NDArray[np.float32],
) -> tuple[list[NDArray[np.float64]], float]:
    """Return parameters and moments after a step in float64, and its error."""

    def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
        return np.matmul(*map(np.float64, factors(a, b, precision=precision)))  # type: ignore[no-any-return]

    chain, activations = _views(vectors[0], shapes), [np.float64(x)]
    for (weight, bias), units in zip(chain, TRIED_UNITS, strict=True):
        activations.append(product(activations[-1], weight) + bias)
        kind_of(units).mean(np, activations[-1])
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
