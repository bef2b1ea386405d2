"""Settings that every learner has."""

from __future__ import annotations

from dataclasses import dataclass

from syncpretrain.settings.momentum import MomentumSchedule

__all__ = ["LearnerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """What the training of one layer needs to know, whatever its model."""

    batch_size: int
    learning_rate: float
    momentum: MomentumSchedule
    weight_decay: float = 0.0
    l1: float = 0.0
    hidden_units: str = "bernoulli"
    visible_units: str = "bernoulli"
    visible_bias: str = "zero"
    seed: int = 0
