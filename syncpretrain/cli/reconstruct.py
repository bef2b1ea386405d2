"""``syncpretrain reconstruct``."""

from __future__ import annotations

from pathlib import Path

import click

from syncpretrain.cli.options import RUN, data_option

__all__ = ["command"]


@click.command("reconstruct")
@click.argument("run", type=RUN)
@data_option(help="Default what the run was trained on.")
@click.option(
    "--part",
    type=click.Choice(["train", "validation", "test"]),
    default="test",
    show_default=True,
    help="Which part of a named data set.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Examples, drawn at random.",
)
@click.option("--shape", metavar="HxW", help="Of an example's image; default square.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the drawing."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Default reconstructions.png in the run folder.",
)
def command(
    run: Path,
    data: str | None,
    part: str,
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

    from syncpretrain.cli.examples import examples_of
    from syncpretrain.cli.files import check_target
    from syncpretrain.report.images import image_shape, pairs_grid, save_png
    from syncpretrain.stack import load

    target = out or (run if run.is_dir() else run.parent) / "reconstructions.png"
    stack = load(run)
    check_target(target)
    height, width = image_shape(stack.widths[0], shape)
    X = examples_of(run, data, part, width=stack.widths[0])
    rows = np.random.default_rng(seed).choice(len(X), size=min(count, len(X)), replace=False)
    grid = pairs_grid(X[rows], stack.reconstruct(X[rows]), height=height, width=width)
    save_png(grid, target)
    click.echo(f"{target}: {len(rows)} examples above their reconstructions")
