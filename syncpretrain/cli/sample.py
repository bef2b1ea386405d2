"""``syncpretrain sample``."""

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
@click.option("--count", type=at_least(1), default=20, metavar="N", help="Chains. Default 20.")
@click.option(
    "--steps",
    type=at_least(1),
    default=1000,
    metavar="N",
    help="Steps of each chain. Default 1000.",
)
@shape_option
@click.option("--seed", type=at_least(0), default=0, metavar="N", help="Default 0.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Default samples.png in the folder of the run.",
)
def command(
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
    target = out or (run if run.is_dir() else run.parent) / "samples.png"
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
