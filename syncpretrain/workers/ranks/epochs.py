"""Whole epochs on ranks: the runtime on rank 0, and a layer that trains on versions elsewhere.

The reader of a version gets the parameters of all layers below, or the version's activations,
whichever are fewer numbers: parameters of 3 MB may stand for activations of 200 MB. The reader
computes the activations from the data, through one snapshot per layer. Where activations are sent,
the rank of the layer below computes them from the input on which the version was trained: the same
products in the same chunks, and so the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np

from syncpretrain.cluster.group import AgreedStop
from syncpretrain.cluster.job import Membership
from syncpretrain.errors import ScheduleError
from syncpretrain.kernels.program import PhaseRunner
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.timeouts import started_thread
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.activations import Split, transform
from syncpretrain.workers.epochs import Finished, LinkedEpochs, Message
from syncpretrain.workers.link import Obey, Raised
from syncpretrain.workers.ranks.placement import groups_of_layers
from syncpretrain.workers.ranks.run import RunRanks
from syncpretrain.workers.ranks.worker import Assignment, RankContext, port
from syncpretrain.workers.versions import Versions
from syncpretrain.workers.worker import EpochsRun, LayerWorker


class RemoteVersions(Versions):
    """Versions with activations on other ranks.

    Parameters
    ----------
    parameters : sequence of int
        Numbers of each layer's parameters.

    Attributes
    ----------
    on_release : callable or None
        Called with layer and version when a version is released.
    """

    def __init__(self, *arguments: object, parameters: Sequence[int], **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.parameters = parameters
        self.on_release: Callable[[int, int], None] | None = None

    def compute(self, layer: int, version: int, snapshots: Sequence[Layer]) -> None:
        """Record a version as computed: its reader is sent the snapshots, and computes it again."""
        self._take_buffer(layer, self._version(layer, version))
        self.record_computed(layer, version)

    def release(self, layer: int, version: int) -> None:
        """Drop a version."""
        super().release(layer, version)
        if self.on_release is not None:
            self.on_release(layer, version)


@dataclass(frozen=True, slots=True)
class RankOrder:
    """An epoch to train, and the chain of snapshots that makes the input from the data.

    ``chain`` is None in three cases: the rank has computed the input already, the layer reads the
    data, or the rank of the layer below sends the activations (``are_sent``).
    """

    command: Train
    chain: tuple[Layer, ...] | None
    are_sent: bool = False


@dataclass(frozen=True, slots=True)
class HandUp:
    """Message to a layer's rank: send the activations of a version to the layer above."""

    version: int


def layers_sent_activations(
    rows: int, hidden: Sequence[int], parameters: Sequence[int]
) -> frozenset[int]:
    """Return the layers, numbered from 1, that get activations rather than parameters.

    Parameters
    ----------
    rows : int
        Number of training and validation rows.
    hidden : sequence of int
        Hidden units of each layer.
    parameters : sequence of int
        Numbers of each layer's parameters.
    """
    # Instead of activations, a layer would get the parameters of all layers below it.
    below = zip(hidden[:-1], accumulate(parameters), strict=False)
    return frozenset(
        layer for layer, (width, numbers) in enumerate(below, start=2) if rows * width < numbers
    )


