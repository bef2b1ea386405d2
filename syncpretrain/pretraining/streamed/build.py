"""Build the layers of a streamed run: in this process, in others, on ranks or on devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from syncpretrain.backends.base import Backend
from syncpretrain.data.blocks import StoredRows
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.learners.select import step_for
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.pretraining.build import build_learner, build_stopping, rank_shares, step_on_ranks
from syncpretrain.pretraining.memory import held_rows, pretraining_bytes
from syncpretrain.pretraining.streamed.sizes import StreamSize, passes_in_ring
from syncpretrain.schedule.stream import StreamPlan
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.workers.restarts import Restarts
from syncpretrain.workers.shared_memory import check_runtime
from syncpretrain.workers.split import Split
from syncpretrain.workers.streamed.base import StreamRuntime
from syncpretrain.workers.streamed.device_inputs import (
    DeviceRings,
    DeviceSource,
    RingRuns,
    data_runs,
)
from syncpretrain.workers.streamed.device_layer import DeviceStreamedLayer
from syncpretrain.workers.streamed.inputs import (
    DataSource,
    Passes,
    PassesSource,
    RingSize,
    RingSource,
    Source,
    source_of,
)
from syncpretrain.workers.streamed.layer import StreamedLayer
from syncpretrain.workers.streamed.local import (
    LocalStream,
    StreamedLayerFactory,
    built_layers,
)

if TYPE_CHECKING:
    from syncpretrain.cluster.group import AgreedStop
    from syncpretrain.workers.ranks.messages import StreamAssignment

__all__ = [
    "DeviceStream",
    "LayerPlace",
    "build_streamed_layer",
    "device_stream",
    "layer_places",
    "stream_runtime",
]


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


class DeviceStream(LocalStream):
    """Layers of this process that are trained on devices.

    Parameters
    ----------
    layers : sequence of DeviceStreamedLayer
        From the lowest up.
    inputs : Split
        The data on the device of the first layer.
    data : Split
        The same data as they were given: ``inputs`` at the end.
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
        """Wait for what is queued, then give back the memory that it uses."""
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
        Minibatches of its rings and blocks.
    backend : Backend
        The layers are dealt to its devices.
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


# A process that replaces another reads again from its ring what came after the kept state. The
# ring is longer by REREAD_BYTES of minibatches, within these two limits, and a state is kept at
# least once in that many: many, to keep states seldom.
REREAD_MINIBATCHES, MOST_REREAD = 64, 1024
REREAD_BYTES = 1 << 24
FROM_THE_DATA = 1 << 62  # is never overwritten


def stream_runtime(
    settings: PretrainSettings,
    data: DataSource,
    plans: Sequence[StreamPlan],
    ends: Sequence[int],
    *,
    size: StreamSize,
    times: Timeouts = TIMEOUTS,
    restarts: Restarts | None = None,
) -> StreamRuntime:
    """Return the runtime of a streamed run with NumPy, to be entered as a context.

    Parameters
    ----------
    settings : PretrainSettings
    data : DataSource
    plans : sequence of StreamPlan
        One a layer.
    ends : sequence of int
        The last minibatch that each layer processes.
    size : StreamSize
        Minibatches of its rings and blocks.
    times : Timeouts
    restarts : Restarts, optional
        For processes that die.

    Raises
    ------
    SettingsError
        If the system does not have it.
    """
    check_runtime(settings.runtime)
    passes = data.passes
    reread = _reread(settings, passes, restarts)
    sizes = [
        RingSize(n, passes.size(1), passes_in_ring(n, passes.steps), passes.held_out, width)
        for n, width in zip([size.ring + n for n in reread], settings.layers[1:-1], strict=True)
    ]
    places = layer_places(plans, ends, passes, sizes)
    shared = data.data
    source: DataSource | None = data
    if settings.runtime in ("processes", "mpi"):
        shared, source = _shared(settings, data)
    layer_factories = [
        partial(build_streamed_layer, settings, place, source if place.below is None else None)
        for place in places
    ]
    if settings.runtime not in ("processes", "mpi"):
        return LocalStream(built_layers(layer_factories, shared, sizes))
    from syncpretrain.workers.streamed.remote import RemoteLayer

    layers = [
        RemoteLayer(p.layer, p.plan, passes.steps, partial(_untrained, settings, p.layer), times)
        for p in places
    ]
    if settings.runtime == "processes":
        from syncpretrain.workers.streamed.processes import ProcessStream

        rest = (settings.replicas, times, restarts, [FROM_THE_DATA, *reread])
        return ProcessStream(layer_factories, layers, shared, sizes, *rest)
    from syncpretrain.cluster.job import member
    from syncpretrain.workers.ranks.run import RunRanks
    from syncpretrain.workers.ranks.streamed_run import RankStream

    ranks = RunRanks(member(), settings.layers, times, rank_shares(settings))
    held = _held_layers(settings, places, layer_factories, ranks.groups)
    return RankStream(held, layers, shared, ranks, times)


