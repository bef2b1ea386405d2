"""The kinds of values that settings have, and what all sections have in common."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = [
    "Count",
    "Fraction",
    "Frozen",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PositiveFloat",
]

Count = Annotated[int, msgspec.Meta(ge=1)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the settings: immutable, keyword-only, unknown names refused."""
