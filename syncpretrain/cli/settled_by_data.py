"""Options that the data decide: the width of the input, and visible units by its columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from syncpretrain.cli.help_texts import TEXTS
from syncpretrain.cli.train_options import AUTO
from syncpretrain.errors import SettingsError
from syncpretrain.settings.architecture import MAX_UNITS

if TYPE_CHECKING:
    from syncpretrain.data.dataset import Dataset
    from syncpretrain.settings import Settings
    from syncpretrain.settings.by_data import Given

__all__ = ["hidden_option", "settle"]

F = TypeVar("F", bound=Callable[..., Any])


def hidden_option(command: F) -> F:
    """Add ``--hidden``."""
    return click.option("--hidden", metavar="N[,N...]", help=TEXTS["hidden"])(command)


def settle(
    made: Callable[[dict[str, Any]], Settings],
    given: Given | None,
    hidden: str | None,
    options: dict[str, Any],
) -> Dataset | None:
    """Complete options by the data, which are returned; None where they leave nothing open.

    Parameters
    ----------
    made : callable
        Returns the settings that options make.
    given : Given or None
        The settings that were given.
    hidden : str, optional
        The units of each layer.
    options : dict
        Completed in place.

    Raises
    ------
    SettingsError, DataError
        If an option is wrong, or the data cannot be trained on.
    """
    is_auto = options["visible_units"] == AUTO
    if not is_auto and hidden is None:
        return None
    from syncpretrain.data.facts import units_of_array
    from syncpretrain.runs.prepare import load_data

    if hidden is not None and options["layers"] is not None:
        raise SettingsError("hidden: got it beside --layers, expected one of the two")
    if hidden is not None and not all(part.strip().isdecimal() for part in hidden.split(",")):
        raise SettingsError(
            f"hidden: got {hidden!r}, expected the units of each dense layer, such as 100,50;"
            " convolutions stand in --layers, behind the shape of the images"
        )
    before = dict(options)
    if is_auto:
        before["visible_units"] = "gaussian"  # which any values suit
    if hidden is not None:
        before["layers"] = f"{_width_of(before['visible_units'])},{hidden}"
    data = load_data(made(before), given=given, encode=is_auto)
    if is_auto:
        options["visible_units"] = units_of_array(data.train, data.columns)
    if hidden is not None:
        options["layers"] = f"{data.width},{hidden}"
    return data


def _width_of(units: str | None) -> int:
    """Return the width of blocks of units that all have a number, else one that any data fits."""
    from syncpretrain.units.blocks import read_blocks

    try:
        return read_blocks(units or "")[-1].stop
    except ValueError:
        return MAX_UNITS
