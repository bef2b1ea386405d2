"""Optimizers: the state of one, and its update of a network's parameters on a minibatch.

An optimizer that follows gradients is an :class:`Update`: a pair of functions, one that allocates
what it remembers, one that returns the operations that move a part of the parameters. All else is
the same for all of them: :class:`Descent`. Conjugate gradients and L-BFGS search along lines on
large minibatches, by SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.backends.base import Rule
from syncpretrain.errors import SettingsError, needed
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.tasks import Examples
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.operations import Operation
from syncpretrain.kernels.optimizers import adam_rates
from syncpretrain.kernels.program import PhaseRunner, Program, in_turn
from syncpretrain.settings.finetuning import FinetuneSettings

LEARNING_RATES = {"adam": 0.001, "sgd": 0.1, "cg": 1.0, "lbfgs": 1.0}  # the last two have none

# The most vectors of the parameters' size, float32, that each holds. SciPy's are of float64: for cg
# points, gradients and directions, old and new; for lbfgs also the last 10 steps and changes of the
# gradient.
VECTORS = {"adam": 2, "sgd": 1, "cg": 28, "lbfgs": 80}


class At(NamedTuple):
    """The moment of a step: its learning rate, and its address in epochs, for what it draws."""

    rate: float
    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer that follows gradients, as a pair of functions.

    Attributes
    ----------
    state : callable
        Given a function that returns a flat vector of zeros of a number of elements, and the number
        of parameters, returns what the optimizer remembers, by name.
    moves : callable
        Given a part of the parameters, of their gradients, and of each vector of the state, returns
        the operations that move the parameters. Those of a program know the rate and the number of
        the step; ("update", parameters, gradients, function) calls a function with them.
    numbers : callable
        Given the rate and the number of a step, returns the step's size and, if there is one, the
        floor of its denominator: what differs from step to step in the kernels of a device.
    rule : Rule or None
        The same for steps that a device makes as a whole, if it has such a rule.
    """

    state: Callable[[Callable[[int], Array], int], dict[str, Array]]
    moves: Callable[..., list[Operation]]
    numbers: Callable[[float, int], tuple[float, ...]] = lambda rate, step: (rate,)
    rule: Rule | None = None


class Descent:
    """The optimizer that takes one step along the gradient of each minibatch.

    Weight decay is decoupled from the gradient: each step shrinks the weights, not the biases, by
    rate * decay (Loshchilov and Hutter 2019).

    Parameters
    ----------
    network : Network
    update : Update
    weight_decay : float

    Attributes
    ----------
    steps : int
        Number of steps taken.
    """

    def __init__(self, network: Network, update: Update, *, weight_decay: float = 0.0) -> None:
        self.network, self.steps = network, 0
        self.update, self.weight_decay = update, weight_decay
        zeros = partial(network.backend.zeros, dtype=network.parameters.dtype)
        self._state = update.state(zeros, len(network.parameters))
        self._programs: dict[tuple[int, ...], Program] = {}
        self._fused: list[Any] = []  # one or None, once the network was asked

    def train(self, examples: Examples, rows: Any, at: At, run: PhaseRunner = in_turn) -> float:
        """Take one step on some rows; return the error before it, summed over the rows.

        ``run`` works the phases of the step.
        """
        network = self.network
        network.begin(examples, rows, epoch=at.epoch, step=at.step, run=run)
        self.steps += 1
        fused = self._fused_step()
        if fused is not None:
            x, target, *_ = network.minibatch
            with np.errstate(over="ignore"):  # the caller checks the error
                return fused(x, target, self.numbers(at.rate, self.steps))  # type: ignore[no-any-return]
        if network.key not in self._programs:
            self._programs[network.key] = network.program(self.moves)
        program = self._programs[network.key]
        program.prepare(rate=at.rate, steps=self.steps)
        return network.work(program, run)

    def moves(self, part: slice) -> list[Operation]:
        """Return what moves a part of the parameters; before that the weights in it decay."""
        network, decays = self.network, list[Operation]()
        for (weight, _), start in zip(network.chain, network.places.starts, strict=False):
            own = slice(max(part.start, start), min(part.stop, start + weight.size))
            if self.weight_decay and own.start < own.stop:
                decays += [("decay", network.parameters[own], self.weight_decay)]
        # A vector that is shorter than the parameters remembers nothing, as without momentum.
        state = [vector[part] for vector in self._state.values()]
        moved = network.parameters[part], network.gradients[part]
        return [*decays, *self.update.moves(*moved, *state)]

    def numbers(self, rate: float, steps: int) -> tuple[float, ...]:
        """Return what the ``steps``-th step computes with at a rate, for recorded steps.

        The step's size, the factor of the weights, and what else a kernel needs.
        """
        size, *others = self.update.numbers(rate, steps)
        return (size, 1 - rate * self.weight_decay, *others)

    def state(self) -> dict[str, Array]:
        """Return by name what the next step depends on beside the parameters; live arrays."""
        return dict(self._state)

    def load_state(self, state: Mapping[str, Array], *, steps: int) -> None:
        """Go back to what :meth:`state` held after ``steps`` steps."""
        for name, array in self._state.items():
            np.copyto(array, state[name])
        self.steps = steps

    def _fused_step(self) -> Any:
        """Return the step that the device makes as a whole, if it supports the minibatch."""
        if not self._fused:
            moments = tuple(array for array in self._state.values() if array.size)
            rule = self.update.rule
            self._fused = [None if rule is None else self.network.fused(moments, rule)]
        (fused,) = self._fused
        x, target, weights, _ = self.network.minibatch
        return fused if fused is not None and weights is None and fused.takes(x, target) else None


