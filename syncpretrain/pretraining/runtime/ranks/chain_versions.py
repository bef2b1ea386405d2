"""Versions whose activations are on other ranks alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from syncpretrain.errors import ScheduleError
from syncpretrain.models.layer import Layer
from syncpretrain.pretraining.runtime.activations import ActivationSource
from syncpretrain.pretraining.runtime.versions import Versions

__all__ = ["ChainVersions"]


class ChainVersions(Versions):
    """Versions of which only the snapshots are here.

    The reader of a version gets the chain of snapshots, one a layer, through which the data become
    its activations; or these themselves, where they are fewer bytes.

    Parameters
    ----------
    parameters : sequence of int
        Numbers of each layer's parameters.

    Attributes
    ----------
    on_release : callable or None
        Called with layer and version as that is released.
    """

    def __init__(self, *arguments: object, parameters: Sequence[int], **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.parameters = parameters
        self.on_release: Callable[[int, int], None] | None = None
        self._chains: dict[tuple[int, int], tuple[Layer, ...]] = {}

    def chain(self, layer: int, version: int, below: int) -> tuple[Layer, ...]:
        """Return the snapshots from layer 1 up to a version; none for the data.

        ``below`` is the version of the layer below that it was trained on.

        Raises
        ------
        ScheduleError
            If the version, or what it is computed from, is not held.
        """
        if layer == 0:
            return ()
        own = self._version(layer, version)
        if (layer, version) not in self._chains:
            if layer > 1 and (layer - 1, below) not in self._chains:
                raise ScheduleError(
                    f"version {below} of layer {layer - 1} was read before it was computed"
                )
            chain = self._chains[layer - 1, below] if layer > 1 else ()
            self._chains[layer, version] = (*chain, own.snapshot)
        return self._chains[layer, version]

    def source(self, layer: int, version: int, below: int) -> ActivationSource:
        """Refuse: the activations are on other ranks."""
        raise ScheduleError(f"version {version} of layer {layer} has no activations here")

    def compute(self, layer: int, version: int, snapshots: Sequence[Layer]) -> None:
        """Note the chain from which a version's reader computes the activations again."""
        self._version(layer, version).computed = True
        self._chains[layer, version] = tuple(snapshots)

    def release(self, layer: int, version: int) -> None:
        """Drop a version."""
        super().release(layer, version)
        self._chains.pop((layer, version), None)
        if self.on_release is not None:
            self.on_release(layer, version)
