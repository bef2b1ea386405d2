"""Asynchronous runs of a stack on this machine, predicted: their time, and the replicas that pay.

Pure: no threads, clocks or arrays. R replicas share the cores; each fetches, trains and pushes, and
the server, one thread, copies parameters and adds changes for one of them at a time. So a task
takes as long as all of it does one after the other, over R, or as long as the server takes for it,
if that is more. What a change is worth is what the rules leave of it, as in
``parallel/replicas/paying.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec

from syncpretrain.parallel.replicas.paying import WORTH
from syncpretrain.parallel.replicas.rules import AsyncRules
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.timings import Exchange, Timings, sizes
from syncpretrain.pretraining.runtime.worker import PROBE_ROWS
from syncpretrain.pretraining.schedule.names import ASYNC

__all__ = ["AsyncPlan", "AsyncWay", "predict_async"]

ALL_TRIED = 8  # numbers of replicas up to this, beyond it fewer


@dataclass(frozen=True, slots=True)
class AsyncWay:
    """One number of replicas.

    Attributes
    ----------
    replicas : int
    seconds : float
        Of pretraining.
    staleness : int
        Of a change, where all replicas are equally fast.
    useful : float
        Useful updates a second: the changes, each as the share of it that is taken.
    """

    replicas: int
    seconds: float
    staleness: int
    useful: float


@dataclass(frozen=True, slots=True)
class AsyncPlan:
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
    def sentence(self) -> str:
        """All of it in a sentence."""
        rows = ", ".join(
            f"{way.replicas}: {way.seconds:.1f} s and {way.useful:.3g} useful updates a second"
            for way in self.ways
        )
        return f"asynchronous, by the number of replicas: {rows}; {self.paying.replicas} pay"

    def report(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        ways = [msgspec.to_builtins(way) for way in self.ways]
        return {"replicas": self.paying.replicas, "ways": ways}


def predict_async(task: Task, timings: Timings) -> AsyncPlan:
    """Return the predicted asynchronous runs of a task, with its settings of such runs."""
    most = timings.workers
    tried = sorted({*range(1, min(most, ALL_TRIED) + 1), *sizes(most)} - {0})
    return AsyncPlan(tuple(_way(task, timings, replicas) for replicas in tried))


def _way(task: Task, timings: Timings, replicas: int) -> AsyncWay:
    s = task.settings
    share = AsyncRules(rate=s.async_rate).share(replicas - 1)
    depth = range(len(timings.layers))
    stages = [[i] for i in depth] if s.handoff == "epoch" else [list(depth)]
    tasks = math.ceil(task.examples / s.batch_size / s.push_every)
    seconds = training = updates = 0.0
    for layers in stages:
        count = tasks * max(s.epochs[i] for i in layers)
        own = count * _task_seconds(task, timings, layers, replicas)
        training += own
        seconds += own + _others(task, timings, layers)
        updates += count
    return AsyncWay(replicas, seconds, replicas - 1, share * updates / max(training, 1e-9))


def _task_seconds(task: Task, timings: Timings, layers: list[int], replicas: int) -> float:
    """Return the seconds from one push to the next, of all replicas together."""
    s = task.settings
    exchanges = [timings.exchanges[i] if timings.exchanges else Exchange() for i in layers]
    fetches = s.push_every / (s.fetch_every or s.push_every)
    server = sum(fetches * x.fetch + x.push for x in exchanges)
    computing = sum(x.local for x in exchanges)
    most = max(s.epochs[i] for i in layers)
    for i in layers:
        layer = timings.layers[i]
        busy = (replicas - 1) / max(1, timings.workers - 1)
        slower = 1 + (layer.contention - 1) * busy
        computing += s.push_every * slower * layer.step * s.epochs[i] / most
    return max((computing + server) / replicas, server)


def _others(task: Task, timings: Timings, layers: list[int]) -> float:
    """Return the seconds beside the tasks: passes up to these layers, and ends of epochs."""
    s, seconds = task.settings, 0.0
    for i in layers:
        layer = timings.layers[i]
        rows = task.rows if s.handoff == "epoch" else min(task.held_out, PROBE_ROWS)
        times = 1 if s.handoff == "epoch" else s.epochs[i]
        seconds += times * rows * layer.transform.get(1, 0.0) + s.epochs[i] * layer.validation
    return seconds
