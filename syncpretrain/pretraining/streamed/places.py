"""The part of each layer in a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncpretrain.pretraining.runtime.streamed.rings import Passes, RingSize
from syncpretrain.schedule.stream import StreamPlan

__all__ = ["LayerPlace", "layer_places"]


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """One layer's part in a stream: its plan, its input, and the minibatches that it hands up.

    ``below`` is None for layer 1, ``above`` for the last layer.
    """

    layer: int
    plan: StreamPlan
    passes: Passes
    below: RingSize | None
    above: RingSize | None
    handed_up: range


def layer_places(
    plans: Sequence[StreamPlan], ends: Sequence[int], passes: Passes, sizes: Sequence[RingSize]
) -> list[LayerPlace]:
    """Return each layer's part in the stream."""
    handed_up = [range(p.delay + 1, n + 1) for p, n in zip(plans[1:], ends[1:], strict=True)]
    return [
        LayerPlace(i + 1, plan, passes, below, above, numbers)
        for i, (plan, below, above, numbers) in enumerate(
            zip(plans, [None, *sizes], [*sizes, None], [*handed_up, range(0)], strict=True)
        )
    ]
