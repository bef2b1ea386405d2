"""``syncpretrain reconstruct``."""

from __future__ import annotations

from pathlib import Path

import click

from syncpretrain.cli.options import (
    RUN,
    at_least,
    check_target,
    data_option,
    part_option,
    shape_option,
)

__all__ = ["command"]


@click.command("reconstruct")
@click.argument("run", type=RUN)
@data_option("Default what the run was trained on.")
@part_option
@click.option(
    "--count",
    type=at_least(1),
    default=20,
    metavar="N",
    help="Examples, drawn at random. Default 20.",
)
@shape_option
@click.option(
    "--seed",
    type=at_least(0),
    default=0,
    metavar="N",
    help="Another one draws other examples. Default 0.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Default reconstructions.png in the folder of the run.",
)
def command(
    run: Path,
    data: str | None,
    part: str | None,
    count: int,
    shape: str | None,
    seed: int,
    out: Path | None,
) -> None:
    """Draw examples, and below each its reconstruction by the whole stack, as a PNG.

    \b
    Examples:
      syncpretrain reconstruct runs/NAME
      syncpretrain reconstruct runs/NAME --data faces.npy --shape 32x24 --out faces.png
    """
    import numpy as np

    from syncpretrain.cli.run_data import examples_of
    from syncpretrain.errors import DataError
    from syncpretrain.models.stack import load
    from syncpretrain.plot.images import image_grid, image_shape, save_png, shades

    target = out or (run if run.is_dir() else run.parent) / "reconstructions.png"
    stack = load(run)
    if stack.head is not None:
        raise DataError(
            f"{run}: was fine-tuned as a classifier and has no decoder; reconstruct a run without"
            " --finetune classification"
        )
    check_target(target, run, data)
    images = image_shape(stack.layers[0].shape, shape)
    examples = examples_of(run, data, part, stack=stack)
    X, stack = examples.rows, stack.for_prepared_rows()
    rows = np.random.default_rng(seed).choice(len(X), size=min(count, len(X)), replace=False)
    drawn = (shades(stack, part) for part in (X[rows], stack.reconstruct(X[rows])))
    grid = image_grid(*drawn, shape=images)
    save_png(grid, target)
    click.echo(f"{target}: {len(rows)} examples of {examples.name} above their reconstructions")
