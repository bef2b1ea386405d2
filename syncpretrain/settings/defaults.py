"""Defaults of the settings of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from syncpretrain.units.kinds import UNITS, kind_of

__all__ = [
    "HANDOFF_DEFAULTS",
    "MODEL_DEFAULTS",
    "PER_LAYER",
    "SCHEDULE_DEFAULTS",
    "usual_rates",
]

PER_LAYER: dict[str, Any] = {  # each with its default
    "epochs": 10,
    "settle": 0.0,
    "refresh_epochs": 1,
    "refresh_when": "always",
    "hidden_units": "bernoulli",
    "learning_rate": 0.1,  # or lower, see the kinds of its units
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
# Where they differ from those above.
HANDOFF_DEFAULTS: dict[str, dict[str, Any]] = {"minibatch": {"refresh_epochs": 0, "delay": 0.5}}
SCHEDULE_DEFAULTS: dict[str, dict[str, Any]] = {"async": {"delay": 0.0}}
MODEL_DEFAULTS: dict[str, dict[str, Any]] = {  # where they differ from those above
    "denoising": {"corruption": "masking:0.25"},
    "contractive": {"contraction": 0.1},
}


def usual_rates(visible: Any, hidden: Sequence[Any]) -> list[float]:
    """Return the usual learning rate of each layer: the lowest of its kinds of units.

    What is no kind of units counts as the default; it is refused later.
    """
    return list(map(min, pairwise(map(_usual_rate, (visible, *hidden)))))


def _usual_rate(units: Any) -> Any:
    if units in UNITS or (isinstance(units, str) and ":" in units):  # blocks, in a known form
        return kind_of(units).learning_rate
    return PER_LAYER["learning_rate"]
