"""A replica of asynchronous training on a rank: a task an order."""

from __future__ import annotations

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.pool import Failed
from syncpretrain.parallel.replicas.steps import LocalSteps, Work, Worked, answer
from syncpretrain.pretraining.runtime.child_loop import sendable
from syncpretrain.pretraining.runtime.ranks.layers import HeldLayer
from syncpretrain.pretraining.runtime.ranks.messages import (
    ReplicaAnswer,
    ReplicaPlace,
    SliceOf,
    port,
)

__all__ = ["HeldReplica"]


class HeldReplica(HeldLayer[ReplicaPlace]):
    """A replica, which gets parameters and answers with changes of them.

    It exchanges them with rank 0, in its orders and answers, or slices of them with the servers.
    """

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        try:
            self._obey()
        except BaseException as error:
            failed = Failed(*sendable(error, 0, 0))
            self.send("answers", ReplicaAnswer(self.number, failed))

    def _obey(self) -> None:
        place = self._place
        fetched, change = (np.empty(place.size, np.float32) for _ in range(2))
        steps = LocalSteps(place.factory(place.data), fetched, change)
        while (order := self.next_order()) is not None:
            if order.fetched is not None:
                np.copyto(fetched, order.fetched)
            fetches = isinstance(order.order, Work) and order.order.fetches
            if fetches and place.servers and not self._fetch(fetched):
                return
            found = answer(steps, order.order)
            made = change if isinstance(found, Worked) else None
            if made is not None and place.servers:
                self._push(made)
                made = None
            # It stays as it is until the next order, which comes when rank 0 has it.
            self.send("answers", ReplicaAnswer(self.number, found, made))

    def _fetch(self, out: Array) -> bool:
        """Take the slices of the parameters; return False if the run ends first."""
        parts = {server.number: slice(*server.own) for server in self._place.servers}
        for _ in parts:
            found = self.take("slices", self.number)
            if found is None:
                return False
            out[parts[found.server]] = found.values
        return True

    def _push(self, change: Array) -> None:
        """Send each server its slice of a copy: the next change may be there before it is sent."""
        whole = change.copy()
        for server in self._place.servers:
            to = port(self._job.run, f"change {server.number}", self.number)
            part = SliceOf(server.number, whole[slice(*server.own)])
            self._transport.send(server.rank, to, part)