class KeptVersions:
    """Inputs of a layer on its rank, and versions of the layer to be handed up.

    One thread trains the layer; another thread hands versions up and drops them.

    Parameters
    ----------
    data : Split
    keeps : bool
        True keeps versions, to be handed up; False keeps only the newest input.

    Attributes
    ----------
    newest : Split or None
        The input that came last.
    """

    def __init__(self, data: Split, *, keeps: bool) -> None:
        self.newest: Split | None = None
        self._data, self._keeps = data, keeps
        # Guards the tables, never a computation: entries are never changed, so a reader may use an
        # entry after the lock is released.
        self._lock = threading.Lock()
        self._inputs = {0: data}  # layer 1 alone reads version 0
        self._snapshots: dict[int, tuple[Layer, int]] = {}  # with the version of the input

    def room(self, width: int) -> Split:
        """Return arrays for a new input; older values in the arrays are no longer needed."""
        if self.newest is not None and not self._keeps:  # no other thread reads the arrays
            return self.newest
        return Split(*(np.empty((len(rows), width), dtype=np.float32) for rows in self._data))

    def take_input(self, version: int, activations: Split) -> None:
        """Set the input of the next epochs."""
        self.newest = activations
        if self._keeps:
            with self._lock:
                self._inputs[version] = activations

    def publish(self, version: int, snapshot: Layer, reads: int) -> None:
        """Keep a version that was trained on a version of the layer below."""
        if self._keeps:
            with self._lock:
                self._snapshots[version] = snapshot, reads

    def activations(self, version: int, stop: Callable[[], bool]) -> Split | None:
        """Return the activations of a version, or None if ``stop`` turned true.

        Raises
        ------
        ScheduleError
            If the version, or the input on which it was trained, is not here.
        """
        with self._lock:
            snapshot, reads = self._snapshots.get(version, (None, 0))
            below = self._inputs.get(reads)
        if snapshot is None or below is None:
            raise ScheduleError(f"version {version} was to be handed up, but is not held")
        width = snapshot.shape.hidden
        found = Split(*(np.empty((len(rows), width), dtype=np.float32) for rows in self._data))
        return found if transform([snapshot], below, found, stop) else None

    def drop(self, version: int) -> None:
        """Drop a version of this layer."""
        with self._lock:
            self._snapshots.pop(version, None)

    def drop_input(self, version: int) -> None:
        """Drop a version of the layer below."""
        with self._lock:
            self._inputs.pop(version, None)


@dataclass(slots=True)
class _Inputs:
    """Input of a layer: the data, activations by a chain, or activations from another rank.

    ``take`` returns the activations from another rank, or None if the run ends first.
    """

    data: Split
    agreed: AgreedStop | None
    kept: KeptVersions
    take: Callable[[], Split | None]
    order: RankOrder = RankOrder(Train(0, 0, 0, 0), None)
    computed: bool = False

    def activations(
        self, layer: int, version: int, below: int, stop: Callable[[], bool], run: PhaseRunner
    ) -> Split | None:
        """Return the activations that the order describes, or None if ``stop`` turned true."""
        if self.agreed is None:
            return self._activations(layer, version, stop, run)
        # Each rank computes all activations, and stops only if all ranks stop: the others would
        # wait in the next step for a rank that left alone.
        found = self._activations(layer, version, self.agreed.asked, run)
        return None if self.agreed.agree() else found

    def _activations(
        self, layer: int, version: int, stop: Callable[[], bool], run: PhaseRunner
    ) -> Split | None:
        if layer == 0:
            return self.data
        # With neither a chain nor sent activations, the input is the same as in the last epoch.
        chain, found = self.order.chain, self.kept.newest
        if self.order.are_sent:
            found = self.take()
        elif chain is not None:
            found = self.kept.room(chain[-1].shape.hidden)
            if not transform(chain, self.data, found, stop, run):
                return None
        else:
            return found
        if found is not None:
            self.kept.take_input(version, found)
            self.computed = True
        return found