def _held_layers(
    settings: PretrainSettings,
    places: Sequence[LayerPlace],
    factories: Sequence[StreamedLayerFactory],
    groups: Mapping[int, tuple[int, ...]],
) -> list[StreamAssignment]:
    """Return the layers as ranks are to hold them."""
    from syncpretrain.workers.ranks.messages import StreamAssignment

    return [
        StreamAssignment(
            layer=place.layer,
            layer_factory=factory,
            passes=place.passes,
            below=place.below,
            above=place.above,
            handed_up=place.handed_up,
            ranks_above=groups.get(place.layer + 1, ()),
            replicas=-(-settings.replicas[place.layer - 1] // len(groups[place.layer])),
            group=groups[place.layer],
        )
        for place, factory in zip(places, factories, strict=True)
    ]


def build_streamed_layer(
    settings: PretrainSettings,
    place: LayerPlace,
    data: DataSource | None,
    below: Split,
    above: Split | None,
    shared: AgreedStop | None = None,
) -> StreamedLayer:
    """Return one layer, which reads one memory and hands up through another, None at the top.

    Layer 1 reads ``data``, or the memory where there is none.
    It is fit to be sent to another process as a partial function of the others. ``shared`` is of
    the ranks that make its steps together.
    """
    source: Source
    if place.below is None:
        source = source_of(settings, below) if data is None else data
    else:
        source = RingSource(place.below.rings(below), place.passes)
    learner = build_learner(settings, place.layer)
    step = step_for(learner, settings.shards_of(place.layer), settings.split_of(place.layer))
    if shared is not None:
        step = step_on_ranks(step, shared, hands_up=place.above is not None)
    stopping = build_stopping(settings)[place.layer - 1]
    layer = StreamedLayer(learner, step, place.plan, source, place.passes, stopping)
    if place.above is not None and above is not None:
        layer.connect(place.above.rings(above), place.handed_up)
    return layer


def _shared(settings: PretrainSettings, data: DataSource) -> tuple[Split, DataSource | None]:
    """Return what processes share of the data, and what the first of them is sent."""
    if isinstance(data.data.train, StoredRows):  # which it reads from the file
        row = np.zeros((1, settings.layers[0]), dtype=np.float32)  # shared memory is never empty
        return Split(row, row[:0]), data
    if isinstance(data, PassesSource):
        raise SettingsError(
            f"runtime: got {settings.runtime} with an iterable as X, expected threads or serial; an"
            " iterable stays in the process that it is in"
        )
    return data.data, None


def _reread(settings: PretrainSettings, passes: Passes, restarts: Restarts | None) -> list[int]:
    """Return by how many minibatches each ring is longer, for a process that reads them again."""
    widths = settings.layers[1:-1]
    if settings.runtime == "mpi":
        from syncpretrain.cluster.job import check_ranks
        from syncpretrain.workers.ranks.stream_worker import AHEAD_MINIBATCHES

        check_ranks(settings.runtime, settings.precision)
        return [AHEAD_MINIBATCHES] * len(widths)
    if settings.runtime != "processes" or restarts is None or not restarts.most:
        return [0] * len(widths)
    fitting = [REREAD_BYTES // (FLOAT_BYTES * passes.size(1) * width) for width in widths]
    return [max(REREAD_MINIBATCHES, min(n, MOST_REREAD)) for n in fitting]


def _untrained(settings: PretrainSettings, layer: int) -> Layer:
    return build_learner(settings, layer).snapshot()
