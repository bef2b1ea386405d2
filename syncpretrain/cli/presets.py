"""``syncpretrain presets``."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command("presets")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the presets of train, or print one: settings with the papers they come from.

    \b
    Examples:
      syncpretrain presets
      syncpretrain presets hinton2006
      syncpretrain train --preset hinton2006
    """
    from syncpretrain.settings import preset_names, preset_path

    if name is not None:
        click.echo(preset_path(name).read_text(encoding="utf-8"), nl=False)
        return
    for known in preset_names():
        first = preset_path(known).read_text(encoding="utf-8").splitlines()[0]
        click.echo(f"{known:18} {first.removeprefix('# ').rstrip(',')}")