class RanksRuntime(LinkedEpochs):
    """Layers on other ranks.

    Parameters
    ----------
    run : EpochsRun
        Its worker factories can be sent to another rank; its versions are RemoteVersions.
    own : Membership
        Membership of this process, rank 0.
    """

    def __init__(self, run: EpochsRun, own: Membership) -> None:
        assert isinstance(run.versions, RemoteVersions)
        versions, data = run.versions, run.versions.data
        widths = (data.train.shape[1], *versions.hidden)
        groups = groups_of_layers(widths, own.transport.size, run.shares)
        self._ranks = RunRanks(own, groups, run.times, data=data, blas_threads=run.blas_threads)
        super().__init__(self._ranks, run.times)
        self._run, self._versions = run, versions
        self._there: dict[int, int] = {}  # by layer: the version that the layer's rank has as input
        rows = sum(map(len, data))
        self._sent = layers_sent_activations(rows, versions.hidden, versions.parameters)
        self._kept = {layer - 1: set[int]() for layer in self._sent}  # versions on layers' ranks

    def _jobs(self) -> list[EpochAssignment]:
        self._versions.on_release = self._released
        groups = self._ranks.groups
        above = {layer - 1: groups[layer] for layer in self._sent}
        return [
            EpochAssignment(layer, factory, above.get(layer, ()), group=groups[layer])
            for layer, factory in enumerate(self._run.worker_factories, start=1)
        ]

    def _order(self, command: Train) -> RankOrder:
        layer, reads = command.layer, command.reads
        # Raises an error if the version is not held, or was trained on one that is not computed.
        self._versions.source(layer - 1, reads, command.below_reads)
        # Unknown until the rank reports: it may fail before it has computed the new input.
        has = self._there.pop(layer, None)
        lacks = layer > 1 and has != reads
        are_sent = lacks and reads in self._kept.get(layer - 1, ())
        if are_sent:
            self._ranks.send_first(layer - 1, "versions", HandUp(reads))
        if not lacks:
            self._there[layer] = reads
        chain = tuple(self._run.below(command)) if lacks and not are_sent else None
        return RankOrder(command, chain, are_sent)

    def _record(self, message: Message) -> None:
        layer, command = message.command.layer, message.command
        if message.computed:
            self._versions.record_computed(layer - 1, command.reads)
            self._there[layer] = command.reads
        if isinstance(message, Finished) and layer in self._kept:
            self._kept[layer].add(command.epoch)

    def _released(self, layer: int, version: int) -> None:
        """Tell the ranks of a layer and of the layer above to drop a version."""
        if version in self._kept.get(layer, ()):
            self._kept[layer].discard(version)
            self._ranks.send_first(layer, "versions", partial(KeptVersions.drop, version=version))
        if layer + 1 in self._kept:
            drop = partial(KeptVersions.drop_input, version=version)
            self._ranks.send_first(layer + 1, "versions", drop)

    def _close(self) -> list[str]:
        self._versions.on_release = None
        return super()._close()


@dataclass(frozen=True, slots=True)
class EpochAssignment(Assignment):
    """Job of a layer that trains on versions: its number and its ``WorkerFactory``.

    ``ranks_above`` are the ranks of the layer above, if they get activations from this rank.
    """

    reports_progress = True

    worker_factory: Callable[..., LayerWorker]
    ranks_above: tuple[int, ...] = ()

    @contextmanager
    def open(self, context: RankContext) -> Iterator[Obey]:
        """Return the context of the worker; see :class:`syncpretrain.workers.link.Job`."""
        assert context.data is not None
        data = Split(*context.data)
        hands_up = bool(self.ranks_above) and context.leads
        kept = KeptVersions(data, keeps=hands_up)
        take = partial(context.take, "activations", context.number)
        inputs = _Inputs(data, context.agreed, kept, take)
        worker = self.worker_factory(inputs, *context.sharing)
        worker.progress, worker.worker_count = context.progress, context.workers

        def obey(order: RankOrder) -> Message:
            inputs.order, inputs.computed = order, False
            message = worker.execute(order.command, context.stop)
            if isinstance(message, Finished):
                kept.publish(order.command.epoch, message.layer, order.command.reads)
            return replace(message, computed=inputs.computed)

        with closing(worker):
            if not hands_up:
                yield obey
                return
            # In a thread, so that the layer above does not wait for the end of an epoch.
            name = f"syncpretrain-layer-{context.number}-up"
            handing = started_thread(name, self._hand_up, context, kept)
            try:
                yield obey
            finally:
                transport = context.transport
                transport.send(transport.rank, context.port("versions"), None)
                handing.join()

    def _hand_up(self, context: RankContext, kept: KeptVersions) -> None:
        above = port(context.run, "activations", context.number + 1)
        try:
            while (order := context.next("versions")) is not None:
                if isinstance(order, HandUp):
                    # NumPy's error state belongs to a thread; the other thread reports divergence.
                    with np.errstate(over="ignore", invalid="ignore"):
                        found = kept.activations(order.version, context.should_stop)
                    for rank in self.ranks_above if found is not None else ():
                        context.transport.send(rank, above, found)
                else:
                    order(kept)  # a method that drops a version
        # The thread that trains may be in an epoch; this answer makes rank 0 end the run.
        except BaseException as error:
            context.answer(Raised(error))
