"""A server of a slice of the parameters on a rank: what rank 0 decides, in that order."""

from __future__ import annotations

from typing import Any

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.pool import Failed
from syncpretrain.parallel.replicas.server import ServerSlice
from syncpretrain.pretraining.runtime.child_loop import sendable
from syncpretrain.pretraining.runtime.ranks.layers import HeldLayer
from syncpretrain.pretraining.runtime.ranks.messages import (
    ReplicaAnswer,
    SendSlice,
    ServerPlace,
    SetSlice,
    SliceOf,
    TakeChange,
    port,
)

__all__ = ["HeldServer"]


class HeldServer(HeldLayer[ServerPlace]):
    """A slice of the parameters, which replicas fetch from here and whose changes come here.

    A replica's change is on its way before rank 0 knows of it, so waiting for one that rank 0 has
    decided about ends.
    """

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        self._slice: ServerSlice | None = None
        self._sent: dict[int, Array] = {}  # to each replica last, for the compensation
        try:
            while (order := self.next_order()) is not None:
                self._obey(order)
        except BaseException as error:
            failed = Failed(*sendable(error, 0, 0))
            self.send("answers", ReplicaAnswer(self.number, failed))

    def _obey(self, order: Any) -> None:
        if isinstance(order, SetSlice):
            own = (np.array(order.parameters), np.array(order.mean_square))
            self._slice = ServerSlice(*own, self._place.rules)
            return
        part = self._slice
        assert part is not None
        if isinstance(order, SendSlice):
            values = self._sent[order.replica] = part.parameters.copy()
            to = port(self._job.run, "slices", order.replica)
            rank = self._place.replicas[order.replica]
            self._transport.send(rank, to, SliceOf(self.number, values))
        elif isinstance(order, TakeChange):
            found = self.take(f"change {self.number}", order.replica)
            if found is not None and order.share is not None:
                part.add(np.array(found.values), order.share, self._sent[order.replica])
        else:
            report = SliceOf(self.number, part.parameters.copy(), part.mean_square.copy())
            self.send("reports", report)
