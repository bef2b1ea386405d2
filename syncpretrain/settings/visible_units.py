"""Checks of the visible units of layer 1: one kind, or blocks of columns of several kinds."""

from __future__ import annotations

from typing import Any

from syncpretrain.errors import SettingsError
from syncpretrain.units.blocks import fitted_units, visible_kind
from syncpretrain.units.kinds import INPUT_UNITS, KINDS

__all__ = [
    "check_missing",
    "check_sparse",
    "check_visible_units",
    "kept_units",
    "why_not_in_blocks",
]

EXPECTED = (
    f"{' or '.join(INPUT_UNITS)}, or blocks of columns such as"
    " bernoulli:20,gaussian:5,softmax:3x7,counts:2000"
)


def kept_units(text: Any, layers: Any) -> Any:
    """Return the text of visible units in its standard form.

    Raises
    ------
    SettingsError
        If the blocks do not fit the values of an example.
    """
    width = layers[0] if isinstance(layers, (list, tuple)) and layers else None
    try:
        return fitted_units(text, width)
    except ValueError as error:
        raise SettingsError(f"visible_units: {error}") from error


def check_visible_units(settings: Any) -> None:
    """Refuse visible units that do not exist, or do not fit the other settings.

    Raises
    ------
    SettingsError
    """
    text = settings.visible_units
    kept = kept_units(text, settings.layers)
    if kept != text:
        raise SettingsError(f"visible_units: got {text}, expected {kept}, the form that is kept")
    kind = visible_kind(text)
    if kind is None:
        got = text if text in KINDS else repr(text)
        raise SettingsError(f"visible_units: got {got}, expected {EXPECTED}")
    lacks = None if kind.blocks is None else why_not_in_blocks(settings)
    if lacks:
        raise SettingsError(f"visible_units: got {text} {lacks}")


def check_missing(settings: Any) -> None:
    """Refuse settings that cannot leave missing values out.

    Raises
    ------
    SettingsError
    """
    lacks = why_not_in_blocks(settings)
    if settings.early_stopping == "pseudo-likelihood":
        lacks = "with early stopping by pseudo-likelihood; take free-energy-gap"
    if lacks is None and settings.backend.startswith("cupy"):
        lacks = "with a GPU, which has no form for them; take backend numpy"
    if lacks:
        raise SettingsError(f"X: got NaN, which stands for missing values, {lacks}")


def check_sparse(settings: Any) -> None:
    """Refuse settings that cannot train on sparse rows.

    Raises
    ------
    SettingsError
    """
    lacks = None
    if settings.architecture:
        lacks = "with convolutions, whose input is images; pass X.toarray()"
    elif settings.split == "units" and settings.shards_of(1) > 1:
        lacks = "with split units, which has no form for it; take split examples"
    elif settings.backend.startswith("cupy"):
        lacks = "with a GPU, which has no form for it; take backend numpy, or pass X.toarray()"
    if lacks:
        raise SettingsError(f"X: got a sparse matrix {lacks}")


def why_not_in_blocks(settings: Any) -> str | None:
    """Return why layer 1 cannot have blocks of units or missing values; None if it can."""
    if settings.architecture:
        return "with convolutions, whose units are of one kind; take dense layers"
    if settings.split == "units" and settings.shards_of(1) > 1:
        return "with split units, expected examples; a shard of the columns cannot know the others"
    return None
