"""A replica of asynchronous training on a rank: a task an order."""

from __future__ import annotations

import numpy as np

from syncpretrain.parallel.replicas.pool import Failed
from syncpretrain.parallel.replicas.steps import LocalSteps, Worked, answer
from syncpretrain.pretraining.runtime.child_loop import sendable
from syncpretrain.pretraining.runtime.ranks.layers import HeldLayer
from syncpretrain.pretraining.runtime.ranks.messages import ReplicaAnswer, ReplicaPlace

__all__ = ["HeldReplica"]


class HeldReplica(HeldLayer[ReplicaPlace]):
    """A replica, which gets parameters with its orders and answers with changes of them."""

    def work(self) -> None:
        """Obey orders until there are no more; report every failure."""
        try:
            fetched, change = (np.empty(self._place.size, np.float32) for _ in range(2))
            steps = LocalSteps(self._place.factory(self._place.data), fetched, change)
            while (order := self.next_order()) is not None:
                if order.fetched is not None:
                    np.copyto(fetched, order.fetched)
                found = answer(steps, order.order)
                # It stays as it is until the next order, which comes when rank 0 has it.
                made = change if isinstance(found, Worked) else None
                self.send("answers", ReplicaAnswer(self.number, found, made))
        except BaseException as error:
            failed = Failed(*sendable(error, 0, 0))
            self.send("answers", ReplicaAnswer(self.number, failed))
