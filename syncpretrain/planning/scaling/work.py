"""Work of a layer on the devices of a cluster, its costs, and the messages between the devices.

Costs are measured on this machine, read from a file, or given.

A group of devices shares a layer's work. Every device has a link of its own to all others, with one
bandwidth in each direction and one latency (the alpha-beta model). A ring moves the least bytes, a
tree takes the fewest turns; ``star`` sends everything through the one link of a host, as the GPUs
of a machine without links of their own do. Formulas: Thakur, Rabenseifner and Gropp 2005,
"Optimization of collective communication operations in MPICH".
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args

import msgspec

from syncpretrain.errors import DataError, SettingsError
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.measure import measure
from syncpretrain.planning.probes import handover_seconds
from syncpretrain.planning.timings import LayerTimings, Timings
from syncpretrain.settings import PretrainSettings
from syncpretrain.settings.convert import checked
from syncpretrain.settings.fields import Count

ALL_REDUCES = ("auto", "ring", "tree", "star")


@dataclass(frozen=True, slots=True)
class Network:
    """Links between devices.

    Attributes
    ----------
    bandwidth : float
        Bytes a second of one device's link, in each direction; infinite for a shared memory.
    latency : float
        Seconds of a message without content.
    all_reduce : str
        ``ring``, ``tree``, ``star``, or ``auto`` for the faster of the first two.
    """

    bandwidth: float = math.inf
    latency: float = 0.0
    all_reduce: str = "auto"

    @property
    def is_free(self) -> bool:
        """Whether messages take no time."""
        return math.isinf(self.bandwidth) and self.latency == 0

    def transfer(self, size: float) -> float:
        """Return the seconds of a message of ``size`` bytes."""
        return self.latency + size / self.bandwidth if size else 0.0

    def reduce(self, size: float, devices: int) -> float:
        """Return the seconds in which all devices get the sum of their arrays of ``size`` bytes."""
        if devices == 1:
            return 0.0
        seconds = {
            "ring": 2 * (devices - 1) * self.transfer(size / devices),
            "tree": 2 * _turns(devices) * self.transfer(size),
            "star": 2 * (self.latency + devices * size / self.bandwidth),
        }
        if self.all_reduce == "auto":
            return min(seconds["ring"], seconds["tree"])
        return seconds[self.all_reduce]

    def reduced_bytes(self, size: float, devices: int) -> float:
        """Return the bytes that all links together send for it."""
        if devices == 1:
            return 0.0
        return 2 * size * (devices if self.all_reduce == "star" else devices - 1)

    def gather(self, size: float, devices: int) -> float:
        """Return the seconds in which all devices get all parts of an array of ``size`` bytes."""
        if devices == 1:
            return 0.0
        missing = (devices - 1) / devices * size
        return _turns(devices) * self.latency + missing / self.bandwidth

    def broadcast(self, size: float, devices: int) -> float:
        """Return the seconds in which ``devices`` others get an array of ``size`` bytes."""
        return _turns(devices + 1) * self.transfer(size)


def _turns(devices: int) -> int:
    return math.ceil(math.log2(devices))


SplitName = Literal["examples", "units"]
SPLITS = get_args(SplitName)
PRODUCTS = 5  # of a step of CD-1; one of them computes the hidden means

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class PartCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of a step of one device on fewer rows than a minibatch has."""

    rows: Count
    step: Seconds


class SharedCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of a minibatch that cores of one machine share: of a step, and of the hidden means.

    They include what the cores take from each other: memory, caches, the interpreter, and the waits
    between the phases of a step.
    """

    devices: Count
    split: SplitName
    step: Seconds
    forward: Seconds


class LayerCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of one layer's work on one device.

    Attributes
    ----------
    step : float
        A training step on a minibatch.
    fixed : float
        The part of ``step`` that does not shrink with the minibatch: the update of the parameters.
    parts : tuple of PartCost
        Steps on fewer rows; between two of them, and down to ``fixed`` at none, a line is taken.
    forward : float or None
        The hidden means of a minibatch; None takes a fifth of the step, as of CD-1.
    end : float
        Seconds at the end of an epoch: the copy that is published, and the validation error.
    crowding : float
        By which share of itself a step grows for each other device at work; 0 unless the devices
        are the cores of one machine.
    shared : tuple of SharedCost
        Minibatches that cores of one machine share, for a network that takes no time.
    handover : float
        Seconds of handing up a minibatch in the memory of one machine, without its step.
    """

    step: Annotated[float, msgspec.Meta(gt=0, le=1e9)]
    fixed: Seconds = 0.0
    forward: Seconds | None = None
    end: Seconds = 0.0
    parts: tuple[PartCost, ...] = ()
    crowding: Seconds = 0.0
    shared: tuple[SharedCost, ...] = ()
    handover: Seconds = 0.0

    def __post_init__(self) -> None:
        if self.fixed > self.step:
            raise SettingsError(
                f"costs: got fixed {self.fixed:g}, expected at most step, {self.step:g}"
            )


