"""Costs as measured here: of a device like one core, and of the cores of this machine together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec

from syncpretrain.planning.candidates import Task
from syncpretrain.planning.measure import measure
from syncpretrain.planning.probes import handover_seconds
from syncpretrain.planning.scaling import work
from syncpretrain.planning.timings import LayerTimings, Timings

HALVINGS = 4  # steps are timed on a minibatch, and on parts of it down to a sixteenth


def measured_costs(task: Task, *, seconds: float = 7.0) -> list[work.LayerCosts]:
    """Return the costs of a stack's layers on a device that is like one core of this machine.

    Steps on a half, a fourth and so on of a minibatch show what part of a step shrinks with it.
    """
    return _costs(_measured(task, 1, seconds), task.settings.batch_size)


def machine_costs(task: Task, *, workers: int, seconds: float = 7.0) -> list[work.LayerCosts]:
    """Return the costs of a stack's layers on devices that are the cores of this machine.

    They are what :func:`syncpretrain.planning.plan` predicts with: the times of cores that share a
    minibatch, and by how much cores at work on other layers slow a layer. For a network that takes
    no time: what goes through the memory of the machine is in the times.
    """
    timings = replace(_measured(task, workers, seconds), handover=handover_seconds())
    return costs_together(timings, batch_size=task.settings.batch_size)


def costs_together(timings: Timings, *, batch_size: int) -> list[work.LayerCosts]:
    """Return the timings of the workers of one machine as costs of devices."""
    others = max(1, timings.workers - 1)
    above = [*timings.layers[1:], None]
    found = []
    for cost, layer, reader in zip(_costs(timings, batch_size), timings.layers, above, strict=True):
        shared = [
            work.SharedCost(
                devices=n,
                split=cast("work.SplitName", split),
                step=by_size[n],
                forward=_forward_together(cost, reader, n, batch_size),
            )
            for (split, n), by_size in layer.sharded.items()
            if split in work.SPLITS
        ]
        found.append(
            msgspec.structs.replace(
                cost,
                crowding=(layer.contention - 1) / others,
                shared=tuple(shared),
                handover=timings.handover,
            )
        )
    return found


def _measured(task: Task, workers: int, seconds: float) -> Timings:
    parts = sorted({task.settings.batch_size >> n for n in range(1, HALVINGS + 1)} - {0})
    return measure(task, workers=workers, seconds=seconds, parts=parts)


def _costs(timings: Timings, batch_size: int) -> list[work.LayerCosts]:
    layers = timings.layers
    above = [layer.transform.get(1, 0.0) * batch_size for layer in layers[1:]]
    forward = [*above, layers[-1].step / work.PRODUCTS]  # no layer reads the last one
    return [
        work.LayerCosts(
            step=layer.step, forward=up, end=layer.validation, **_shrinking(layer, batch_size)
        )
        for layer, up in zip(layers, forward, strict=True)
    ]


def _shrinking(layer: LayerTimings, batch_size: int) -> dict[str, Any]:
    """Return the measured parts of a step, none slower than a larger one, and what is left at 0."""
    points = [(batch_size, layer.step)]
    for rows, seconds in sorted(layer.parts.items(), reverse=True):
        points.append((rows, min(seconds, points[-1][1])))
    fixed = 0.0
    if len(points) > 1:
        (more, longer), (few, shorter) = points[-2:]
        fixed = max(0.0, shorter - few * (longer - shorter) / (more - few))
    parts = tuple(work.PartCost(rows=rows, step=seconds) for rows, seconds in points[1:])
    return {"fixed": fixed, "parts": parts}


def _forward_together(
    cost: work.LayerCosts, reader: LayerTimings | None, devices: int, batch_size: int
) -> float:
    """Return the seconds of a minibatch's hidden means, made by a number of cores."""
    if reader is None:
        return (cost.forward or 0.0) / devices
    alone = reader.transform.get(1, 0.0) / devices
    return reader.transform.get(devices, alone) * batch_size
