"""Is what a device computes right? Products, whole steps and random numbers, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_checks.bench import Bench, Table
from syncpretrain.kernels.dispatch import multiply
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.select import step_for
from syncpretrain.learners.steps import FusedDivergence
from syncpretrain.rng import Address, Purpose

__all__ = ["accuracy"]

STEPS = 3
MOST_OFF = 2e-6  # relative; products of TF32 are off by 5e-4
Float64 = NDArray[np.float64]


def accuracy(bench: Bench) -> Table:
    """Return the relative errors beside float64, and whether each is as small as it should be.

    Raises
    ------
    AssertionError
        At the end of the rows, if one is not.
    """
    return ("What is checked", "Relative error", "Right"), _rows(bench)


def _rows(bench: Bench) -> Iterator[tuple[str, str, str]]:
    wrong = []
    for name, error, is_right in _checks(bench):
        wrong += [] if is_right else [name]
        yield name, error, "yes" if is_right else "NO"
    assert not wrong, f"wrong: {', '.join(wrong)}"


def _checks(bench: Bench) -> Iterator[tuple[str, str, bool]]:
    for layer in range(1, bench.depth + 1):
        error = _of_products(bench, layer)
        yield f"products of {bench.name(layer)}, by cuBLAS", f"{error:.1e}", error <= MOST_OFF
    for layer in range(1, bench.depth + 1):
        error, flipped, kind = _of_steps(bench, layer)
        name = f"{STEPS} {kind} of {bench.name(layer)}"
        states = STEPS * bench.batch_size * bench.layers[layer]
        yield name, f"{error:.1e}", error <= MOST_OFF
        yield f"their {states:,} states: otherwise", f"{flipped}", flipped <= 1 + states / 1e5
    yield from _of_draws(bench)


def _of_products(bench: Bench, layer: int) -> float:
    """Return the largest error of the products of a layer, however the factors lie."""
    backend, draws = bench.backend, np.random.default_rng(layer)
    visible, hidden = bench.layers[layer - 1 : layer + 1]
    sizes = (
        (bench.batch_size, visible, hidden),
        (bench.batch_size, hidden, visible),
        (visible, 2 * bench.batch_size, hidden),
    )
    worst = 0.0
    with (stream := backend.stream()):
        for (rows, inner, columns), *turned in product(sizes, (False, True), (False, True)):
            factors = [(rows, inner), (inner, columns)]
            hosts = [draws.standard_normal(shape, dtype=np.float32) for shape in factors]
            given = [
                backend.asarray(np.ascontiguousarray(host.T)).T if turns else backend.asarray(host)
                for host, turns in zip(hosts, turned, strict=True)
            ]
            out = backend.empty((rows, columns))
            found = backend.tohost(multiply(*given, out=out))
            worst = max(worst, _off(found, hosts[0].astype(np.float64) @ hosts[1]))
        stream.synchronize()
    return worst


def _of_steps(bench: Bench, layer: int) -> tuple[float, int, str]:
    """Return the error of the parameters after some steps, states that differ, and kind of steps.

    The states are those that the device has drawn: others than NumPy's where a draw is as near to a
    mean as its last bits.
    """
    backend, rbm = bench.backend, bench.rbm(layer)
    step, tohost = step_for(rbm, 1, "examples"), backend.tohost
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
            flipped += _follow(rbm, X[rows[own]], states, parameters, velocities, number)
        found = [tohost(p) for p in rbm.parameters]
        rbm.stream.synchronize()
    # As one vector: a bias may be the small difference of sums.
    error = _off(*(np.concatenate([p.ravel() for p in some]) for some in (found, parameters)))
    is_whole = isinstance(step, FusedDivergence)
    return error, flipped, "whole steps" if is_whole else "steps in parts"


def _follow(
    rbm: RBM,
    v0: NDArray[np.float32],
    states: NDArray[np.float32],
    parameters: list[Float64],
    velocities: list[Float64],
    step: int,
) -> int:
    """Take a step in float64 with states that were drawn; return how many NumPy draws otherwise."""
    own, (W, a, b) = rbm.settings, parameters
    h0 = _sigmoid(v0.astype(np.float64) @ W + b)
    v1 = _sigmoid(states @ W.T + a)
    h1 = _sigmoid(v1 @ W + b)
    drawn = Address(own.seed, Purpose.HIDDEN, rbm.layer, 1, step).generator()
    uniform = drawn.random(h0.shape, dtype=np.float32)
    gradients = v0.T @ h0 - v1.T @ h1, (v0 - v1).sum(axis=0), (h0 - h1).sum(axis=0)
    for p, gradient, velocity in zip(parameters, gradients, velocities, strict=True):
        decay = own.weight_decay * p if p.ndim > 1 else 0.0
        velocity *= own.momentum.at(1)
        velocity += own.learning_rate * (gradient / len(v0) - decay)
        p += velocity
    return int((states != (uniform < h0)).sum())


def _of_draws(bench: Bench) -> Iterator[tuple[str, str, bool]]:
    """Yield what is to be said of random numbers."""
    backend, address = bench.backend, Address(7, Purpose.HIDDEN, layer=2, epoch=3, step=4)
    shape = bench.batch_size, 1000
    with (stream := backend.stream()):
        uniform, normal = (
            backend.tohost(getattr(backend.generator(address), kind)(shape, dtype=np.float32))
            for kind in ("random", "standard_normal")
        )
        stream.synchronize()
    right = address.generator().random(shape, dtype=np.float32)
    yield "uniform numbers, bit for bit NumPy's", "", bool((uniform == right).all())
    spread = float(normal.std(dtype=np.float64))
    near = 10 / normal.size**0.5
    is_normal = abs(spread - 1) < near and abs(normal.mean(dtype=np.float64)) < near
    yield f"normal numbers: deviation {spread:.3f} for 1", "", bool(is_normal)


def _sigmoid(x: Float64) -> Float64:
    return 1 / (1 + np.exp(-x))


def _off(found: Any, right: Float64) -> float:
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))
