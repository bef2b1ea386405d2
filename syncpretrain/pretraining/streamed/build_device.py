"""Build the layers of a streamed run on devices."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from syncpretrain.backends.base import Backend
from syncpretrain.learners.select import step_for
from syncpretrain.pretraining.build import build_learner, build_stopping
from syncpretrain.pretraining.memory import pretraining_bytes
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.streamed.device_layer import DeviceStreamedLayer
from syncpretrain.pretraining.runtime.streamed.device_rings import DeviceRings
from syncpretrain.pretraining.runtime.streamed.device_sources import (
    DeviceSource,
    RingRuns,
    data_runs,
)
from syncpretrain.pretraining.runtime.streamed.local import LocalStream
from syncpretrain.pretraining.runtime.streamed.rings import DataSource
from syncpretrain.pretraining.streamed.places import LayerPlace
from syncpretrain.pretraining.streamed.sizes import StreamSize, held_rows
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
    """

    def __init__(self, layers: Sequence[DeviceStreamedLayer], inputs: Split) -> None:
        super().__init__(layers)
        self.inputs = inputs
        self._streams = [layer.learner.stream for layer in layers]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for what is queued: the memory that it uses is soon that of others."""
        try:
            for stream in self._streams:
                stream.synchronize()
        except RuntimeError:
            if kind is None:  # else the device says again why it failed
                raise


def device_stream(
    settings: PretrainSettings,
    data: DataSource,
    places: Sequence[LayerPlace],
    backend: Backend,
    size: StreamSize,
) -> DeviceStream:
    """Return the layers of a stream, each on its own device, with the rings between them.

    Parameters
    ----------
    settings : PretrainSettings
    data : DataSource
    places : sequence of LayerPlace
        From the lowest layer up.
    backend : Backend
        Whose devices the layers are dealt to.
    size : StreamSize
    """
    passes = data.passes
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
            rings = DeviceRings.of(place.above, reader)
            layer.connect(rings, place.handed_up)
            source = RingRuns(rings, passes)
            reader.synchronize()
        layers.append(layer)
    return DeviceStream(layers, runs.inputs)
