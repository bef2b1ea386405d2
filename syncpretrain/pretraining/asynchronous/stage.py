"""Layers that an asynchronous run trains together, and the replicas that train them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from syncpretrain.data.order import minibatches
from syncpretrain.errors import CheckpointError
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.base import Learner
from syncpretrain.learners.select import step_for
from syncpretrain.parallel.replicas.server import AsyncRules, ParameterServer
from syncpretrain.parallel.replicas.steps import ReplicaFactory, part_of
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.build import build_learner
from syncpretrain.pretraining.state import AsyncState
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.workers.replicas import replicas_in

__all__ = ["LayerReplica", "Stage"]


class LayerReplica:
    """Layers that train on their own; see :class:`syncpretrain.parallel.replicas.steps.Replica`.

    Each layer reads the hidden means that the layer below computes from the minibatch before its
    own update. A layer that has trained all its epochs only hands up.

    Parameters
    ----------
    settings : PretrainSettings
    layers : sequence of int
        Numbers of layers that follow each other, counted from 1.
    data : sequence of one ndarray of shape (n_examples, visible)
        Input of the lowest layer.
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
                # As in a stream: the means from before the update, or else computed anew after it.
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
        # A replica trains on minibatches of one epoch at a time: the newest order is kept.
        if self._order[0] != epoch:
            own = self._settings
            order = minibatches(
                len(self._X), own.batch_size, seed=own.seed, layer=self._first, epoch=epoch
            )
            self._order = (epoch, list(order))
        return self._order[1]


FLEET = "fleet."


class Stage:
    """The learners here, which follow the server, and the replicas.

    Parameters
    ----------
    settings : PretrainSettings
    learners : sequence of Learner
        Successive layers; the replicas begin with their parameters.
    X : ndarray of shape (n_examples, visible)
        Input of the lowest layer.
    build : callable
        Returns a replica of these layers, given the data.
    report : callable
        Given a sentence for the user.
    times : Timeouts

    Attributes
    ----------
    layers : list of int
    errors : list of float
        Mean error of each layer in the last epoch.
    fleet : Fleet
    """

    def __init__(
        self,
        settings: PretrainSettings,
        learners: Sequence[Learner],
        X: Array,
        build: ReplicaFactory,
        report: Callable[[str], None],
        times: Timeouts,
    ) -> None:
        self.learners, self.layers = learners, [learner.layer for learner in learners]
        self.errors: list[float] = []
        self._arrays = [array for learner in learners for array in learner.parameters]
        self._flat = np.concatenate([array.reshape(-1) for array in self._arrays])
        s = settings
        rules = AsyncRules(
            push_every=s.push_every,
            fetch_every=s.fetch_every or s.push_every,
            rate=s.async_rate,
            compensation=s.delay_compensation,
            max_staleness=s.max_staleness,
        )
        self.fleet = replicas_in(
            s.runtime,
            ParameterServer(self._flat, rules, s.servers),
            rules,
            build,
            (X,),
            replicas=s.replicas[self.layers[0] - 1],
            delay=s.simulate_staleness,
            trims=s.trim_replicas,
            exchange=s.exchange,
            report=report,
            times=times,
        )

    def update(self) -> None:
        """Give the learners the parameters of the server."""
        at = 0
        for array in self._arrays:
            np.copyto(array, self._flat[at : at + array.size].reshape(array.shape))
            at += array.size

    def state(self) -> dict[str, Array]:
        """Return by name a copy of all that the replicas remember."""
        return {FLEET + name: array.copy() for name, array in self.fleet.state().items()}

    def load_state(self, state: AsyncState) -> None:
        """Load what the replicas remembered, if the state has any."""
        own = part_of(state.arrays, FLEET)
        try:
            if own:
                self.fleet.load_state(own)
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"resume: the replicas are of another run: {error}") from error
