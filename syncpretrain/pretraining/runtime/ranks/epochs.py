"""A layer on a rank that trains on versions: an epoch an order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from syncpretrain.cluster.group import AgreedStop
from syncpretrain.kernels.program import PhaseRunner
from syncpretrain.pretraining.runtime.activations import transform
from syncpretrain.pretraining.runtime.child_loop import sendable
from syncpretrain.pretraining.runtime.messages import Failed, Message
from syncpretrain.pretraining.runtime.process_messages import Report
from syncpretrain.pretraining.runtime.ranks.layers import HeldLayer
from syncpretrain.pretraining.runtime.ranks.messages import EpochLayer, RankOrder
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.worker import LayerWorker
from syncpretrain.pretraining.schedule.machine import Train

__all__ = ["HeldEpochs"]


class _ChainInputs:
    """The input of a layer: the data, or what they become through the chain of an order."""

    def __init__(self, data: Split, agreed: AgreedStop | None) -> None:
        self._data, self._agreed = data, agreed
        self._newest: Split | None = None
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
            return self._activations(layer, stop, run)
        # Each rank computes all of them, and leaves only if all do.
        found = self._activations(layer, self._agreed.asked, run)
        return None if self._agreed.agree() else found

    def _activations(self, layer: int, stop: Callable[[], bool], run: PhaseRunner) -> Split | None:
        if layer == 0:
            return self._data
        chain = self.order.chain
        if chain is not None:
            if self._newest is None:
                width = chain[-1].shape.hidden
                self._newest = Split(
                    *(np.empty((len(rows), width), dtype=np.float32) for rows in self._data)
                )
            if not transform(chain, self._data, self._newest, stop, run):
                return None
            self.computed = True
        return self._newest


class HeldEpochs(HeldLayer[EpochLayer]):
    """A layer that trains on versions."""

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        try:
            assert isinstance(self._job.data, Split)
            inputs = _ChainInputs(self._job.data, self.agreed)
            worker: LayerWorker = self._place.worker_factory(inputs, *self.sharing)
            worker.progress, worker.worker_count = self.progress, self.worker_count
            try:
                self._obey(worker, inputs)
            finally:
                worker.close()
        except BaseException as error:  # construction failed; rank 0 reports it
            self._report(Failed(Train(0, 0, 0, 0), error))

    def _obey(self, worker: LayerWorker, inputs: _ChainInputs) -> None:
        while (order := self.next_order()) is not None:
            inputs.order, inputs.computed = order, False
            message = worker.execute(order.command, self.stop)
            self._report(message, inputs.computed)

    def _report(self, message: Message, computed: bool = False) -> None:
        trace = ""
        if not self.is_to_answer(message.error if isinstance(message, Failed) else None):
            return
        if isinstance(message, Failed):
            error, trace = sendable(message.error, self.number, message.command.epoch)
            message = replace(message, error=error)
        self.send("reports", (self.number, Report(message, computed, trace)))
