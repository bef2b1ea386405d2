"""Conjugate gradients and L-BFGS, by SciPy, on large minibatches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import SettingsError
from syncpretrain.finetuning.trainable import Trainable
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.program import PhaseRunner, in_turn

__all__ = ["LINE_SEARCHES", "LineSearches"]

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
