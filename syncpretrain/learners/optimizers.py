"""How a network's parameters follow its gradient: their state, and one step on a minibatch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import SettingsError
from syncpretrain.kernels.optimizers import BLOCK, adam_step, sgd_step
from syncpretrain.kernels.program import Operation, Program
from syncpretrain.learners.network import Network
from syncpretrain.learners.sharding import Run, in_turn

__all__ = ["LINE_SEARCHES", "Adam", "GradientDescent", "LineSearches", "Optimizer"]

Array = NDArray[np.float32]
MOST_PROGRAMS = 4  # of minibatches: a whole one and the last lie in the same arrays each epoch
LINE_SEARCHES = 3  # on each minibatch (Hinton and Salakhutdinov 2006)


class Optimizer(Protocol):
    """Trains a network on one minibatch after another."""

    def train(
        self,
        network: Network,
        x: Array,
        target: Array,
        *,
        rate: float,
        epoch: int,
        step: int,
        run: Run = in_turn,
    ) -> float:
        """Move the parameters; return the error before that, summed over the examples.

        ``run`` works the phases of a step.
        """
        ...

    def memory(self) -> dict[str, Array]:
        """Return by name what the next step depends on beside the parameters; live arrays."""
        ...

    def recall(self, memory: Mapping[str, Array], *, steps: int) -> None:
        """Go back to what :meth:`memory` held after so many steps."""
        ...


class _Stepping(ABC):
    """What the optimizers have in common that take one step along the gradient.

    Weight decay is decoupled from the gradient: each step shrinks the weights, not the biases, by
    rate * decay (Loshchilov and Hutter 2019).
    """

    def __init__(self, network: Network, *, weight_decay: float = 0.0) -> None:
        self._decay = weight_decay
        block = min(BLOCK, len(network.parameters))
        self._scratch = network.backend.empty((network.shards, block), network.parameters.dtype)
        self._programs: dict[tuple[int, int, int], Program | None] = {}
        self.steps = 0

    def train(
        self,
        network: Network,
        x: Array,
        target: Array,
        *,
        rate: float,
        epoch: int,
        step: int,
        run: Run = in_turn,
    ) -> float:
        """Take one step; return the error before it, summed over the examples."""
        program = self._program(network, x, target)
        if program is not None:
            self.steps += 1
            program.prepare(rate=rate, steps=self.steps)
            return network.stepwise(program, epoch=epoch, step=step, run=run)
        parameters, gradients = network.parameters, network.gradients

        def move(shard: int, part: slice, is_weight: bool) -> None:
            if self._decay and is_weight:
                weights = parameters[part]
                weights *= 1 - rate * self._decay
            self._move(parameters[part], gradients[part], part, rate, self._scratch[shard])

        self.steps += 1
        with np.errstate(over="ignore", invalid="ignore"):
            return network.step(x, target, epoch=epoch, step=step, move=move, run=run)

    @abstractmethod
    def memory(self) -> dict[str, Array]:
        """Return by name what the next step depends on beside the parameters; live arrays."""

    def recall(self, memory: Mapping[str, Array], *, steps: int) -> None:
        """Go back to what :meth:`memory` held after so many steps."""
        for name, array in self.memory().items():
            np.copyto(array, memory[name])
        self.steps = steps

    def _program(self, network: Network, x: Array, target: Array) -> Program | None:
        """Return the step on a minibatch in these arrays as a program, if there is one."""
        if not isinstance(x, np.ndarray):
            return None
        place = (x.ctypes.data, target.ctypes.data, len(x))
        if place not in self._programs and len(self._programs) < MOST_PROGRAMS:
            # Its operations hold the arrays, so that no others will lie there.
            follow = partial(self._operations, network)
            self._programs[place] = network.program(x, target, follow)
        return self._programs.get(place)

    def _operations(self, network: Network, part: slice, is_weight: bool) -> list[Operation]:
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
        network: Network,
        *,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(network, weight_decay=weight_decay)
        self._momentum, self._nesterov = momentum, nesterov
        count = len(network.parameters) if momentum else 0
        self._velocity = network.backend.zeros(count, network.parameters.dtype)

    def memory(self) -> dict[str, Array]:
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

    def __init__(self, network: Network, *, weight_decay: float = 0.0) -> None:
        super().__init__(network, weight_decay=weight_decay)
        self._first, self._second = (np.zeros_like(network.parameters) for _ in range(2))

    def memory(self) -> dict[str, Array]:
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


class LineSearches:
    """Conjugate gradient or L-BFGS, a few line searches on each large minibatch.

    As Hinton and Salakhutdinov 2006, who took 3 on minibatches of 1000. The methods are SciPy's,
    in float64; the loss and its gradient stay float32. The learning rate has no say.

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

    def memory(self) -> dict[str, Array]:
        """Return nothing: each minibatch is searched anew."""
        return {}

    def recall(self, memory: Mapping[str, Array], *, steps: int) -> None:
        """Do nothing."""

    def train(
        self,
        network: Network,
        x: Array,
        target: Array,
        *,
        rate: float,
        epoch: int,
        step: int,
        run: Run = in_turn,
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
