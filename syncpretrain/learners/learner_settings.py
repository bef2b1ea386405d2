"""The settings of one layer's training that learners of every model have."""

from __future__ import annotations

from dataclasses import dataclass

from syncpretrain.settings.fields import MomentumSchedule
from syncpretrain.units.kinds import kind_of

__all__ = ["LearnerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """Settings of one layer's training that every model has.

    ``missing`` says whether entries of its input may be missing, marked by
    :func:`syncpretrain.data.visible.mark_missing`. ``precision`` is that of products: see
    :mod:`syncpretrain.kernels.precision`.
    """

    batch_size: int
    learning_rate: float
    momentum: MomentumSchedule
    weight_decay: float = 0.0
    l1: float = 0.0
    hidden_units: str = "bernoulli"
    visible_units: str = "bernoulli"
    visible_bias: str = "zero"
    missing: bool = False
    seed: int = 0
    precision: str = "float32"

    @property
    def is_conditioned(self) -> bool:
        """Whether visible means depend on more than the hidden units: blocks, missing entries."""
        return self.missing or kind_of(self.visible_units).blocks is not None

    def kinds(self, model: str) -> dict[str, str]:
        """Return what a layer of a model is, beside its arrays."""
        kinds = {"hidden_units": self.hidden_units, "visible_units": self.visible_units}
        return kinds | {"model": model}
