"""A layer on a rank that trains on versions: an epoch an order.

The reader of a version gets the parameters of all layers below, or the version's activations,
whichever are fewer numbers. Where activations are sent, the rank of the layer computes them from
the input that it trained the version on: the same products in the same chunks, and so the same
bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from syncpretrain.cluster.group import AgreedStop
from syncpretrain.errors import ScheduleError
from syncpretrain.kernels.program import PhaseRunner
from syncpretrain.models.layer import Layer
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.activations import transform
from syncpretrain.workers.child import Report
from syncpretrain.workers.child_start import sendable
from syncpretrain.workers.interface import Failed, Finished, Message
from syncpretrain.workers.ranks.messages import EpochAssignment, HandUp, RankOrder, port
from syncpretrain.workers.ranks.worker import RankWorker
from syncpretrain.workers.split import Split
from syncpretrain.workers.worker import LayerWorker

__all__ = ["EpochWorker", "KeptVersions", "layers_sent_activations"]


def layers_sent_activations(
    rows: int, hidden: Sequence[int], parameters: Sequence[int]
) -> frozenset[int]:
    """Return the layers, numbered from 1, that are sent activations rather than parameters.

    Parameters
    ----------
    rows : int
        Number of training and validation rows.
    hidden : sequence of int
        Hidden units of each layer.
    parameters : sequence of int
        Numbers of each layer's parameters.
    """
    # Instead of activations, a layer would be sent the parameters of all layers below it.
    below = zip(hidden[:-1], accumulate(parameters), strict=False)
    return frozenset(
        layer for layer, (width, numbers) in enumerate(below, start=2) if rows * width < numbers
    )


class KeptVersions:
    """The input of a layer on its rank, and versions of the layer that may be handed up.

    One thread trains the layer, another one hands up and drops.

    Parameters
    ----------
    data : Split
    keeps : bool
        True to keep versions, to hand them up; false to keep the newest input alone.

    Attributes
    ----------
    newest : Split or None
        The input that came last.
    """

    def __init__(self, data: Split, *, keeps: bool) -> None:
        self.newest: Split | None = None
        self._data, self._keeps = data, keeps
        # Guards the tables, never a computation: what is in them is not changed any more, so a
        # reader may use it after the lock is released.
        self._lock = threading.Lock()
        self._inputs = {0: data}  # layer 1 alone reads version 0
        self._snapshots: dict[int, tuple[Layer, int]] = {}  # with the version it was trained on

    def room(self, width: int) -> Split:
        """Return arrays for an input; the values in them are no longer needed."""
        if self.newest is not None and not self._keeps:  # no other thread reads it
            return self.newest
        return Split(*(np.empty((len(rows), width), dtype=np.float32) for rows in self._data))

    def take_input(self, version: int, activations: Split) -> None:
        """Take the input that the next epochs train on."""
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
            If the version, or what it was trained on, is not here.
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


class _Inputs:
    """The input of a layer: the data, what they become through a chain, or what is sent.

    ``take`` returns the activations that are sent, or None if the run ends first.
    """

    def __init__(
        self,
        data: Split,
        agreed: AgreedStop | None,
        kept: KeptVersions,
        take: Callable[[], Split | None],
    ) -> None:
        self._data, self._agreed, self._kept, self._take = data, agreed, kept, take
        self.order = RankOrder(Train(0, 0, 0, 0), None)
        self.computed = False

    def activations(
        self,
        layer: int,
        version: int,
        below: int,
        stop: Callable[[], bool],
        run: PhaseRunner,
    ) -> Split | None:
        """Return the activations that the order describes, or None if ``stop`` turned true."""
        if self._agreed is None:
            return self._activations(layer, version, stop, run)
        # Each rank computes all activations, and stops only if all do: a rank that left alone would
        # be waited for in the next step.
        found = self._activations(layer, version, self._agreed.asked, run)
        return None if self._agreed.agree() else found

    def _activations(
        self, layer: int, version: int, stop: Callable[[], bool], run: PhaseRunner
    ) -> Split | None:
        if layer == 0:
            return self._data
        chain, found = self.order.chain, self._kept.newest
        if self.order.are_sent:
            found = self._take()
        elif chain is not None:
            found = self._kept.room(chain[-1].shape.hidden)
            if not transform(chain, self._data, found, stop, run):
                return None
        else:
            return found
        if found is not None:
            self._kept.take_input(version, found)
            self.computed = True
        return found


class EpochWorker(RankWorker[EpochAssignment]):
    """Trains a layer on versions, and hands up the versions that the layer above asks for."""

    _handing: threading.Thread | None = None

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        try:
            data = self._job.data
            assert isinstance(data, Split)
            kept = KeptVersions(data, keeps=self._hands_up)
            inputs = _Inputs(data, self.agreed, kept, self._take_activations)
            worker: LayerWorker = self._assignment.worker_factory(inputs, *self.sharing)
            worker.progress, worker.worker_count = self.progress, self.worker_count
            self._start_handing(kept)
            try:
                self._obey(worker, inputs, kept)
            finally:
                worker.close()
                if self._handing is not None:
                    self._transport.send(self._transport.rank, self._versions, None)
                    self._handing.join()
        except BaseException as error:  # construction failed; rank 0 reports it
            self._report(Failed(Train(0, 0, 0, 0), error))

    @property
    def _hands_up(self) -> bool:
        return bool(self._assignment.ranks_above) and self.leads

    @property
    def _versions(self) -> Any:
        return port(self._job.run, "versions", self.number)

    def _obey(self, worker: LayerWorker, inputs: _Inputs, kept: KeptVersions) -> None:
        while (order := self.next_order()) is not None:
            inputs.order, inputs.computed = order, False
            message = worker.execute(order.command, self.stop)
            if isinstance(message, Finished):
                kept.publish(order.command.epoch, message.layer, order.command.reads)
            self._report(message, inputs.computed)

    def _take_activations(self) -> Split | None:
        found: Split | None = self.take("activations", self.number)
        return found

    def _start_handing(self, kept: KeptVersions) -> None:
        """Start to hand up, in a thread: the layer above does not wait for an epoch's end."""
        if self._hands_up:
            name = f"syncpretrain-layer-{self.number}-up"
            self._handing = threading.Thread(target=self._hand_up, args=(kept,), name=name)
            self._handing.daemon = True
            self._handing.start()

    def _hand_up(self, kept: KeptVersions) -> None:
        above = port(self._job.run, "activations", self.number + 1)
        try:
            while (order := self._next(self._versions)) is not None:
                if isinstance(order, HandUp):
                    with np.errstate(over="ignore", invalid="ignore"):
                        found = kept.activations(order.version, self._should_stop)
                    for rank in self._assignment.ranks_above if found is not None else ():
                        self._transport.send(rank, above, found)
                elif order.layer == self.number:
                    kept.drop(order.version)
                else:
                    kept.drop_input(order.version)
        # The layer's own thread may be in an epoch; this report makes rank 0 end the run.
        except BaseException as error:
            self._report(Failed(Train(0, 0, 0, 0), error))

    def _report(self, message: Message, computed: bool = False) -> None:
        trace = ""
        if not self.is_to_answer(message.error if isinstance(message, Failed) else None):
            return
        if isinstance(message, Failed):
            error, trace = sendable(message.error, self.number, message.command.epoch)
            message = replace(message, error=error)
        self.send("reports", (self.number, Report(message, computed, trace)))
