"""Is what a device computes right? Products, whole steps and random numbers, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_checks.bench import Bench, Table, whole_steps
from syncpretrain.backends.cuda_fused import has_tensor_cores
from syncpretrain.kernels.precision import PRECISIONS, factors
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import FusedDivergence
from syncpretrain.pretraining.build import step_for
from syncpretrain.rng import Address, Purpose

__all__ = ["accuracy"]

STEPS = 3
Float64 = NDArray[np.float64]


class Limit(NamedTuple):
    """How far a result may be off, relative, and the share of states that may be drawn otherwise.

    Factors that are rounded in another way than the precision says are off by more, but how cuBLAS
    rounds to TF32 is its own. A mean that differs in its last bit may be rounded to the next
    bfloat16, which is 4e-3 from it.
    """

    off: float
    flipped: float = 1e-5


CUBLAS = {"float32": Limit(2e-6), "tf32": Limit(2e-3, 2e-3), "bfloat16": Limit(2e-6)}
IN_PARTS = {"float32": Limit(2e-6), "tf32": Limit(1e-2, 5e-3), "bfloat16": Limit(3e-4, 1e-4)}
WHOLE = {"float32": Limit(2e-6), "tf32": Limit(5e-5, 1e-4), "bfloat16": Limit(3e-4, 1e-4)}


def accuracy(bench: Bench, precision: str = "float32") -> Table:
    """Return the relative errors beside float64, and whether each is as small as it should be."""
    return ("What is checked", "Relative error", "Right"), _checks(bench, precision)


def _checks(bench: Bench, precision: str) -> Iterator[Sequence[str]]:
    layers, kinds = range(1, bench.depth + 1), (False, True)
    has_whole = has_tensor_cores(bench.backend.xp, bench.device)
    for layer in layers:
        name = f"products of {bench.name(layer)} by cuBLAS"
        yield from bench.rows_of(name, _products(bench, name, layer, precision))
    for whole, layer in product(kinds if has_whole else kinds[:1], layers):
        name = f"{STEPS} {'whole steps' if whole else 'steps in parts'} of {bench.name(layer)}"
        yield from bench.rows_of(name, _steps(bench, name, layer, precision, whole=whole))
    if precision == "float32":
        yield from bench.rows_of("random numbers", _draws(bench))


def _products(bench: Bench, name: str, layer: int, precision: str) -> Iterator[Sequence[str]]:
    error = _of_products(bench, layer, precision)
    yield name, f"{error:.1e}", bench.verdict(name, error <= CUBLAS[precision].off)


def _steps(
    bench: Bench, name: str, layer: int, precision: str, *, whole: bool
) -> Iterator[Sequence[str]]:
    error, flipped = _of_steps(bench, layer, precision, whole=whole)
    states = STEPS * bench.batch_size * bench.layers[layer]
    limit = (WHOLE if whole else IN_PARTS)[precision]
    yield name, f"{error:.1e}", bench.verdict(name, error <= limit.off)
    are_right = flipped <= 1 + states * limit.flipped
    yield (
        f"their {states:,} states: otherwise",
        f"{flipped}",
        bench.verdict(f"states of {name}", are_right),
    )


def _of_products(bench: Bench, layer: int, precision: str) -> float:
    """Return the largest error of the products of a layer, however the factors lie."""
    backend, draws = bench.backend, np.random.default_rng(layer)
    visible, hidden = bench.layers[layer - 1 : layer + 1]
    sizes = (
        (bench.batch_size, visible, hidden),
        (bench.batch_size, hidden, visible),
        (visible, 2 * bench.batch_size, hidden),
    )
    worst, multiply = 0.0, PRECISIONS[precision].multiply
    with (stream := backend.stream()):
        for (rows, inner, columns), *turned in product(sizes, (False, True), (False, True)):
            shapes = [(rows, inner), (inner, columns)]
            hosts = [draws.standard_normal(shape, dtype=np.float32) for shape in shapes]
            given = [
                backend.asarray(np.ascontiguousarray(host.T)).T if turns else backend.asarray(host)
                for host, turns in zip(hosts, turned, strict=True)
            ]
            out = backend.empty((rows, columns))
            found = backend.tohost(multiply(*given, out=out))
            worst = max(worst, _off(found, _product(*hosts, precision=precision)))
        stream.synchronize()
    return worst


def _of_steps(bench: Bench, layer: int, precision: str, *, whole: bool) -> tuple[float, int]:
    """Return the error of the parameters after some steps, and the number of states that differ.

    The states are those that the device has drawn: others than NumPy's where a draw is as near to a
    mean as its last bits.
    """
    backend, rbm = bench.backend, bench.rbm(layer, precision)
    with whole_steps(whole):
        step, tohost = step_for(rbm, 1, "examples"), backend.tohost
    assert isinstance(step, FusedDivergence) == whole, "the step is of the kind that is checked"
    X, size = bench.examples(layer, STEPS * bench.batch_size), bench.batch_size
    rows, flipped = np.random.default_rng(1).permutation(len(X)), 0
    with rbm.stream:
        there, order = backend.asarray(X), backend.asarray(rows)
        parameters = [tohost(p).astype(np.float64) for p in rbm.parameters]
        velocities = [np.zeros_like(p) for p in parameters]
        for number in range(STEPS):
            own = slice(number * size, (number + 1) * size)
            step.train_step(there, order[own], epoch=1, step=number)
            states = tohost(rbm.buffers[2])
            flipped += _follow(
                *(rbm, X[rows[own]], states, parameters, velocities, number), whole=whole
            )
        found = [tohost(p) for p in rbm.parameters]
        rbm.stream.synchronize()
    # As one vector: a bias may be the small difference of sums.
    error = _off(*(np.concatenate([p.ravel() for p in some]) for some in (found, parameters)))
    return error, flipped


def _follow(
    rbm: RBM,
    v0: NDArray[np.float32],
    states: NDArray[np.float32],
    parameters: list[Float64],
    velocities: list[Float64],
    step: int,
    *,
    whole: bool,
) -> int:
    """Take a step in float64 with states that were drawn; return how many NumPy draws otherwise."""
    own, (W, a, b) = rbm.settings, parameters
    multiply = partial(_product, precision=own.precision)
    h0 = _sigmoid(multiply(v0, W) + b)
    v1 = _sigmoid(multiply(states, W.T) + a)
    h1 = _sigmoid(multiply(v1, W) + b)
    drawn = Address(own.seed, Purpose.HIDDEN, rbm.layer, 1, step).generator()
    uniform = drawn.random(h0.shape, dtype=np.float32)
    # Steps in parts divide visible units by the number of examples before they are rounded.
    by = 1.0 if whole or own.precision == "float32" else np.float32(1 / len(v0))
    difference = multiply(v0.T * by, h0) - multiply(v1.T * by, h1)
    gradients = difference / (by * len(v0)), (v0 - v1).mean(axis=0), (h0 - h1).mean(axis=0)
    for p, gradient, velocity in zip(parameters, gradients, velocities, strict=True):
        decay = own.weight_decay * p if p.ndim > 1 else 0.0
        velocity *= own.momentum.at(1)
        velocity += own.learning_rate * (gradient - decay)
        p += velocity
    return int((states != (uniform < h0)).sum())


def _draws(bench: Bench) -> Iterator[Sequence[str]]:
    """Yield whether random numbers are NumPy's, or have the right distribution."""
    backend, address = bench.backend, Address(7, Purpose.HIDDEN, layer=2, epoch=3, step=4)
    shape = bench.batch_size, 1000
    with (stream := backend.stream()):
        uniform, normal = (
            backend.tohost(getattr(backend.generator(address), kind)(shape, dtype=np.float32))
            for kind in ("random", "standard_normal")
        )
        stream.synchronize()
    right = address.generator().random(shape, dtype=np.float32)
    spread = float(normal.std(dtype=np.float64))
    near = 10 / normal.size**0.5
    is_normal = abs(spread - 1) < near and abs(normal.mean(dtype=np.float64)) < near
    name = "uniform numbers, bit for bit NumPy's"
    yield name, "", bench.verdict(name, bool((uniform == right).all()))
    name = f"normal numbers: deviation {spread:.3f} for 1"
    yield name, "", bench.verdict(name, bool(is_normal))


def _product(x: NDArray[Any], y: NDArray[Any], *, precision: str) -> Float64:
    """Return a product in float64, of factors that are rounded as a precision says."""
    product: Float64 = np.matmul(*map(np.float64, factors(x, y, precision=precision)))
    return product


def _sigmoid(x: Float64) -> Float64:
    return 1 / (1 + np.exp(-x))


def _off(found: Any, right: Float64) -> float:
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))
