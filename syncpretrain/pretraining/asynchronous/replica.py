"""Replica of one layer, or of several that train on the same minibatch, one above another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from syncpretrain.data.order import minibatches
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.select import step_for
from syncpretrain.pretraining.build import build_learner
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["LayerReplica"]


class LayerReplica:
    """Layers that train on their own; see :class:`syncpretrain.parallel.replicas.steps.Replica`.

    Each reads what the one below makes of the minibatch, before that is moved by it. A layer whose
    epochs are over only hands up.

    Parameters
    ----------
    settings : PretrainSettings
    layers : sequence of int
        Numbers of layers that follow each other, counted from 1.
    data : sequence of one ndarray of shape (n_examples, visible)
        What the lowest of them reads.
    """

    def __init__(
        self, settings: PretrainSettings, layers: Sequence[int], data: Sequence[Any]
    ) -> None:
        self._settings, self._X = settings, data[0]
        self._first = layers[0]
        self._learners = [build_learner(settings, layer) for layer in layers]
        self._training = [step_for(learner, 1, "examples") for learner in self._learners]
        rows = settings.batch_size
        self._handed = [
            np.empty((rows, learner.current().shape.hidden), np.float32)
            for learner in self._learners[:-1]
        ]
        self._all_rows = np.arange(rows)
        self._order: tuple[int, list[Any]] = (0, [])

    @property
    def parameters(self) -> list[Array]:
        """The parameters of all layers, from the lowest up."""
        return [array for learner in self._learners for array in learner.parameters]

    def train(self, epoch: int, step: int) -> list[float]:
        """Train on a minibatch of an epoch; return the summed error of each layer."""
        X, rows, errors = self._X, self._rows(epoch)[step], []
        for i, (learner, training) in enumerate(zip(self._learners, self._training, strict=True)):
            trains = epoch <= self._settings.epochs[learner.layer - 1]
            error = training.train_step(X, rows, epoch=epoch, step=step) if trains else 0.0
            errors.append(float(error))
            if i < len(self._handed):
                out = self._handed[i][: len(rows)]
                if not (trains and training.hand_up(out)):
                    learner.current().up(X[rows], out=out)
                X, rows = out, self._all_rows[: len(rows)]
        return errors

    def state(self) -> dict[str, Array]:
        """Return what the steps of the layers depend on beside the parameters."""
        return {
            f"layer{learner.layer}.{name}": array
            for learner, training in zip(self._learners, self._training, strict=True)
            for name, array in training.state().items()
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what :meth:`state` held."""
        for name, array in self.state().items():
            np.copyto(array, state[name])

    def _rows(self, epoch: int) -> list[Any]:
        if self._order[0] != epoch:
            own = self._settings
            order = minibatches(
                len(self._X), own.batch_size, seed=own.seed, layer=self._first, epoch=epoch
            )
            self._order = (epoch, list(order))
        return self._order[1]
