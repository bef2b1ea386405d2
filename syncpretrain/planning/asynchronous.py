"""Asynchronous pretraining of a stack on this machine, predicted from the layers' timings.

Pure: no threads, clocks or arrays. R replicas share the cores; each fetches, trains and pushes, and
the server, one thread, copies parameters and adds changes for one replica at a time. So the time of
a task is the larger of two: all its parts in sequence, divided by R, and the server's part. The
rules decide what a change is worth, as in ``parallel/replicas/replica_count.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from syncpretrain.parallel.replicas.replica_count import WORTH
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.simulate import slowdown
from syncpretrain.planning.timings import Exchange, Timings, sizes
from syncpretrain.schedule.kinds import ASYNC
from syncpretrain.settings.fields import AsyncFields, AsyncRate
from syncpretrain.workers.worker import PROBE_ROWS

ALL_TRIED = 8  # numbers of replicas up to this, beyond it fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncStage:
    """Tasks of replicas, one like the other, and what is done beside them.

    Attributes
    ----------
    tasks : int
    computing : float
        Seconds of a task's steps, where all other workers are at rest.
    contention : float
        Factor by which ``computing`` grows when all workers are busy.
    local, server : float
        Seconds that the replica and the server take for a task beside the steps.
    rest : float
        Seconds of the stage beside its tasks, which are not shared.
    """

    tasks: int
    computing: float
    contention: float = 1.0
    local: float = 0.0
    server: float = 0.0
    rest: float = 0.0

    def training(self, workers: int, replicas: int) -> float:
        """Return the seconds of all tasks; replicas beyond the workers share these."""
        at_work = min(replicas, workers)
        slower = slowdown(self.contention, at_work, workers)
        task = slower * self.computing + self.local + self.server
        return self.tasks * max(task / at_work, self.server)


@dataclass(frozen=True, slots=True)
class AsyncWay:
    """One number of replicas.

    Attributes
    ----------
    replicas : int
    seconds : float
        Seconds of all stages.
    staleness : int
        Staleness of a change, if all replicas are equally fast.
    useful : float
        Useful updates a second: each change counts as the share of it that is taken.
    """

    replicas: int
    seconds: float
    staleness: int
    useful: float


class AsyncPlan(NamedTuple):
    """Asynchronous runs by the number of replicas, from one up."""

    ways: tuple[AsyncWay, ...]

    @property
    def paying(self) -> AsyncWay:
        """The fewest replicas that make nearly as many useful updates a second as any."""
        least = max(way.useful for way in self.ways) * (1 - WORTH)
        return next(way for way in self.ways if way.useful >= least)

    @property
    def settings(self) -> dict[str, Any]:
        """The run that pays as keyword arguments of :func:`syncpretrain.pretrain`."""
        return {"schedule": ASYNC, "replicas": self.paying.replicas}

    @property
    def by_replicas(self) -> str:
        """All of it in words: each number of replicas, and which of them pays."""
        rows = ", ".join(
            f"{way.replicas}: {way.seconds:.1f} s and {way.useful:.3g} useful updates a second"
            for way in self.ways
        )
        return f"{rows}; {self.paying.replicas} pay"

    @property
    def sentence(self) -> str:
        """All of it in a sentence."""
        return f"asynchronous, by the number of replicas: {self.by_replicas}"

    def report(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        ways = [msgspec.to_builtins(way) for way in self.ways]
        return {"replicas": self.paying.replicas, "ways": ways}


def predict_stages(stages: Sequence[AsyncStage], *, workers: int, rate: AsyncRate) -> AsyncPlan:
    """Return the predicted runs of some stages, one for each number of replicas worth a try."""
    tried = sorted({*range(1, min(workers, ALL_TRIED) + 1), *sizes(workers)} - {0})
    return AsyncPlan(tuple(_way(stages, workers, replicas, rate) for replicas in tried))


def _way(stages: Sequence[AsyncStage], workers: int, replicas: int, rate: AsyncRate) -> AsyncWay:
    share = AsyncFields(async_rate=rate).share(replicas - 1)
    training = sum(stage.training(workers, replicas) for stage in stages)
    seconds = training + sum(stage.rest for stage in stages)
    updates = share * sum(stage.tasks for stage in stages)
    return AsyncWay(replicas, seconds, replicas - 1, updates / max(training, 1e-9))


def predict_async(task: Task, timings: Timings) -> AsyncPlan:
    """Return the predicted asynchronous runs of a task, with its settings of such runs."""
    stages, rate = _stages(task, timings), task.settings.async_rate
    return predict_stages(stages, workers=timings.workers, rate=rate)


def async_seconds(task: Task, timings: Timings) -> float:
    """Return the seconds of an asynchronous run with the replicas of its settings."""
    s, stages = task.settings, _stages(task, timings)
    counts = s.replicas if s.handoff == "epoch" else s.replicas[:1]
    return sum(
        stage.training(timings.workers, 1 if s.runtime == "serial" else replicas) + stage.rest
        for stage, replicas in zip(stages, counts, strict=True)
    )


def _stages(task: Task, timings: Timings) -> list[AsyncStage]:
    """Return a stage for each layer, or one of all layers where each task trains them."""
    s, depth = task.settings, range(len(timings.layers))
    tasks = math.ceil(task.examples / s.batch_size / s.push_every)
    found = []
    for layers in [[i] for i in depth] if s.handoff == "epoch" else [list(depth)]:
        most = max(s.epochs[i] for i in layers)
        steps = {i: s.push_every * timings.layers[i].step * s.epochs[i] / most for i in layers}
        alone = sum(steps.values())
        crowded = sum(own * timings.layers[i].contention for i, own in steps.items())
        exchanges = [timings.exchanges[i] if timings.exchanges else Exchange() for i in layers]
        found.append(
            AsyncStage(
                tasks=tasks * most,
                computing=alone,
                contention=crowded / alone if alone else 1.0,
                local=sum(exchange.local for exchange in exchanges),
                server=sum(exchange.server(s.period) for exchange in exchanges),
                rest=_others(task, timings, layers),
            )
        )
    return found


def _others(task: Task, timings: Timings, layers: list[int]) -> float:
    """Return the seconds beside the tasks: passes up to these layers, and ends of epochs."""
    s, seconds = task.settings, 0.0
    for i in layers:
        layer = timings.layers[i]
        rows = task.rows if s.handoff == "epoch" else min(task.held_out, PROBE_ROWS)
        times = 1 if s.handoff == "epoch" else s.epochs[i]
        seconds += times * rows * layer.transform.get(1, 0.0) + s.epochs[i] * layer.validation
    return seconds
