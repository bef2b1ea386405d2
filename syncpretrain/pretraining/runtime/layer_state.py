"""State of a layer between two minibatches: what is sent for a checkpoint, and kept there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from syncpretrain.learners.cursor import Cursor
from syncpretrain.models.layer import Layer

__all__ = ["LayerState", "StateKeeper", "StreamedLayerState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """Everything that a layer's next minibatch depends on: what a checkpoint keeps of it.

    ``step_state`` is that of its :class:`~syncpretrain.learners.steps.Step`. ``last_good`` is the
    layer at its last epoch's end, where a roll-back goes. ``cursor`` is where in the epoch after
    that it stands; ``stopping`` the state of early stopping. ``outputs``, on the host, are those
    of the versions by which its drift is measured.
    """

    layer: Layer
    step_state: dict[str, NDArray[np.float32]]
    last_good: Layer
    cursor: Cursor
    learning_rate: float
    rollbacks: int
    stopping: tuple[float, int] | None
    outputs: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)

    def to(self, device: Callable[[Any], Any]) -> LayerState:
        """Return the state with every array moved by ``device``."""
        return replace(
            self,
            layer=self.layer.to(device),
            step_state={name: device(array) for name, array in self.step_state.items()},
            last_good=self.last_good.to(device),
        )


class StateKeeper(Protocol):
    """Keeps states in the middle of an epoch, for another process to go on from."""

    @property
    def is_due(self) -> bool:
        """Whether the state is to be kept."""
        ...

    def keep(self, state: LayerState, warnings: tuple[str, ...]) -> None:
        """Keep a copy of a state, and the warnings of the epoch so far."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedLayerState:
    """One layer between two minibatches.

    ``position`` is the last minibatch that it processed. Of the running epoch, ``examples`` is how
    many its errors are summed over. ``steps`` is how many minibatches it trains on, fewer than was
    planned after an early stop, and None for as many. ``ring`` and ``passes`` hold, by number, the
    minibatches and the validation examples that it handed up and that the layer above has not
    processed.
    """

    position: int
    state: LayerState
    examples: int
    validation_error: float | None
    warnings: tuple[str, ...]
    ring: dict[int, NDArray[np.float32]]
    passes: dict[int, NDArray[np.float32]]
    steps: int | None = None