def gradient_descent(
    network: Network, *, weight_decay: float = 0.0, momentum: float = 0.0, nesterov: bool = False
) -> Descent:
    """Return stochastic gradient descent, with momentum, Nesterov's if asked."""

    def state(zeros: Callable[[int], Array], count: int) -> dict[str, Array]:
        return {"velocity": zeros(count if momentum else 0)}

    def moves(parameters: Array, gradients: Array, velocity: Array) -> list[Operation]:
        return [("sgd_step", parameters, gradients, velocity, momentum, nesterov)]

    update = Update(state, moves, rule=Rule("sgd", momentum, nesterov))
    return Descent(network, update, weight_decay=weight_decay)


def adam(network: Network, *, weight_decay: float = 0.0) -> Descent:
    """Return Adam (Kingma and Ba 2015)."""

    def state(zeros: Callable[[int], Array], count: int) -> dict[str, Array]:
        return {"first": zeros(count), "second": zeros(count)}

    def moves(parameters: Array, gradients: Array, *moments: Array) -> list[Operation]:
        return [("adam_step", parameters, gradients, *moments)]

    update = Update(state, moves, lambda rate, step: adam_rates(step, rate), Rule("adam"))
    return Descent(network, update, weight_decay=weight_decay)


def scheduled(schedule: str, done: float) -> float:
    """Return the share of the learning rate left once a share ``done`` of all is trained."""
    if schedule == "linear":
        return 1 - done
    return 0.5 * (1 + math.cos(math.pi * done)) if schedule == "cosine" else 1.0


LINE_SEARCHES = 3  # on each minibatch (Hinton and Salakhutdinov 2006)


class LineSearches:
    """Conjugate gradient or L-BFGS, a few line searches on each large minibatch.

    As Hinton and Salakhutdinov 2006, who took 3 on minibatches of 1000. The methods are SciPy's,
    in float64; the loss and its gradient stay float32. The learning rate is ignored.

    Parameters
    ----------
    network : Network
    method : str
        "cg" or "lbfgs".
    weight_decay : float
        Half of it times the squared weights, not the biases, is added to the loss.

    Raises
    ------
    SettingsError
        If SciPy is missing.
    """

    def __init__(self, network: Network, method: str, *, weight_decay: float = 0.0) -> None:
        self.network, self.steps, self._decay = network, 0, weight_decay
        self._minimize = _minimize(method)
        self._method = {"cg": "CG", "lbfgs": "L-BFGS-B"}[method]

    def numbers(self, rate: float, steps: int) -> tuple[()]:
        """Return none: there is no rate, and nothing is recorded."""
        return ()

    def state(self) -> dict[str, Array]:
        """Return nothing: each minibatch is searched anew."""
        return {}

    def load_state(self, state: Mapping[str, Array], *, steps: int) -> None:
        """Set the number of steps."""
        self.steps = steps

    def train(self, examples: Examples, rows: Any, at: At, run: PhaseRunner = in_turn) -> float:
        """Search along a few directions; return the error before that, summed over the rows."""
        network, first_error = self.network, list[float]()
        network.begin(examples, rows, epoch=at.epoch, step=at.step, run=run)

        def loss_and_gradient(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            network.parameters[:] = point
            loss = network.loss_of_minibatch()
            first_error.append(network.gradient())
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
        self.steps += 1
        return first_error[0]


Optimizer = Descent | LineSearches


def optimizer_for(options: FinetuneSettings) -> Callable[[Network], Optimizer]:
    """Return what builds the optimizer that the settings name.

    Raises
    ------
    SettingsError
        If a package that it needs is missing.
    """
    decay = options.weight_decay
    if options.optimizer == "adam":
        return partial(adam, weight_decay=decay)
    if options.optimizer == "sgd":
        momentum, nesterov = options.momentum, options.nesterov
        return partial(gradient_descent, weight_decay=decay, momentum=momentum, nesterov=nesterov)
    _minimize(options.optimizer)
    return partial(LineSearches, method=options.optimizer, weight_decay=decay)


def _minimize(method: str) -> Callable[..., Any]:
    """Return SciPy's minimization.

    Raises
    ------
    SettingsError
        If SciPy is missing.
    """
    text = f"finetune_optimizer: {method} needs SciPy; pip install 'syncpretrain[scipy]'"
    found: Callable[..., Any] = needed("scipy.optimize", SettingsError(text)).minimize
    return found
