"""The time of an exchange between a replica and the parameter server, of each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

import numpy as np

from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.server import AsyncRules, ParameterServer
from syncpretrain.parallel.replicas.steps import LocalSteps, Task
from syncpretrain.planning.timings import Exchange
from syncpretrain.settings import PretrainSettings
from syncpretrain.settings.asynchronous import AsyncFields

__all__ = ["exchange_of", "exchanges"]

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
    found: dict[int, Exchange] = {}
    counts = [shape.weights + sum(shape.biases) for shape in settings.shapes]
    for size in counts:
        if size not in found:
            found[size] = exchange_of(size, settings)
    return tuple(found[size] for size in counts)


def exchange_of(size: int, settings: AsyncFields) -> Exchange:
    """Measure the exchange of a number of parameters, by the rules of some settings."""
    rules = AsyncRules(rate=settings.async_rate, compensation=settings.delay_compensation)
    server = ParameterServer(np.zeros(size, np.float32), rules, settings.servers)
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
    first = _timed(work)
    times: list[float] = []
    while len(times) < EXCHANGE_ROUNDS and first + sum(times) < EXCHANGE_SECONDS:
        times.append(_timed(work))
    return median(times or [first])


def _timed(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began
