"""The command line as it was typed."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import join

import click

__all__ = ["keep_typed", "typed"]

KEY = "syncpretrain.arguments"


def keep_typed(ctx: click.Context, arguments: Sequence[str]) -> None:
    """Keep the arguments of the program for its commands."""
    ctx.meta[KEY] = tuple(arguments)


def typed() -> str:
    """Return the command line of the running command."""
    return join(["syncpretrain", *click.get_current_context().meta[KEY]])
