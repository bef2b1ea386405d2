"""Driver of a streamed run: layers train on each other's minibatches as these are computed.

The layers are built in this process, in others, on ranks or on devices. The threads of the pool
process the blocks; the driver's thread waits, emits the events of what was done, and saves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from syncpretrain.backends.base import Backend
from syncpretrain.data.blocks import StoredRows
from syncpretrain.data.minibatches import ArrayPasses
from syncpretrain.data.order import steps_per_epoch
from syncpretrain.errors import SettingsError, StalledError
from syncpretrain.events import EpochStarted, LayerFinished, Notice
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.signals import StopRequest
from syncpretrain.pretraining import memory
from syncpretrain.pretraining.build import (
    backend_of_layers,
    build_layer,
    rank_shares,
    threads_of_layers,
)
from syncpretrain.pretraining.runtimes import workers_of
from syncpretrain.pretraining.training import Driver, Watch
from syncpretrain.schedule.kinds import Reads
from syncpretrain.schedule.stream import StreamSchedule
from syncpretrain.settings.checks import parsed_shuffle
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.workers.activations import Split
from syncpretrain.workers.link import Job, Place, failure_of
from syncpretrain.workers.restarts import Restarts
from syncpretrain.workers.shared_memory import SharedSplits, check_runtime
from syncpretrain.workers.state import StreamState, refusing_others
from syncpretrain.workers.streamed import inputs
from syncpretrain.workers.streamed.base import EpochResult, LayerPart, Stream
from syncpretrain.workers.streamed.layer import StreamedLayer
from syncpretrain.workers.streamed.pool import StreamPool
from syncpretrain.workers.worker import PROBE_ROWS, LayerInTraining

if TYPE_CHECKING:
    from syncpretrain.cluster.group import AgreedStop


class DeviceStream(Stream):
    """Layers of this process that are trained on devices.

    Parameters
    ----------
    layers : sequence of StreamedLayer
        From the lowest up.
    data : Split
        The data as they were given.
    backend : Backend

    Attributes
    ----------
    inputs : Split
        The data on the device of the first layer; at the end as they were given.
    """

    def __init__(self, layers: Sequence[StreamedLayer], data: Split, backend: Backend) -> None:
        super().__init__(layers)
        self._own, self._data, self._backend = list(layers), data, backend
        self.inputs = layers[0].source.inputs or data

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
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


# A process that replaces another reads again from its ring what came after the kept state. The
# ring is longer by REREAD_BYTES of minibatches, within these two limits, and a state is kept at
# least once in that many: many, to keep states seldom.
REREAD_MINIBATCHES, MOST_REREAD = 64, 1024
REREAD_BYTES = 1 << 24
FROM_THE_DATA = 1 << 62  # is never overwritten


BuildLayer = Callable[..., LayerInTraining]
Jobs = Callable[[], Sequence[Job]]  # the job of each layer, as the workers are started


def build_streamed_layer(
    settings: PretrainSettings,
    part: LayerPart,
    below: Split | inputs.Rings,
    above: Split | inputs.Rings | None,
    shared: AgreedStop | None = None,
    *,
    backend: Backend = inputs.HOST,
    most: int = 1,
    beside: int = 0,
    build: BuildLayer = build_layer,
) -> StreamedLayer:
    """Return one layer, which reads ``below`` and hands up through ``above``, None at the top.

    A partial function of the settings and the part is fit to be sent to another process.
    ``build`` builds the learner. ``shared`` is of the ranks that make the layer's steps together,
    ``most`` the most minibatches of a run, and ``beside`` the bytes that the run needs on a device
    apart from the data.
    """
    place = backend.for_layer(part.layer)
    if part.below is not None:
        source: inputs.Source = inputs.RingSource(part.below.rings(below), part.passes, place)
    else:
        assert isinstance(below, Split)
        data = below, part.passes, place, most
        is_iterable = isinstance(below.train, ArrayPasses)
        source = inputs.PassesSource(*data) if is_iterable else inputs.RowsSource(*data, beside)
    hands_up, shards = part.above is not None, 1 if backend.devices() else None
    own = build(settings, part.layer, backend, shared, hands_up=hands_up, shards=shards)
    layer = StreamedLayer(own, part, source, most=most)
    if part.above is not None and above is not None:
        layer.connect(part.above.rings(above))
    place.synchronize()
    return layer


def _reread(
    settings: PretrainSettings, passes: inputs.Passes, restarts: Restarts | None
) -> list[int]:
    """Return by how many minibatches each ring is longer, for a process that reads them again."""
    widths = settings.layers[1:-1]
    if settings.runtime == "mpi":
        from syncpretrain.cluster.job import check_ranks
        from syncpretrain.workers.ranks.stream import AHEAD_MINIBATCHES

        check_ranks(settings.runtime, settings.precision)
        return [AHEAD_MINIBATCHES] * len(widths)
    if settings.runtime != "processes" or restarts is None or not restarts.most:
        return [0] * len(widths)
    fitting = [REREAD_BYTES // (FLOAT_BYTES * passes.size(1) * width) for width in widths]
    return [max(REREAD_MINIBATCHES, min(n, MOST_REREAD)) for n in fitting]


class StreamedPretraining(Driver):
    """One streamed run."""

    _no_replay = "handoff minibatch, expected none; a streamed run depends on its seed alone"

    def _build(self, data: Split) -> None:
        settings = self.settings
        self._backend = backend_of_layers(settings)
        self._threads = threads_of_layers(settings)
        self.slots = min(workers_of(settings), sum(self._threads))
        self._data = Split(data.train, data.validation[:PROBE_ROWS])
        self._steps = steps = steps_per_epoch(len(data.train), settings.batch_size)
        self.plans = settings.stream.plans(steps)
        self._build_layers(self._stream_size(steps))
        self._pool: StreamPool | None = None
        self._watch = Watch(self.emit, self._times)
        # The newest epochs that the observers know of, by layer.
        self._begun: dict[int, int] = {}
        self._ended: dict[int, int] = {}

    def _stream_size(self, steps: int) -> memory.StreamSize:
        """Return how many minibatches may wait between two layers; see :func:`stream_size`."""
        return memory.stream_size(self.settings, self._backend, steps)

    def _build_layers(self, size: memory.StreamSize) -> None:
        """Build all that depends on how many minibatches may wait between two layers."""
        self._size = size
        self._schedule = StreamSchedule(self.plans, **size._asdict(), epoch=self._steps)
        self._runtime = self._runtime_of_layers()
        self._layers = self._runtime.layers

    def _runtime_of_layers(self) -> Stream:
        """Return the runtime of the stream, to be entered as a context.

        Raises
        ------
        SettingsError
            If the system does not have it.
        """
        settings, train = self.settings, self._data.train
        check_runtime(settings.runtime)
        order = settings.batch_size, settings.seed, parsed_shuffle(settings.shuffle)
        passes = inputs.Passes(len(train), len(self._data.validation), *order)
        reread = _reread(settings, passes, self._restarts)
        parts = self._parts(passes, reread)
        if settings.runtime not in ("processes", "mpi"):
            return self._stream_here(parts)
        is_sent = settings.runtime == "processes" and getattr(train, "can_be_sent", False)
        if isinstance(train, ArrayPasses) and not is_sent:
            raise SettingsError(
                f"runtime: got {settings.runtime} with an iterable as X, expected threads or"
                " serial; an iterable stays in the process that it is in"
            )
        from syncpretrain.workers.streamed.remote import LinkedStream, RemoteLayer

        pairs, times = list(zip(parts, self._builds(), strict=True)), self._times
        layers = [
            RemoteLayer(p.layer, p.plan, passes.steps, partial(build, settings, p.layer), times)
            for p, build in pairs
        ]
        made = [partial(build_streamed_layer, settings, p, build=build) for p, build in pairs]
        on_ranks = settings.runtime == "mpi"
        found = self._on_ranks(parts, made) if on_ranks else self._in_processes(made, parts, reread)
        place, jobs = found
        return LinkedStream(place, layers, jobs, times, self._restarts)

    def _parts(self, passes: inputs.Passes, reread: Sequence[int]) -> list[LayerPart]:
        """Return each layer's part in the stream; ``reread`` minibatches make a ring longer."""
        parts: list[LayerPart] = []
        for i, plan in enumerate(self.plans):
            below, above, handed_up = parts[-1].above if parts else None, None, range(0)
            if i + 1 < len(self.plans):
                waiting, width = self._size.ring + reread[i], self.settings.layers[i + 1]
                held = memory.passes_in_ring(waiting, passes.steps), passes.held_out
                above = inputs.RingSize(waiting, passes.size(1), *held, width)
                handed_up = range(self.plans[i + 1].skipped + 1, self._schedule.ends[i + 1] + 1)
            parts.append(LayerPart(i + 1, plan, passes, below, above, handed_up))
        return parts

    def _in_processes(
        self,
        made: Sequence[Callable[..., StreamedLayer]],
        parts: Sequence[LayerPart],
        reread: Sequence[int],
    ) -> tuple[Place, Jobs]:
        """Return processes, which share the data and the rings, and what each of them trains."""
        from syncpretrain.workers.processes import Processes
        from syncpretrain.workers.streamed.job import StreamJob

        data, threads = self._data, self._threads
        place = Processes(self._times, restarts=self._restarts)

        def jobs() -> list[StreamJob]:
            # The first process reads a file, or an iterable that was made to be sent, itself.
            reads = isinstance(data.train, (StoredRows, ArrayPasses))
            memory: list[Any] = [data if reads else place.share(SharedSplits.of(data))]
            sizes = [part.above for part in parts if part.above is not None]
            memory += (place.share(SharedSplits.create(x.all_rows, x.width, 1)) for x in sizes)
            ends = memory, [*memory[1:], None], threads, [FROM_THE_DATA, *reread]
            return [StreamJob(build, *own) for build, *own in zip(made, *ends, strict=True)]

        return place, jobs

    def _on_ranks(
        self, parts: Sequence[LayerPart], made: Sequence[Callable[..., StreamedLayer]]
    ) -> tuple[Place, Jobs]:
        """Return the ranks of a job, and what each of them trains."""
        from syncpretrain.cluster.job import member
        from syncpretrain.workers.ranks.placement import groups_of_layers
        from syncpretrain.workers.ranks.run import RunRanks
        from syncpretrain.workers.ranks.stream import StreamAssignment

        settings, own = self.settings, member()
        groups = groups_of_layers(settings.layers, own.transport.size, rank_shares(settings))
        assignments = [
            StreamAssignment(
                number=part.layer,
                layer_factory=build,
                part=part,
                ranks_above=groups.get(part.layer + 1, ()),
                replicas=-(-settings.replicas[part.layer - 1] // len(groups[part.layer])),
                group=groups[part.layer],
            )
            for part, build in zip(parts, made, strict=True)
        ]
        # In every block a rank waits for rank 0.
        ranks = RunRanks(own, groups, self._times, data=self._data, is_eager=True)
        return ranks, lambda: assignments

    def _stream_here(self, parts: Sequence[LayerPart]) -> Stream:
        """Return layers of this process, on its cores or on devices, and the rings between them."""
        settings, backend, size = self.settings, self._backend, self._size
        below: Split | inputs.Rings = self._data
        passes, layers = parts[0].passes, []
        rows = memory.held_rows(settings, backend, steps=passes.steps, held_out=passes.held_out)
        sizes = {"examples": rows, "batch_size": settings.batch_size}
        beside = memory.pretraining_bytes(settings.shapes, **sizes)
        most = size.block if size.steps else 1
        how: dict[str, Any] = {"backend": backend, "most": most, "beside": beside}
        for part, build in zip(parts, self._builds(), strict=True):
            # The ring above comes behind the data, which ask how much of a device is left beside.
            layer = build_streamed_layer(settings, part, below, None, build=build, **how)
            if part.above is not None:
                own = backend.for_layer(part.layer)
                below = part.above.on(backend.for_layer(part.layer + 1), own)
                layer.connect(below)
                own.synchronize()
            layers.append(layer)
        is_here = not backend.devices()
        return Stream(layers) if is_here else DeviceStream(layers, self._data, backend)

    def _builds(self) -> Sequence[BuildLayer]:
        """Return what builds each layer.

        One a layer, with the parameters of :func:`syncpretrain.pretraining.build.build_layer`; fit
        to be sent to another process.
        """
        return [build_layer] * len(self.plans)

    def _opened(self) -> Stream:
        states = () if self.resume is None else self.resume.layers
        waiting = max((len(layer.ring) for layer in states), default=0)
        # The state may be from a runtime or a device with longer rings, with more minibatches in
        # them than the rings here could take.
        if waiting > self._size.ring:
            del self._runtime, self._layers  # a device has no room for both
            self._backend.free_unused()
            self._build_layers(self._size._replace(ring=waiting))
        return self._runtime

    @property
    def inputs(self) -> Split:
        """The data where the first layer is trained."""
        own = self._runtime
        return own.inputs if isinstance(own, DeviceStream) else self._data

    def state(self) -> StreamState:
        """Return all that the rest of the run depends on."""
        # Paused, every layer is between two minibatches, and no ring changes.
        with self._pool.paused() if self._pool is not None else nullcontext():
            # A layer that is at its end needs no minibatch more.
            ends = zip(self._layers[1:], self._schedule.ends[1:], strict=True)
            above = [x.position if x.position < end else None for x, end in ends]
            pairs = zip(self._layers, [*above, None], strict=True)
            states = [layer.state(position) for layer, position in pairs]
            return StreamState(tuple(states), self.done, self.history.curves())

    @property
    def done(self) -> tuple[int, ...]:
        """The epochs that each layer has finished."""
        return tuple(layer.epochs_done for layer in self._layers)

    def _newest(self) -> list[Layer]:
        return [layer.current() for layer in self._layers]

    def _past_reads(self) -> Reads:
        return tuple((0,) * n for n in self.done)

    def _busy(self) -> tuple[float, ...]:
        return tuple(layer.busy_seconds for layer in self._layers)

    def _emit_start(self, now: float) -> None:
        super()._emit_start(now)
        self._ended = {layer.number: layer.epochs_done for layer in self._layers}
        notice = self.settings.stream.notice()
        if notice is not None and not self._layers[0].position:  # not at a resume
            self.emit(Notice(now, notice))
        for layer in self._layers:
            if layer.is_trained:  # before the checkpoint
                self.emit(LayerFinished(now, layer.number))

    def _go_on(self) -> None:
        if self.resume is None:
            return
        for layer, state in zip(self._layers, self.resume.layers, strict=True):
            with refusing_others(f"the state of layer {layer.number} is of another layer"):
                layer.load_state(state)
            self._schedule.shorten(layer.number, layer.plan)
        self._schedule.go_to([layer.position for layer in self._layers])

    def _train(self, request: StopRequest) -> None:
        if self.settings.runtime == "serial":  # where this thread waits for an iterable
            request.interrupts = lambda: any(layer.is_waiting for layer in self._layers)
            for result in self._processed(request):
                self._take(result)
                self._save_epoch()
            return
        own = self._threads, request, self._times
        rests = self.save is not None
        with StreamPool(self._layers, self._schedule, self.slots, *own, rests=rests) as pool:
            self._pool = pool
            try:
                self._drive(pool, request)
            except StalledError:
                self._runtime.abandon()
                raise
            except Stopped:
                pool.stop()
                self._is_settled = pool.drain(self._times.drain) and self._runtime.settle()
                self._take_all(pool, is_stopped=True)
                raise
            finally:
                self._pool = None

    def _drive(self, pool: StreamPool, request: StopRequest) -> None:
        while not pool.is_finished:
            item = pool.next_result(self._times.tick)
            if item is not None:
                self._take(item)
            if item is not None and self.save is not None:
                with pool.paused():
                    self._take_all(pool)  # a state has no epoch that was not reported
                    self._save_epoch()
            self._runtime.check()
            self._tick()
            if request():
                raise Stopped
        self._take_all(pool)

    def _take_all(self, pool: StreamPool, *, is_stopped: bool = False) -> None:
        """Take what the threads have reported; after a stop also what lies behind their ends."""
        while (item := pool.next_result(0.0)) is not None:
            with suppress(Stopped) if is_stopped else nullcontext():
                self._take(item)

    def _save_epoch(self) -> None:
        if not all(layer.is_trained for layer in self._layers):
            self._save()

    def _processed(self, request: StopRequest) -> Iterator[EpochResult]:
        """Process the blocks in turn; yield the epochs that ended."""
        while (block := self._schedule.take()) is not None:
            layer = self._layers[block.layer - 1]
            try:
                results = layer.process(block, request)
            except KeyboardInterrupt:
                if request():  # while an iterable was waited for
                    raise Stopped from None
                raise
            except BaseException as error:
                failure = failure_of(block.layer, layer.epoch, error)
                raise failure from failure.__cause__
            self._schedule.done(block, layer.plan)
            yield from results
            self._tick()

    def _take(self, item: EpochResult | BaseException) -> None:
        """Report an epoch that a layer finished, or raise the error that ended it."""
        if isinstance(item, BaseException):
            raise item
        event, layer = item.event, item.event.layer
        self._begin(layer, event.epoch, event.started)
        for warning in item.warnings:
            self.notify(f"warning: {warning}")
        self.emit(event)
        self._hand_out(layer, item.marks)
        self._ended[layer] = event.epoch
        if item.is_last:
            self.emit(LayerFinished(time.monotonic(), layer))

    def _tick(self) -> None:
        """Report how far the running epochs are, a few times a second."""
        running = {
            layer.number: layer.epoch
            for layer in self._layers
            if layer.position > layer.plan.skipped and not layer.is_trained
        }
        for layer, epoch in running.items():
            # A thread may be in the next epoch before the driver has taken the end of the last:
            # observers get that end first.
            if epoch == self._ended[layer] + 1:
                self._begin(layer, epoch, time.monotonic())
        self._watch.tick(running, sum(self.done), lambda layer: self._layers[layer - 1].fraction)

    def _begin(self, layer: int, epoch: int, started: float) -> None:
        if self._begun.get(layer, 0) < epoch:
            self._begun[layer] = epoch
            self.emit(EpochStarted(started, layer, epoch, 0))
