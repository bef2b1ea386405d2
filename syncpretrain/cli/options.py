"""Types of option values, and the options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = ["FLOATS", "INTEGERS", "MOMENTUM", "RUN", "data_option", "json_option"]

F = TypeVar("F", bound=Callable[..., Any])


class _Numbers(click.ParamType):
    """Numbers separated by commas: one for all layers, or one a layer."""

    def __init__(self, number: type[int] | type[float], name: str) -> None:
        self.number = number
        self.name = name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Parse, or say what was got and expected."""
        kind = "whole numbers" if self.number is int else "numbers"
        try:
            return tuple(self.number(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"got {value!r}, expected {kind} separated by commas", param, ctx)


class _Momentum(click.ParamType):
    name = "V:EPOCHS,V"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the form here, so that the option is named."""
        from syncpretrain.errors import SettingsError
        from syncpretrain.settings import MomentumSchedule

        try:
            MomentumSchedule(value)
        except SettingsError as error:
            self.fail(str(error).removeprefix("momentum: "), param, ctx)
        return str(value)


INTEGERS = _Numbers(int, "N[,N...]")
FLOATS = _Numbers(float, "X[,X...]")
MOMENTUM = _Momentum()
RUN = click.Path(path_type=Path)


def data_option(**attributes: Any) -> Callable[[F], F]:
    """Return ``--data``; the command says what it takes without it."""
    return click.option(
        "--data", metavar="NAME|FILE", help="mnist, digits, or a file. " + attributes.pop("help")
    )


def json_option(command: F) -> F:
    """Add ``--json``: one object on stdout, and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)
