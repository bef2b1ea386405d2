"""Optimizers: their state, and one update of a network's parameters on a minibatch.

Gradient descent and Adam follow each minibatch. Conjugate gradients and L-BFGS search along lines
on large minibatches, by SciPy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.fused_tuning import Rule
from syncpretrain.errors import SettingsError
from syncpretrain.finetuning.trainable import Trainable
from syncpretrain.finetuning.whole_steps import WholeSteps
from syncpretrain.kernels.arrays import BLOCK, Array
from syncpretrain.kernels.operations import Operation
from syncpretrain.kernels.optimizers import adam_rates, adam_step, sgd_step, shrink
from syncpretrain.kernels.program import PhaseRunner, Program, in_turn
from syncpretrain.settings.finetuning import FinetuneSettings

__all__ = [
    "LEARNING_RATES",
    "LINE_SEARCHES",
    "Adam",
    "GradientDescent",
    "LineSearches",
    "Optimizer",
    "optimizer_for",
    "optimizer_vectors",
    "scheduled",
]


# Minibatches with a program: the whole one and the last one of an epoch lie in the same arrays each
# time, and come first. Arrays that change with every step would fill the memory with programs.
MOST_PROGRAMS = 4
LEARNING_RATES = {"adam": 0.001, "sgd": 0.1, "cg": 1.0, "lbfgs": 1.0}  # the last two have none

# SciPy's are of float64: for cg points, gradients and directions, old and new; for lbfgs also the
# last 10 steps and changes of the gradient.
VECTORS = {"adam": 2, "sgd": 1, "cg": 28, "lbfgs": 80}


class Optimizer(Protocol):
    """Trains a network on one minibatch after another.

    Attributes
    ----------
    steps : int
        Number of steps taken.
    """

    steps: int

    def train(
        self,
        network: Trainable,
        x: Array,
        target: Array,
        *,
        rate: float,
        epoch: int,
        step: int,
        run: PhaseRunner = in_turn,
    ) -> float:
        """Move the parameters; return the error before that, summed over the examples.

        ``run`` works the phases of a step.
        """
        ...

    def numbers(self, rate: float, steps: int) -> tuple[float, ...]:
        """Return what the ``steps``-th step computes with at a rate, for recorded steps."""
        ...

    def state(self) -> dict[str, Array]:
        """Return by name what the next step depends on beside the parameters; live arrays."""
        ...

    def load_state(self, state: Mapping[str, Array], *, steps: int) -> None:
        """Go back to what :meth:`state` held after ``steps`` steps."""
        ...


class _Stepping(ABC):
    """Base of the optimizers that take one step along the gradient.

    Weight decay is decoupled from the gradient: each step shrinks the weights, not the biases, by
    rate * decay (Loshchilov and Hutter 2019).
    """

    def __init__(self, network: Trainable, rule: Rule, *, weight_decay: float = 0.0) -> None:
        self._decay, self._whole = weight_decay, WholeSteps(rule)
        block = min(BLOCK, len(network.parameters))
        self._scratch = network.backend.empty((network.shards, block), network.parameters.dtype)
        self._programs: dict[tuple[int, int, int], Program | None] = {}
        self.steps = 0

    def train(
        self,
        network: Trainable,
        x: Array,
        target: Array,
        *,
        rate: float,
        epoch: int,
        step: int,
        run: PhaseRunner = in_turn,
    ) -> float:
        """Take one step; return the error before it, summed over the examples."""
        whole = self._whole.step_for(network, self.state(), x, target)
        if whole is not None:
            self.steps += 1
            with np.errstate(over="ignore"):  # the caller checks the error
                return whole(x, target, self.numbers(rate, self.steps))  # type: ignore[no-any-return]
        program = self._program(network, x, target)
        if program is not None:
            self.steps += 1
            program.prepare(rate=rate, steps=self.steps)
            return network.stepwise(program, epoch=epoch, step=step, run=run)
        parameters, gradients = network.parameters, network.gradients

        def move(shard: int, part: slice, is_weight: bool) -> None:
            if self._decay and is_weight:
                shrink(parameters[part], self._factor(rate))
            self._move(parameters[part], gradients[part], part, rate, self._scratch[shard])

        self.steps += 1
        with np.errstate(over="ignore", invalid="ignore"):
            if not network.backend.devices():
                return network.step(x, target, epoch=epoch, step=step, move=move, run=run)
            error = network.step(x, target, epoch=epoch, step=step, run=run)
            self._move_all(network, rate)
            return error

    def _move_all(self, network: Trainable, rate: float) -> None:
        """Move all parameters together, on a device by one launch."""
        for weight, _ in network.chain if self._decay else ():
            shrink(weight, self._factor(rate))
        vectors = network.parameters, network.gradients
        self._move(*vectors, slice(None), rate, self._scratch[0])

    def _factor(self, rate: float) -> float:
        """Return what weights are multiplied by before they move."""
        return 1 - rate * self._decay

    @abstractmethod
    def numbers(self, rate: float, steps: int) -> tuple[float, ...]:
        """Return what the ``steps``-th step computes with at a rate, for recorded steps."""

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """Return by name what the next step depends on beside the parameters; live arrays."""

    def load_state(self, state: Mapping[str, Array], *, steps: int) -> None:
        """Go back to what :meth:`state` held after ``steps`` steps."""
        for name, array in self.state().items():
            np.copyto(array, state[name])
        self.steps = steps

    def _program(self, network: Trainable, x: Array, target: Array) -> Program | None:
        """Return the step on a minibatch in these arrays as a program, if there is one."""
        if not isinstance(x, np.ndarray):
            return None
        address = (x.ctypes.data, target.ctypes.data, len(x))
        if address not in self._programs and len(self._programs) < MOST_PROGRAMS:
            # Its operations hold the arrays, so that no others will lie there.
            follow = partial(self._operations, network)
            self._programs[address] = network.program(x, target, follow)
        return self._programs.get(address)

    def _operations(self, network: Trainable, part: slice, is_weight: bool) -> list[Operation]:
        """Return what moves a part of the parameters, as operations of a program."""
        parameters, gradients = network.parameters[part], network.gradients[part]
        decay: list[Operation] = [("decay", parameters, self._decay)]
        own = self._own_operation(parameters, gradients, part)
        return [*(decay if self._decay and is_weight else []), own]

    @abstractmethod
    def _own_operation(self, parameters: Array, gradients: Array, part: slice) -> Operation:
        """Return the operation that moves parameters along their gradients."""

    @abstractmethod
    def _move(
        self, parameters: Array, gradients: Array, part: slice, rate: float, scratch: Array
    ) -> None:
        """Change a part of the parameters along its gradients."""


class GradientDescent(_Stepping):
    """Stochastic gradient descent, with momentum, Nesterov's if asked."""

    def __init__(
        self,
        network: Trainable,
        *,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(network, Rule("sgd", momentum, nesterov), weight_decay=weight_decay)
        self._momentum, self._nesterov = momentum, nesterov
        count = len(network.parameters) if momentum else 0
        self._velocity = network.backend.zeros(count, network.parameters.dtype)

    def numbers(self, rate: float, steps: int) -> tuple[float, float]:
        """Return the rate, and the factor of the weights."""
        return rate, self._factor(rate)

    def state(self) -> dict[str, Array]:
        """Return the velocities."""
        return {"velocity": self._velocity}

    def _own_operation(self, parameters: Array, gradients: Array, part: slice) -> Operation:
        velocity = self._velocity[part]
        return "sgd_step", parameters, gradients, velocity, self._momentum, self._nesterov

    def _move(
        self, parameters: Array, gradients: Array, part: slice, rate: float, scratch: Array
    ) -> None:
        sgd_step(
            parameters,
            gradients,
            self._velocity[part],
            learning_rate=rate,
            scratch=scratch,
            momentum=self._momentum,
            nesterov=self._nesterov,
        )


class Adam(_Stepping):
    """Adam (Kingma and Ba 2015)."""

    def __init__(self, network: Trainable, *, weight_decay: float = 0.0) -> None:
        super().__init__(network, Rule("adam"), weight_decay=weight_decay)
        self._first, self._second = (np.zeros_like(network.parameters) for _ in range(2))

    def numbers(self, rate: float, steps: int) -> tuple[float, float, float]:
        """Return the size of the step, the factor of the weights, and the denominator's floor."""
        size, floor = adam_rates(steps, rate)
        return size, self._factor(rate), floor

    def state(self) -> dict[str, Array]:
        """Return the moments."""
        return {"first": self._first, "second": self._second}

    def _own_operation(self, parameters: Array, gradients: Array, part: slice) -> Operation:
        return "adam_step", parameters, gradients, self._first[part], self._second[part]

    def _move(
        self, parameters: Array, gradients: Array, part: slice, rate: float, scratch: Array
    ) -> None:
        adam_step(
            parameters,
            gradients,
            self._first[part],
            self._second[part],
            step=self.steps,
            learning_rate=rate,
            scratch=scratch,
        )


def scheduled(schedule: str, done: float) -> float:
    """Return the share of the learning rate left once a share ``done`` of all is trained."""
    if schedule == "linear":
        return 1 - done
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0


def optimizer_for(options: FinetuneSettings) -> Callable[[Trainable], Optimizer]:
    """Return what builds the optimizer that the settings name.

    Raises
    ------
    SettingsError
        If a package that it needs is missing.
    """
    decay = options.weight_decay
    if options.optimizer == "adam":
        return partial(Adam, weight_decay=decay)
    if options.optimizer == "sgd":
        momentum, nesterov = options.momentum, options.nesterov
        return partial(GradientDescent, weight_decay=decay, momentum=momentum, nesterov=nesterov)
    searches = LineSearches(options.optimizer, weight_decay=decay)
    return lambda network: searches


def optimizer_vectors(options: FinetuneSettings) -> int:
    """Return how many vectors of the parameters' size, float32, the optimizer holds at most."""
    return VECTORS[options.optimizer]


LINE_SEARCHES = 3  # on each minibatch (Hinton and Salakhutdinov 2006)


class LineSearches:
    """Conjugate gradient or L-BFGS, a few line searches on each large minibatch.

    As Hinton and Salakhutdinov 2006, who took 3 on minibatches of 1000. The methods are SciPy's,
    in float64; the loss and its gradient stay float32. The learning rate is ignored.

    Parameters
    ----------
    method : str
        "cg" or "lbfgs".
    weight_decay : float
        Half of it times the squared weights, not the biases, is added to the loss.

    Raises
    ------
    SettingsError
        If SciPy is missing.
    """

    def __init__(self, method: str, *, weight_decay: float = 0.0) -> None:
        try:
            from scipy.optimize import minimize
        except ImportError:
            raise SettingsError(
                f"finetune_optimizer: {method} needs SciPy; pip install 'syncpretrain[scipy]'"
            ) from None
        self._minimize = minimize
        self._method = {"cg": "CG", "lbfgs": "L-BFGS-B"}[method]
        self._decay = weight_decay
        self.steps = 0

    def numbers(self, rate: float, steps: int) -> tuple[()]:
        """Return none: there is no rate, and nothing is recorded."""
        return ()

    def state(self) -> dict[str, Array]:
        """Return nothing: each minibatch is searched anew."""
        return {}

    def load_state(self, state: Mapping[str, Array], *, steps: int) -> None:
        """Do nothing."""

    def train(
        self,
        network: Trainable,
        x: Array,
        target: Array,
        *,
        rate: float,
        epoch: int,
        step: int,
        run: PhaseRunner = in_turn,
    ) -> float:
        """Search along a few directions; return the error before that, summed over the examples."""
        first_error: list[float] = []

        def loss_and_gradient(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            network.parameters[:] = point
            loss = network.loss_of(x, target, epoch=epoch, step=step)
            error = network.gradient(x, target, epoch=epoch, step=step)
            first_error.append(error)
            if self._decay:
                for (weight, _), (slope, _) in zip(
                    network.chain, network.chain_gradients, strict=True
                ):
                    loss += 0.5 * self._decay * float(np.square(weight).sum())
                    slope += self._decay * weight
            return loss, network.gradients.astype(np.float64)

        with np.errstate(all="ignore"):  # in SciPy's arithmetic too; the caller checks the error
            found = self._minimize(
                loss_and_gradient,
                network.parameters.astype(np.float64),
                jac=True,
                method=self._method,
                options={"maxiter": LINE_SEARCHES},
            )
            network.parameters[:] = found.x
        return first_error[0]
