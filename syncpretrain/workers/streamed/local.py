"""Streamed layers in this process, trained by its threads."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Sequence
from types import TracebackType

from syncpretrain.workers.interface import STDERR
from syncpretrain.workers.split import Split
from syncpretrain.workers.streamed.base import BaseStreamedLayer
from syncpretrain.workers.streamed.inputs import RingSize

__all__ = ["LocalStream", "StreamedLayerFactory", "built_layers"]

# Builds a layer in whichever process trains it, given the memory that it reads, and the memory
# through which it hands up, if it does.
StreamedLayerFactory = Callable[[Split, Split | None], BaseStreamedLayer]


def built_layers(
    layer_factories: Sequence[StreamedLayerFactory], data: Split, sizes: Sequence[RingSize]
) -> list[BaseStreamedLayer]:
    """Return layers from the lowest up, on memory of this process.

    ``data`` is what layer 1 reads, and ``sizes`` are of what lies between two layers.
    """
    memory = [data, *(size.memory() for size in sizes)]
    return [
        build(below, above)
        for build, below, above in zip(layer_factories, memory, [*memory[1:], None], strict=True)
    ]


class LocalStream:
    """Layers without a process of their own.

    Parameters
    ----------
    layers : sequence of BaseStreamedLayer
        From the lowest up.
    """

    def __init__(self, layers: Sequence[BaseStreamedLayer]) -> None:
        self.layers = layers

    def __enter__(self) -> LocalStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave everything as it is: it holds nothing but memory."""

    def check(self) -> None:
        """Find nothing: a layer here is lost with everything else."""

    def settle(self) -> bool:
        """Return True: what the threads have left is whole."""
        return True

    def abandon(self) -> None:
        """Write on stderr where every thread stands; none can be ended from outside."""
        faulthandler.dump_traceback(STDERR)
