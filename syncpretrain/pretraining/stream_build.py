"""Build the layers of a streamed run, with rings between them."""

from __future__ import annotations

from collections.abc import Sequence

from syncpretrain.learners.base import Learner
from syncpretrain.learners.select import step_for
from syncpretrain.pretraining.runtime.rings import DataSource, Ring, RingSource, Source
from syncpretrain.pretraining.runtime.stream import StreamedLayer
from syncpretrain.pretraining.schedule.stream import StreamPlan
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["connected_layers"]


def connected_layers(
    settings: PretrainSettings,
    learners: Sequence[Learner],
    data: DataSource,
    plans: Sequence[StreamPlan],
    ends: Sequence[int],
    *,
    ring: int,
) -> list[StreamedLayer]:
    """Return the layers, from the lowest up, each of which hands up what the next one reads.

    Parameters
    ----------
    settings : PretrainSettings
    learners : sequence of Learner
        One a layer.
    data : DataSource
    plans : sequence of StreamPlan
        One a layer.
    ends : sequence of int
        The last minibatch that each layer processes.
    ring : int
        Minibatches that may wait between two layers.
    """
    source: Source = data
    layers: list[StreamedLayer] = []
    for i, learner in enumerate(learners):
        if i:
            width, numbers = settings.layers[i], range(plans[i].delay + 1, ends[i] + 1)
            minibatches = Ring(ring, data.size(1), width)
            passes = Ring(ring // data.steps + 2, data.held_out, width)
            layers[i - 1].connect(minibatches, passes, numbers)
            source = RingSource(minibatches, passes, data)
        step = step_for(learner, settings.shards_of(i + 1), settings.split)
        layers.append(StreamedLayer(learner, step, plans[i], source, data))
    return layers
