"""Trained layers of a run so far: each layer's newest version and state, and its retained versions.

The arrays are where the layers are trained; what is handed out, a stack or a state, is on the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from syncpretrain import __version__
from syncpretrain.backends.base import Backend
from syncpretrain.data.scaling import Scaling
from syncpretrain.learners.base import Learner
from syncpretrain.models.layer import Layer
from syncpretrain.models.stack import Stack
from syncpretrain.observers.errors import ErrorCurve
from syncpretrain.pretraining.runtime.layer_state import LayerState
from syncpretrain.pretraining.state import PretrainState
from syncpretrain.schedule.epochs import Past, Release, Train
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["TrainedLayers"]


@dataclass(slots=True)
class _Kept:
    """A version that is held, or that a held one's activations were computed through."""

    snapshot: Layer
    below: tuple[int, int]  # layer and version that it was trained on
    uses: int  # 1 if it is held, and 1 for each kept version that was trained on it


class TrainedLayers:
    """Trained layers of one run.

    Parameters
    ----------
    settings : PretrainSettings
    backend : Backend
        Where the layers are trained.
    learners : callable
        Returns a learner a layer, for those that have not trained yet.
    """

    def __init__(
        self,
        settings: PretrainSettings,
        backend: Backend,
        learners: Callable[[], Sequence[Learner]],
    ) -> None:
        self._settings, self._backend, self._learners = settings, backend, learners
        depth = len(settings.layers) - 1
        self._layers: list[Layer | None] = [None] * depth  # the newest of each
        self._states: list[LayerState | None] = [None] * depth
        self._kept: dict[tuple[int, int], _Kept] = {}  # by layer and version

    def resume(self, state: PretrainState) -> None:
        """Begin with the layers and versions of a state."""
        held = {(i, version) for i, row in enumerate(state.past.held, start=1) for version in row}
        uses = Counter(held)
        for layer, version in sorted(state.snapshots, reverse=True):
            if uses[layer, version]:
                below = layer - 1, state.past.reads[layer - 1][version - 1]
                snapshot = state.snapshots[layer, version]
                self._kept[layer, version] = _Kept(snapshot, below, uses[layer, version])
                uses[below] += 1
        self._states = list(state.states)
        self._layers = [None if own is None else own.layer for own in state.states]

    def record_state(self, layer: int, state: LayerState) -> None:
        """Record the state of a layer, counted from 1."""
        self._states[layer - 1], self._layers[layer - 1] = state, state.layer

    def publish(self, command: Train, snapshot: Layer) -> None:
        """Record the version of a layer that an epoch resulted in, its newest."""
        self._layers[command.layer - 1] = snapshot
        below = command.layer - 1, command.reads
        self._kept[command.layer, command.epoch] = _Kept(snapshot, below, uses=1)
        if below in self._kept:  # it is a version, not the data
            self._kept[below].uses += 1

    def release(self, command: Release) -> None:
        """Drop a version, and those below that were kept for its sake, once no other needs them."""
        key = command.layer, command.version
        while key in self._kept:
            kept = self._kept[key]
            kept.uses -= 1
            if kept.uses:
                break
            del self._kept[key]
            key = kept.below

    def stack(self, epochs: Sequence[int], scaling: Scaling | None) -> Stack:
        """Return the newest layers; ``epochs`` is how many each has trained."""
        fresh = self._learners() if None in self._layers else []
        layers = [
            fresh[i].snapshot() if layer is None else layer.to(self._host(i + 1))
            for i, layer in enumerate(self._layers)
        ]
        return Stack(
            tuple(layers),
            {
                "syncpretrain": __version__,
                "epochs": list(epochs),
                "pretrain": msgspec.json.decode(msgspec.json.encode(self._settings)),
            },
            scaling,
        )

    def salvaged(self, epochs: Sequence[int], scaling: Scaling | None) -> Stack | None:
        """Return the newest layers, None if a device that has failed does not give them back."""
        try:
            return self.stack(epochs, scaling)
        except RuntimeError:
            return None

    def state(
        self, past: Past, computed: list[tuple[int, int]], curves: tuple[ErrorCurve, ...] = ()
    ) -> PretrainState:
        """Return all that the rest of the run depends on."""
        snapshots = {
            key: kept.snapshot.to(self._host(key[0])) for key, kept in sorted(self._kept.items())
        }
        states = [
            None if own is None else own.to(self._host(layer))
            for layer, own in enumerate(self._states, start=1)
        ]
        return PretrainState(past, snapshots, computed, tuple(states), curves)

    def _host(self, layer: int) -> Callable[[Any], Any]:
        return self._backend.for_layer(layer).tohost
