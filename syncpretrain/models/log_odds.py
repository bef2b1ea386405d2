"""Log-odds of binary units, in place of their probabilities, as the code of a layer.

Probabilities near 0 and 1 hide how sure a unit is. Log-odds are linear in what the unit reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from syncpretrain.errors import DataError
from syncpretrain.models.layer import Layer
from syncpretrain.units.kinds import kind_of

__all__ = ["check_have_odds", "with_log_odds"]


def check_have_odds(units: str) -> None:
    """Refuse hidden units that are not on or off.

    Raises
    ------
    DataError
    """
    if not kind_of(units).is_binary:
        raise DataError(
            f"log_odds: got {units} units in the layer of the codes, expected bernoulli; leave"
            " log_odds out"
        )


def with_log_odds(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return layers of which the top one makes the log-odds of its units, not their means.

    Raises
    ------
    DataError
        If its units are not on or off, or exclude each other.
    """
    *below, top = layers
    check_have_odds(top.hidden_units)
    shape: Any = top.shape
    if shape.name == "convolution" and shape.pooling == "prob":
        raise DataError(
            "log_odds: got probabilistic pooling in the layer of the codes, expected max or mean;"
            " leave log_odds out"
        )
    linear: Any = replace(top, hidden_units="gaussian")
    return (*below, linear)
