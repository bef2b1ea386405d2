"""What a run has learned so far: each layer's newest version and state, and what it may need again.

The arrays are where the layers are trained; what is handed out, a stack or a cut, is on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from syncpretrain import __version__
from syncpretrain.backends.base import Backend
from syncpretrain.building import build_learners
from syncpretrain.cut import Cut, retained
from syncpretrain.data.scaling import Scaling
from syncpretrain.layer import Layer
from syncpretrain.runtime.messages import LayerState
from syncpretrain.schedule.machine import Past
from syncpretrain.settings import PretrainSettings
from syncpretrain.stack import Stack

__all__ = ["Learned"]


class Learned:
    """What the layers of one run have learned.

    Parameters
    ----------
    settings : PretrainSettings
    backend : Backend
        Where the layers are trained.
    """

    def __init__(self, settings: PretrainSettings, backend: Backend) -> None:
        self._settings, self._backend = settings, backend
        depth = len(settings.layers) - 1
        self._layers: list[Layer | None] = [None] * depth  # the newest of each
        self._states: list[LayerState | None] = [None] * depth
        self._snapshots: dict[tuple[int, int], Layer] = {}  # by layer and version

    def resume(self, cut: Cut) -> None:
        """Begin with what a cut holds."""
        self._snapshots = dict(cut.snapshots)
        self._states = list(cut.states)
        self._layers = [None if state is None else state.layer for state in cut.states]

    def note(self, layer: int, state: LayerState) -> None:
        """Take note of the state of a layer, counted from 1."""
        self._states[layer - 1], self._layers[layer - 1] = state, state.layer

    def publish(self, layer: int, version: int, snapshot: Layer) -> None:
        """Take note of a version of a layer, its newest."""
        self._layers[layer - 1] = self._snapshots[layer, version] = snapshot

    def forget(self, past: Past) -> None:
        """Drop the versions that will not be needed again."""
        kept = retained(past)
        self._snapshots = {key: layer for key, layer in self._snapshots.items() if key in kept}

    def stack(self, epochs: Sequence[int], scaling: Scaling | None) -> Stack:
        """Return the newest layers; ``epochs`` is how many each has trained."""
        fresh = build_learners(self._settings) if None in self._layers else []
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

    def cut(self, past: Past, made: list[tuple[int, int]]) -> Cut:
        """Return all that the rest of the run depends on."""
        snapshots = {
            key: self._snapshots[key].to(self._host(key[0])) for key in sorted(retained(past))
        }
        states = [
            None if state is None else state.to(self._host(layer))
            for layer, state in enumerate(self._states, start=1)
        ]
        return Cut(past, snapshots, made, tuple(states))

    def _host(self, layer: int) -> Callable[[Any], Any]:
        return self._backend.for_layer(layer).tohost
