"""A streamed layer in another process, as it is seen here: what is told of its end."""

from __future__ import annotations

import numpy as np
import pytest

from syncpretrain.errors import WorkerError
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.schedule.stream import Block, StreamPlan
from syncpretrain.workers.streamed.child import Answer
from syncpretrain.workers.streamed.remote import RemoteLayer, Stopping


class Dead:
    """A process that ended with an answer: an error."""

    channel, has_ended = object(), True

    def __init__(self) -> None:
        self.left = [Answer(None, MemoryError("out of luck"))]

    def send(self, thing: object) -> None:
        pass

    def poll(self, seconds: float) -> bool:
        return True

    def receive(self) -> Answer | None:
        return self.left.pop() if self.left else None

    def ending(self) -> str:
        return "its process 1 ended with status 1"


def test_the_cause_is_told_whoever_takes_the_last_answer():
    layer = RemoteLayer(2, StreamPlan(delay=0, steps=4), 4, None, Timeouts())
    stopping = Stopping(np.zeros(1), Timeouts())
    layer.connect(Dead(), stopping, np.zeros(1), lambda death: False)
    with pytest.raises(MemoryError):  # in a thread of the pool
        layer.process(Block(2, 1, 2), lambda: False)
    with pytest.raises(WorkerError, match=r"^layer 2 failed in epoch 1: MemoryError: out of luck$"):
        layer.check()  # in the driver
