"""The forms of the optimizers' steps on a GPU: one launch each.

They are NumPy's result bit for bit, but for numbers below 2^-126, which become 0. The source is in
``kernels.cu``; see :mod:`syncpretrain.backends.cuda_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from syncpretrain.backends.cuda_source import (
    MOST_ELEMENTS,
    CudaSource,
    is_vector,
    layout,
    rates_of,
)
from syncpretrain.kernels.optimizers import adam_rates

__all__ = ["CudaSteps"]


class CudaSteps:
    """The forms, of the signatures of the equations in :mod:`syncpretrain.kernels`.

    Parameters
    ----------
    source : CudaSource
    """

    # A graph keeps a launch's arguments as they were recorded. So rates that change from step to
    # step are passed twice: as arguments, and in ``source.numbers``, a device array that is filled
    # before each launch of the graph and null outside of one; where it is there, kernels read it
    # instead.

    def __init__(self, source: CudaSource) -> None:
        self._source, self._flat = source, source.flat

    def forms(self) -> dict[str, Callable[..., Any]]:
        """Return the forms by the names of their equations."""
        return {
            "momentum_step": self.momentum_step,
            "momentum_steps": self.momentum_steps,
            "shrink": self.shrink,
            "sgd_step": self.sgd_step,
            "adam_step": self.adam_step,
        }

    def momentum_step(
        self,
        parameter: Any,
        gradient: Any,
        velocity: Any,
        *,
        momentum: float,
        learning_rate: float,
        weight_decay: float = 0.0,
        l1: float = 0.0,
    ) -> Any:
        """Ascend: velocity = momentum velocity + rate (gradient - decay), then add it."""
        found = layout(parameter, gradient, velocity)
        if found is None:
            return NotImplemented
        rows, columns, ldp, ldg, ldv = found
        rates = rates_of(momentum, learning_rate, weight_decay, l1)
        args = (parameter, ldp, gradient, ldg, velocity, ldv, rows, columns, *rates)
        self._flat("momentum_step", parameter.size, *args)
        return None

    def momentum_steps(
        self,
        parameters: Any,
        gradients: Any,
        velocities: Any,
        *,
        weights: int,
        momentum: float,
        learning_rate: float,
        weight_decay: float = 0.0,
        l1: float = 0.0,
    ) -> Any:
        """Ascend with flat vectors; their first ``weights`` numbers decay."""
        n, vectors = len(parameters), (parameters, gradients, velocities)
        if n > MOST_ELEMENTS or not all(is_vector(array, n) for array in vectors):
            return NotImplemented
        rates = rates_of(momentum, learning_rate, weight_decay, l1)
        self._flat("momentum_steps", n, *vectors, n, weights, *rates)
        return None

    def shrink(self, weights: Any, factor: float) -> Any:
        """Multiply contiguous weights by a factor, in place."""
        if not weights.flags.c_contiguous or not is_vector(weights.reshape(-1), weights.size):
            return NotImplemented
        args = (weights, weights.size, np.float32(factor), self._source.numbers)
        self._flat("shrink", weights.size, *args)
        return None

    def sgd_step(
        self,
        parameters: Any,
        gradient: Any,
        velocity: Any,
        *,
        learning_rate: float,
        scratch: Any,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> Any:
        """Take one step of gradient descent with momentum, in place; ``scratch`` is not needed."""
        n = len(parameters)
        vectors = (parameters, gradient, *((velocity,) if momentum else ()))
        if n > MOST_ELEMENTS or not all(is_vector(array, n) for array in vectors):
            return NotImplemented
        rates = (np.float32(learning_rate), np.float32(momentum))
        others = (n, *rates, int(nesterov), self._source.numbers)
        self._flat("sgd_step", n, parameters, gradient, velocity, *others)
        return None

    def adam_step(
        self,
        parameters: Any,
        gradient: Any,
        first: Any,
        second: Any,
        *,
        step: int,
        learning_rate: float,
        scratch: Any,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> Any:
        """Take one step of Adam in place; ``scratch`` is not needed."""
        n, vectors = len(parameters), (parameters, gradient, first, second)
        if n > MOST_ELEMENTS or not all(is_vector(array, n) for array in vectors):
            return NotImplemented
        numbers = (beta1, beta2, *adam_rates(step, learning_rate, beta1, beta2, epsilon))
        rates = (np.float32(number) for number in numbers)
        self._flat("adam_step", n, *vectors, n, *rates, self._source.numbers)
        return None
