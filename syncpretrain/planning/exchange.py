"""Seconds of handing something over: parameters to a server, or a minibatch to the layer above.

Handing over a minibatch counts where steps are tiny.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.observers.history import History
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.replicas.server import ParameterServer
from syncpretrain.parallel.replicas.steps import LocalSteps, Task
from syncpretrain.planning.probes import Steps, repeated
from syncpretrain.planning.timings import Exchange
from syncpretrain.pretraining.build import build_learners
from syncpretrain.pretraining.streamed import StreamedPretraining
from syncpretrain.settings import PretrainSettings, settings_from
from syncpretrain.settings.fields import AsyncFields

WIDTHS = (8, 8, 8)  # so little work that what is around it shows
# Many beside the start and the end of a run, and soon over.
MINIBATCHES = 400
TIMES = 3  # the median of three: one may be disturbed


def handover_seconds() -> float:
    """Return the seconds of a minibatch of one layer in a stream, without its step.

    Most of them are spent in Python's interpreter, which runs one thread at a time.
    """
    settings = settings_from(
        WIDTHS, handoff="minibatch", delay=0.0, epochs=1, batch_size=1, workers=1, backend="numpy"
    ).pretrain
    X = np.random.default_rng(0).random((MINIBATCHES, WIDTHS[0]), dtype=np.float32)
    steps = [Steps(learner, X).work() for learner in build_learners(settings)]
    streamed, bare = [], []
    for _ in range(TIMES):
        StreamedPretraining(settings, X, observers=[history := History()]).run()
        streamed.append(history.pretrain_seconds)
        with blas_limit(1):
            bare.append(sum(work(MINIBATCHES) for work in steps))
    return max(0.0, median(streamed) - median(bare)) / (MINIBATCHES * len(steps))


EXCHANGE_ROUNDS, EXCHANGE_SECONDS = 5, 0.3  # of each piece, at most


class _Still:
    """A replica that learns nothing, so that what is around its steps shows."""

    def __init__(self, size: int) -> None:
        self.parameters: Sequence[Array] = [np.zeros(size, np.float32)]

    def train(self, epoch: int, step: int) -> Sequence[float]:
        """Do nothing."""
        return (0.0,)

    def state(self) -> dict[str, Array]:
        """Return nothing."""
        return {}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Do nothing."""


def exchanges(settings: PretrainSettings) -> tuple[Exchange, ...]:
    """Measure the exchanges of each layer of a stack, by its server's rules."""
    counts = [shape.weights + sum(shape.biases) for shape in settings.shapes]
    found = {size: exchange_of(size, settings) for size in dict.fromkeys(counts)}
    return tuple(found[size] for size in counts)


def exchange_of(size: int, settings: AsyncFields) -> Exchange:
    """Measure the exchange of a number of parameters, by the rules of some settings."""
    server = ParameterServer(np.zeros(size, np.float32), settings, settings.servers)
    fetched, change = (np.zeros(size, np.float32) for _ in range(2))
    steps = LocalSteps(_Still(size), fetched, change)
    task = Task(1, 0, 1)
    server.start()
    try:
        return Exchange(
            fetch=_seconds(lambda: server.fetch(fetched)),
            push=_seconds(lambda: server.push(change, server.clock, fetched)),
            local=_seconds(lambda: steps.work(task, fetches=True)),
        )
    finally:
        server.end()


def _seconds(work: Callable[[], object]) -> float:
    """Return the median of the seconds of some calls; the first one touches the memory."""
    timed = repeated(work)
    first, times = timed(1), list[float]()
    while len(times) < EXCHANGE_ROUNDS and first + sum(times) < EXCHANGE_SECONDS:
        times.append(timed(1))
    return median(times or [first])
