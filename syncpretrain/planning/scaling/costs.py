"""Costs of a stack's layers: measured on this machine, read from a file, or given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from syncpretrain.errors import DataError, SettingsError
from syncpretrain.planning.scaling.work import PRODUCTS, LayerWork, PartCost, Seconds, SharedCost
from syncpretrain.settings import PretrainSettings
from syncpretrain.settings.convert import checked


class LayerCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of one layer's work on one device; the attributes of :class:`LayerWork`."""

    step: Annotated[float, msgspec.Meta(gt=0, le=1e9)]
    fixed: Seconds = 0.0
    forward: Seconds | None = None  # a fifth of the step, as of CD-1
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
    return tuple(
        LayerWork(
            step=cost.step,
            fixed=cost.fixed,
            forward=cost.step / PRODUCTS if cost.forward is None else cost.forward,
            end=cost.end,
            parts=cost.parts,
            crowding=cost.crowding,
            shared=cost.shared,
            handover=cost.handover,
            visible=shape.visible,
            hidden=shape.hidden,
            parameters=shape.weights + sum(shape.biases),
        )
        for cost, shape in zip(costs, shapes, strict=True)
    )


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
