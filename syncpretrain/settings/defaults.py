"""Defaults of the settings that have one value a layer, by model, hand-over and units."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Any

from syncpretrain.settings.architecture import read_architecture
from syncpretrain.shapes import ConvolutionShape
from syncpretrain.units.kinds import UNITS, kind_of

__all__ = [
    "HANDOFF_DEFAULTS",
    "MODEL_DEFAULTS",
    "PER_LAYER",
    "SCHEDULE_DEFAULTS",
    "usual_costs",
    "usual_rates",
]

PER_LAYER: dict[str, Any] = {  # names and defaults
    "epochs": 10,
    "settle": 0.0,
    "refresh_epochs": 1,
    "refresh_when": "always",
    "hidden_units": "bernoulli",
    "learning_rate": 0.1,  # lower for some kinds of units, see usual_rates
    "momentum": "0.5:5,0.9",
    "weight_decay": 0.0002,
    "l1": 0.0,
    "cd_steps": 1,
    "persistent": False,
    "sparsity_target": 0.1,
    "sparsity_cost": 0.0,
    "hidden_dropout": 0.0,
    "corruption": "none",
    "contraction": 0.0,
    "replicas": 1,
    "shards": 0,
}
# Defaults that differ from PER_LAYER.
HANDOFF_DEFAULTS: dict[str, dict[str, Any]] = {"minibatch": {"refresh_epochs": 0, "delay": 0.5}}
SCHEDULE_DEFAULTS: dict[str, dict[str, Any]] = {"async": {"delay": 0.0}}
MODEL_DEFAULTS: dict[str, dict[str, Any]] = {
    "denoising": {"corruption": "masking:0.25"},
    "contractive": {"contraction": 0.1},
}
SPARSITY_COST = 1.0  # for convolutional RBMs: without a cost many filters are on everywhere


def usual_rates(visible: Any, hidden: Sequence[Any]) -> list[float]:
    """Return the usual learning rate of each layer: the lower one of its two kinds of units.

    An unknown kind of units takes the default; it is refused later.
    """
    return list(map(min, pairwise(map(_usual_rate, (visible, *hidden)))))


def usual_costs(architecture: Any, hidden: Sequence[Any], depth: int) -> list[float]:
    """Return the usual sparsity cost of each layer of RBMs.

    Dense layers, and units without a lower limit of 0, have no cost. An architecture that is no
    text, and an unknown kind of units, are refused later.
    """
    has_text = isinstance(architecture, str) and architecture
    shapes = read_architecture(architecture)[1] if has_text else [None] * depth
    return [
        SPARSITY_COST
        if isinstance(shape, ConvolutionShape) and units in UNITS and kind_of(units).lower == 0
        else PER_LAYER["sparsity_cost"]
        for shape, units in zip_longest(shapes, hidden[:depth])
    ]


def _usual_rate(units: Any) -> Any:
    if units in UNITS or (isinstance(units, str) and ":" in units):  # blocks, in a known form
        return kind_of(units).learning_rate
    return PER_LAYER["learning_rate"]
