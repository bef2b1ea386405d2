"""The kinds of values that settings have, and what all sections have in common."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from syncpretrain.schedule.reads import MAX_EPOCHS

__all__ = [
    "MAX_WORKERS",
    "Count",
    "Epochs",
    "Fraction",
    "Frozen",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PositiveFloat",
    "Precision",
    "Shards",
    "Workers",
]

# More is a slip of the keyboard: a run without end, or a machine that only starts threads.
MAX_WORKERS = 1024

Count = Annotated[int, msgspec.Meta(ge=1)]
Epochs = Annotated[int, msgspec.Meta(ge=1, le=MAX_EPOCHS)]
Workers = Annotated[int, msgspec.Meta(ge=1, le=MAX_WORKERS)]
Shards = Annotated[int, msgspec.Meta(ge=0, le=MAX_WORKERS)]  # 0 for as many as replicas
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Precision = Literal["float32", "tf32", "bfloat16", "auto"]  # of products


class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the settings: immutable, keyword-only, unknown names refused."""
