"""``syncpretrain filters``."""

from __future__ import annotations

from pathlib import Path

import click

from syncpretrain.cli.options import RUN, at_least, check_target, shape_option

__all__ = ["command"]

PIXELS = 36  # about the side of a filter in the picture


@click.command("filters")
@click.argument("run", type=RUN)
@click.option(
    "--layer", type=at_least(1), default=1, metavar="L", help="Counted from 1. Default 1."
)
@click.option(
    "--count",
    type=at_least(1),
    default=100,
    metavar="N",
    help="Filters or hidden units, the first ones. Default 100.",
)
@shape_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Default filters.png in the folder of the run.",
)
def command(run: Path, layer: int, count: int, shape: str | None, out: Path | None) -> None:
    """Draw the weights of a layer as images, as a PNG: the filters of a convolution.

    A filter of a convolution above another reads many maps; its weights for each map are drawn
    under each other. Grey is 0, and each filter has its own contrast. Among dense layers only the
    first can be drawn.

    \b
    Examples:
      syncpretrain filters runs/NAME
      syncpretrain filters runs/NAME --layer 2 --count 20 --out second.png
    """
    from syncpretrain.models.stack import load
    from syncpretrain.plot.images import (
        ENLARGE,
        filter_images,
        image_grid,
        image_shape,
        save_png,
    )
    from syncpretrain.shapes import DenseShape

    target = out or (run if run.is_dir() else run.parent) / "filters.png"
    stack = load(run)
    check_target(target, run)
    lowest = stack.layers[0].shape
    pixels = layer == 1 and isinstance(lowest, DenseShape)
    images = image_shape(lowest, shape) if pixels else None
    drawn, form = filter_images(stack, layer, images)
    grid = image_grid(*(rows[:count] for rows in drawn), shape=form)
    save_png(grid, target, enlarge=max(ENLARGE, PIXELS // form.height))
    shown = min(count, len(drawn[0]))
    click.echo(f"{target}: {shown} of {len(drawn[0])} units of layer {layer}")
