"""A layer on a rank that trains on versions: an epoch an order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from syncpretrain.cluster.group import AgreedStop
from syncpretrain.kernels.program import PhaseRunner
from syncpretrain.pretraining.runtime.activations import transform
from syncpretrain.pretraining.runtime.child_loop import sendable
from syncpretrain.pretraining.runtime.messages import Failed, Finished, Message
from syncpretrain.pretraining.runtime.process_messages import Report
from syncpretrain.pretraining.runtime.ranks.handing_up import KeptVersions
from syncpretrain.pretraining.runtime.ranks.layers import HeldLayer
from syncpretrain.pretraining.runtime.ranks.messages import EpochLayer, HandUp, RankOrder, port
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.worker import LayerWorker
from syncpretrain.schedule.epochs import Train

__all__ = ["HeldEpochs"]


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
        # Each rank computes all of them, and leaves only if all do.
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


class HeldEpochs(HeldLayer[EpochLayer]):
    """A layer that trains on versions, and hands up those that the layer above asks for."""

    _handing: threading.Thread | None = None

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        try:
            data = self._job.data
            assert isinstance(data, Split)
            kept = KeptVersions(data, keeps=self._hands_up)
            inputs = _Inputs(data, self.agreed, kept, self._take_activations)
            worker: LayerWorker = self._place.worker_factory(inputs, *self.sharing)
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
        return bool(self._place.ranks_above) and self.leads

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
                    for rank in self._place.ranks_above if found is not None else ():
                        self._transport.send(rank, above, found)
                elif order.layer == self.number:
                    kept.drop(order.version)
                else:
                    kept.drop_input(order.version)
        except BaseException as error:  # of this thread alone; rank 0 ends the run
            self._report(Failed(Train(0, 0, 0, 0), error))

    def _report(self, message: Message, computed: bool = False) -> None:
        trace = ""
        if not self.is_to_answer(message.error if isinstance(message, Failed) else None):
            return
        if isinstance(message, Failed):
            error, trace = sendable(message.error, self.number, message.command.epoch)
            message = replace(message, error=error)
        self.send("reports", (self.number, Report(message, computed, trace)))
