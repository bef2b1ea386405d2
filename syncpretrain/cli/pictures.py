"""Commands that draw a PNG of a run: ``filters``, ``reconstruct``, ``sample``."""

from __future__ import annotations

from pathlib import Path

import click

from syncpretrain.cli.options import (
    RUN,
    check_target,
    data_option,
    number_option,
    out_option,
    part_option,
    shape_option,
)

PIXELS = 36  # about the side of a filter in the picture


def _beside(run: Path, name: str) -> Path:
    """Return the path of a file in the folder of a run, given as that folder or as its model."""
    return (run if run.is_dir() else run.parent) / name


@click.command("filters")
@click.argument("run", type=RUN)
@number_option("--layer", 1, "Counted from 1.", metavar="L")
@number_option("--count", 100, "Filters or hidden units, the first ones.")
@shape_option
@out_option("FILE.png", "Default filters.png in the folder of the run.")
def filters(run: Path, layer: int, count: int, shape: str | None, out: Path | None) -> None:
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
    from syncpretrain.plot.images import ENLARGE, filter_images, image_grid, image_shape, save_png
    from syncpretrain.shapes import DenseShape

    target = out or _beside(run, "filters.png")
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


@click.command("reconstruct")
@click.argument("run", type=RUN)
@data_option("Default what the run was trained on.")
@part_option
@number_option("--count", 20, "Examples, drawn at random.")
@shape_option
@number_option("--seed", 0, "Another one draws other examples.", least=0)
@out_option("FILE.png", "Default reconstructions.png in the folder of the run.")
def reconstruct(
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

    target = out or _beside(run, "reconstructions.png")
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


@click.command("sample")
@click.argument("run", type=RUN)
@click.option(
    "--start",
    type=click.Choice(["noise", "data"]),
    default="noise",
    help="Where the chains start. Default noise.",
)
@data_option("For --start data; default what the run was trained on.")
@part_option
@number_option("--count", 20, "Chains.")
@number_option("--steps", 1000, "Steps of each chain.")
@shape_option
@number_option("--seed", 0, least=0)
@out_option("FILE.png", "Default samples.png in the folder of the run.")
def sample(
    run: Path,
    start: str,
    data: str | None,
    part: str | None,
    count: int,
    steps: int,
    shape: str | None,
    seed: int,
    out: Path | None,
) -> None:
    """Sample from the top RBM, decode the samples to the input, and draw them as a PNG.

    The run must not be fine-tuned, since fine-tuning leaves no RBM. Chains that start at data are
    drawn under their examples.

    \b
    Examples:
      syncpretrain sample runs/NAME
      syncpretrain sample runs/NAME --start data --steps 10 --count 10
    """
    import numpy as np

    from syncpretrain.cli.run_data import examples_of
    from syncpretrain.models.stack import load
    from syncpretrain.plot.images import image_grid, image_shape, save_png, shades

    if start == "noise" and (data or part):
        raise click.UsageError("--data and --part say where chains start; add --start data")
    target = out or _beside(run, "samples.png")
    stack = load(run)
    check_target(target, run)
    images = image_shape(stack.layers[0].shape, shape)
    shown, first = [], None
    if start == "data":
        X = examples_of(run, data, part, stack=stack).rows
        stack = stack.for_prepared_rows()
        count = min(count, len(X))
        first = X[np.random.default_rng(seed).choice(len(X), size=count, replace=False)]
        shown.append(first)
    shown.append(stack.sample(count, steps=steps, seed=seed, start=first))
    save_png(image_grid(*(shades(stack, rows) for rows in shown), shape=images), target)
    click.echo(f"{target}: {count} samples after {steps} steps from {start}")
