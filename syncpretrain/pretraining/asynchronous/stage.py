"""Layers that an asynchronous run trains together, and their replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from syncpretrain.errors import CheckpointError
from syncpretrain.kernels.arrays import Array
from syncpretrain.learners.base import Learner
from syncpretrain.parallel.replicas.server import AsyncRules, ParameterServer
from syncpretrain.parallel.replicas.steps import ReplicaFactory, part_of
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.asynchronous.state import AsyncState
from syncpretrain.pretraining.runtime.ranks.replicas import RankReplicas, WindowReplicas
from syncpretrain.pretraining.runtime.replicas import replicas_in
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["Stage"]

FLEET = "fleet."
ON_RANKS = {"messages": RankReplicas, "windows": WindowReplicas}


class Stage:
    """The learners here, which follow the server, and the replicas.

    Parameters
    ----------
    settings : PretrainSettings
    learners : sequence of Learner
        Of layers that follow each other; the replicas begin with their parameters.
    X : ndarray of shape (n_examples, visible)
        What the lowest of them reads.
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
            on_ranks=ON_RANKS[s.exchange],
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
