"""Build the layers of a streamed run on devices."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from syncpretrain.backends.base import Backend
from syncpretrain.learners.select import step_for
from syncpretrain.pretraining.build import build_learner, build_stopping
from syncpretrain.pretraining.memory import held_rows, pretraining_bytes
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.streamed.device_layer import DeviceStreamedLayer
from syncpretrain.pretraining.runtime.streamed.device_rings import (
    DeviceRings,
    DeviceSource,
    RingRuns,
)
from syncpretrain.pretraining.runtime.streamed.device_sources import data_runs
from syncpretrain.pretraining.runtime.streamed.local import LocalStream
from syncpretrain.pretraining.runtime.streamed.rings import DataSource, RingSize
from syncpretrain.pretraining.streamed.places import layer_places
from syncpretrain.pretraining.streamed.sizes import StreamSize, passes_in_ring
from syncpretrain.schedule.stream import StreamPlan
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["DeviceStream", "device_stream"]


class DeviceStream(LocalStream):
    """Layers of this process that are trained on devices.

    Parameters
    ----------
    layers : sequence of DeviceStreamedLayer
        From the lowest up.
    inputs : Split
        The data where the first layer is trained.
    data : Split
        The same as they were given, which is all that is left of them at the end.
    backend : Backend
    """

    def __init__(
        self,
        layers: Sequence[DeviceStreamedLayer],
        inputs: Split,
        data: Split,
        backend: Backend,
    ) -> None:
        super().__init__(layers)
        self.inputs, self._data, self._backend = inputs, data, backend
        self._own = list(layers)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for what is queued, and give back the memory that it used: it is soon of others."""
        try:
            for layer in self._own:
                layer.learner.stream.synchronize()
            for layer in self._own:
                layer.release()
        except RuntimeError:
            if kind is None:  # else the device says again why it failed
                raise
        self._own.clear()
        self.inputs = self._data
        self._backend.free_unused()


def device_stream(
    settings: PretrainSettings,
    data: DataSource,
    plans: Sequence[StreamPlan],
    ends: Sequence[int],
    *,
    size: StreamSize,
    backend: Backend,
) -> DeviceStream:
    """Return the layers of a stream, each on its own device, with the rings between them.

    Parameters
    ----------
    settings : PretrainSettings
    data : DataSource
    plans : sequence of StreamPlan
        One a layer.
    ends : sequence of int
        The last minibatch that each layer processes.
    size : StreamSize
        Of its rings and blocks.
    backend : Backend
        Whose devices the layers are dealt to.
    """
    passes = data.passes
    held = passes_in_ring(size.ring, passes.steps), passes.held_out
    sizes = [RingSize(size.ring, passes.size(1), *held, width) for width in settings.layers[1:-1]]
    places = layer_places(plans, ends, passes, sizes)
    rows = held_rows(settings, backend, steps=passes.steps, held_out=passes.held_out)
    beside = pretraining_bytes(settings.shapes, examples=rows, batch_size=settings.batch_size)
    runs = data_runs(data, backend.for_layer(1), most=size.block, beside=beside)
    stopping = build_stopping(settings)
    source: DeviceSource = runs
    layers = []
    for place in places:
        learner = build_learner(settings, place.layer, backend)
        layer = DeviceStreamedLayer(
            *(learner, step_for(learner, 1, "examples"), place.plan, source, passes),
            stopping[place.layer - 1],
            most=size.block,
        )
        if place.above is not None:
            reader = backend.for_layer(place.layer + 1)
            rings = DeviceRings.of(place.above, reader, learner.backend)
            layer.connect(rings, place.handed_up)
            source = RingRuns(rings, passes)
            reader.synchronize()
        layers.append(layer)
    return DeviceStream(layers, runs.inputs, data.data, backend)
