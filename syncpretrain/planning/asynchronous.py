"""Asynchronous pretraining of a stack on this machine, predicted from the layers' timings."""

from __future__ import annotations

import math

from syncpretrain.planning.async_stages import (
    AsyncPlan,
    AsyncStage,
    exchange_seconds,
    predict_stages,
)
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.timings import Exchange, Timings
from syncpretrain.workers.worker import PROBE_ROWS

__all__ = ["async_seconds", "predict_async"]


def predict_async(task: Task, timings: Timings) -> AsyncPlan:
    """Return the predicted asynchronous runs of a task, with its settings of such runs."""
    return predict_stages(
        _stages(task, timings), workers=timings.workers, rate=task.settings.async_rate
    )


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
        steps = [s.push_every * timings.layers[i].step * s.epochs[i] / most for i in layers]
        crowded = sum(
            own * timings.layers[i].contention for own, i in zip(steps, layers, strict=True)
        )
        exchanges = [timings.exchanges[i] if timings.exchanges else Exchange() for i in layers]
        found.append(
            AsyncStage(
                tasks=tasks * most,
                computing=sum(steps),
                contention=crowded / sum(steps) if sum(steps) else 1.0,
                local=sum(exchange.local for exchange in exchanges),
                server=sum(exchange_seconds(s, exchange) for exchange in exchanges),
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