class LayerWork(LayerCosts, frozen=True, kw_only=True):
    """Costs of one layer, ``forward`` among them, and its sizes.

    Attributes
    ----------
    visible, hidden : int
        Units.
    parameters : int
        Weights and biases.
    """

    forward: Seconds = 0.0
    visible: int
    hidden: int
    parameters: int

    def step_on(self, rows: int, batch_size: int) -> float:
        """Return the seconds of a step on some rows of a minibatch."""
        points = [(0, self.fixed), *sorted((part.rows, part.step) for part in self.parts)]
        points = [point for point in points if point[0] < batch_size] + [(batch_size, self.step)]
        above = bisect_left([point[0] for point in points], rows)
        (low, less), (high, more) = points[max(0, above - 1)], points[above]
        return less + (more - less) * (rows - low) / (high - low) if rows < high else more

    def shared_by(self, devices: int, split: str) -> SharedCost | None:
        """Return the measured minibatch of a number of cores that share it, None without one."""
        found = (own for own in self.shared if (own.devices, own.split) == (devices, split))
        return next(found, None)


class GroupWork(NamedTuple):
    """Work of one layer; a group of devices shares its minibatches.

    ``step`` and ``forward`` are the seconds of a minibatch, ``step_network`` and
    ``forward_network`` the network's part of them, ``bytes_moved`` the bytes that a step sends.
    """

    devices: int
    step: float
    forward: float
    step_network: float
    forward_network: float
    bytes_moved: float

    @classmethod
    def of(
        cls, work: LayerWork, devices: int, *, batch_size: int, split: str, network: Network
    ) -> GroupWork:
        """Return the work of a group.

        By examples the largest share counts, and the gradients are summed. By units each device
        computes its units of all examples, and gets the means and states of all others: the
        hidden ones twice, the visible ones once (CD-1). Of cores that were measured together the
        measured seconds count.
        """
        crowd = 1 + work.crowding * (devices - 1)
        if split == "units":
            up = float(FLOAT_BYTES * batch_size * work.hidden)
            down = float(FLOAT_BYTES * batch_size * work.visible)
            waits = 2 * network.gather(up, devices) + network.gather(down, devices)
            forward_waits = network.gather(up, devices)
            moved = (2 * up + down) * (devices - 1)
            step, forward = work.step / devices, work.forward / devices
        else:
            rows = -(-batch_size // devices)
            gradient = float(FLOAT_BYTES * work.parameters)
            waits, forward_waits = network.reduce(gradient, devices), 0.0
            moved = network.reduced_bytes(gradient, devices)
            step, forward = work.step_on(rows, batch_size), work.forward * rows / batch_size
        together = work.shared_by(devices, split) if network.is_free else None
        if together is None:
            step, forward = crowd * step + waits, crowd * forward + forward_waits
        else:
            step, forward = together.step, together.forward
        return cls(devices, step, forward, waits, forward_waits, moved)


def costs_from(text: str, **stack: Any) -> list[LayerCosts]:
    """Return the costs that a text names: a JSON file, or the seconds of each layer's step.

    ``stack`` are the ``layers`` and the ``batch_size`` that they are to be of, if a file says it.

    Raises
    ------
    DataError
        If the file cannot be read.
    SettingsError
        If the costs in it are wrong, or belong to another stack.
    """
    numbers = _numbers(text)
    if numbers is not None:
        return [_cost({"step": number}) for number in numbers]
    try:
        found = json.loads(Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"costs: {text}: {error.strerror or error}") from None
    except ValueError as error:
        raise DataError(f"costs: {text} is no JSON: {error}") from None
    if isinstance(found, dict):
        _check_stack(text, found, stack)
    rows = found.get("costs", found) if isinstance(found, dict) else found
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(
            f'costs: {text}: expected a list of objects with "step", one a layer, or what'
            " simulate --json prints"
        )
    return [_cost(row) for row in rows]


def works_of(settings: PretrainSettings, costs: Sequence[LayerCosts]) -> tuple[LayerWork, ...]:
    """Return the work of each layer of a stack.

    Raises
    ------
    SettingsError
        If the costs are of another number of layers.
    """
    shapes = settings.shapes
    if len(costs) != len(shapes):
        raise SettingsError(
            f"costs: got those of {len(costs)} layers, expected {len(shapes)}, one a layer"
        )
    found = []
    for cost, shape in zip(costs, shapes, strict=True):
        own = msgspec.structs.asdict(cost)
        own["forward"] = cost.step / PRODUCTS if cost.forward is None else cost.forward
        own |= {"visible": shape.visible, "hidden": shape.hidden}
        found.append(LayerWork(**own, parameters=shape.weights + sum(shape.biases)))
    return tuple(found)


def _check_stack(text: str, found: Mapping[str, Any], stack: Mapping[str, Any]) -> None:
    for name, own in stack.items():
        if found.get(name, own) != own:
            raise SettingsError(
                f"costs: {text} has those of {name} {found[name]}, expected {own}; leave out"
                " --costs to measure them here"
            )


def _cost(values: Mapping[str, Any]) -> LayerCosts:
    try:
        return checked(dict(values), LayerCosts)
    except SettingsError as error:
        text = str(error)
        raise SettingsError(text if text.startswith("costs: ") else f"costs: {text}") from None


def _numbers(text: str) -> list[float] | None:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return None


HALVINGS = 4  # steps are timed on a minibatch, and on parts of it down to a sixteenth


def measured_costs(task: Task, *, seconds: float = 7.0) -> list[LayerCosts]:
    """Return the costs of a stack's layers on a device that is like one core of this machine.

    Steps on a half, a fourth and so on of a minibatch show what part of a step shrinks with it.
    """
    return _costs(_measured(task, 1, seconds), task.settings.batch_size)


def machine_costs(task: Task, *, workers: int, seconds: float = 7.0) -> list[LayerCosts]:
    """Return the costs of a stack's layers on devices that are the cores of this machine.

    They are what :func:`syncpretrain.planning.plan` predicts with: the times of cores that share a
    minibatch, and by how much cores at work on other layers slow a layer. For a network that takes
    no time: what goes through the memory of the machine is in the times.
    """
    timings = replace(_measured(task, workers, seconds), handover=handover_seconds())
    return costs_together(timings, batch_size=task.settings.batch_size)


def costs_together(timings: Timings, *, batch_size: int) -> list[LayerCosts]:
    """Return the timings of the workers of one machine as costs of devices."""
    others = max(1, timings.workers - 1)
    above = [*timings.layers[1:], None]
    found = []
    for cost, layer, reader in zip(_costs(timings, batch_size), timings.layers, above, strict=True):
        shared = [
            SharedCost(
                devices=n,
                split=cast("SplitName", split),
                step=by_size[n],
                forward=_forward_together(cost, reader, n, batch_size),
            )
            for (split, n), by_size in layer.sharded.items()
            if split in SPLITS
        ]
        own = {"crowding": (layer.contention - 1) / others, "handover": timings.handover}
        found.append(msgspec.structs.replace(cost, shared=tuple(shared), **own))
    return found


def _measured(task: Task, workers: int, seconds: float) -> Timings:
    parts = sorted({task.settings.batch_size >> n for n in range(1, HALVINGS + 1)} - {0})
    return measure(task, workers=workers, seconds=seconds, parts=parts)


def _costs(timings: Timings, batch_size: int) -> list[LayerCosts]:
    layers = timings.layers
    above = [layer.transform.get(1, 0.0) * batch_size for layer in layers[1:]]
    forward = [*above, layers[-1].step / PRODUCTS]  # no layer reads the last one
    return [
        LayerCosts(
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
    parts = tuple(PartCost(rows=rows, step=seconds) for rows, seconds in points[1:])
    return {"fixed": fixed, "parts": parts}


def _forward_together(
    cost: LayerCosts, reader: LayerTimings | None, devices: int, batch_size: int
) -> float:
    """Return the seconds of a minibatch's hidden means, made by a number of cores."""
    if reader is None:
        return (cost.forward or 0.0) / devices
    alone = reader.transform.get(1, 0.0) / devices
    return reader.transform.get(devices, alone) * batch_size
