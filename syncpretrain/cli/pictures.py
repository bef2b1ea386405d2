"""Commands that draw a PNG of a run: ``filters``, ``reconstruct``, ``sample``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli import shared
from syncpretrain.errors import DataError, SettingsError

if TYPE_CHECKING:
    from syncpretrain.models.stack import Stack
    from syncpretrain.shapes import ImageShape

LEVEL_HELP = "RBM to sample, from 1; default the top one, decoded, or 1 if stacked or from chains."
METHOD_HELP = "Chains of one RBM, or of all, which swap states. Default gibbs."
PIXELS = 36  # about the side of a filter in the picture


def _beside(run: Path, name: str) -> Path:
    """Return the path of a file in the folder of a run, given as that folder or as its model."""
    return (run if run.is_dir() else run.parent) / name


@click.command("filters")
@click.argument("run", type=shared.RUN)
@shared.number_option("--layer", 1, "Counted from 1.", metavar="L")
@shared.number_option("--count", 100, "Filters or hidden units, the first ones.")
@shared.shape_option
@shared.out_option("FILE.png", "Default filters.png in the folder of the run.")
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
    from syncpretrain.plot.stacks import ENLARGE, filter_images, image_grid, image_shape, save_png
    from syncpretrain.shapes import DenseShape

    target = out or _beside(run, "filters.png")
    stack = load(run)
    shared.check_target(target, run, ending=".png")
    lowest = stack.layers[0].shape
    pixels = layer == 1 and isinstance(lowest, DenseShape)
    images = image_shape(lowest, shape) if pixels else None
    drawn, form = filter_images(stack, layer, images)
    grid = image_grid(*(rows[:count] for rows in drawn), shape=form)
    save_png(grid, target, enlarge=max(ENLARGE, PIXELS // form.height))
    shown = min(count, len(drawn[0]))
    click.echo(f"{target}: {shown} of {len(drawn[0])} units of layer {layer}")


@click.command("reconstruct")
@click.argument("run", type=shared.RUN)
@shared.data_option("Default what the run was trained on.")
@shared.part_option
@shared.number_option("--count", 20, "Examples, drawn at random.")
@shared.shape_option
@shared.number_option("--seed", 0, "Another one draws other examples.", least=0)
@shared.out_option("FILE.png", "Default reconstructions.png in the folder of the run.")
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
    from syncpretrain.models.stack import load
    from syncpretrain.plot.stacks import image_grid, image_shape, save_png, shades

    target = out or _beside(run, "reconstructions.png")
    stack = load(run)
    if stack.head is not None:
        raise DataError(
            f"{run}: was fine-tuned as a classifier and has no decoder; reconstruct a run without"
            " --finetune classification"
        )
    shared.check_target(target, run, data, ending=".png")
    images = image_shape(stack.layers[0].shape, shape)
    examples = examples_of(run, data, part, stack=stack)
    X, stack = examples.rows, stack.for_prepared_rows()
    rows = np.random.default_rng(seed).choice(len(X), size=min(count, len(X)), replace=False)
    drawn = (shades(stack, part) for part in (X[rows], stack.reconstruct(X[rows])))
    grid = image_grid(*drawn, shape=images)
    save_png(grid, target)
    click.echo(f"{target}: {len(rows)} examples of {examples.name} above their reconstructions")


@click.command("sample")
@click.argument("run", type=shared.RUN)
@click.option("--level", type=shared.at_least(1), metavar="L", help=LEVEL_HELP)
@click.option(
    "--method", type=click.Choice(["gibbs", "stacked"]), default="gibbs", help=METHOD_HELP
)
@click.option(
    "--start",
    type=click.Choice(["noise", "data", "chains"]),
    default="noise",
    help="Where the chains start; chains: of training, with --chains. Default noise.",
)
@shared.data_option("For --start data, and for the mixing; default what the run was trained on.")
@shared.part_option
@shared.number_option("--count", 20, "Chains.")
@shared.number_option("--steps", 1000, "Steps of each chain.")
@shared.shape_option
@shared.number_option("--seed", 0, least=0)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE.npy",
    help="Write the samples, too; no picture is drawn if they are no images.",
)
@shared.out_option("FILE.png", "Default samples.png in the folder of the run.")
def sample(
    run: Path,
    level: int | None,
    method: str,
    start: str,
    data: str | None,
    part: str | None,
    count: int,
    steps: int,
    shape: str | None,
    seed: int,
    save: Path | None,
    out: Path | None,
) -> None:
    """Sample from an RBM of the stack, draw the samples as a PNG, and say whether the chains mix.

    Without --level, chains run in the top RBM, and their ends are decoded to the input; chains of
    method stacked, and those that go on from chains of training, sample level 1. The run
    must not be fine-tuned, since fine-tuning leaves no RBM. Chains that start at data are drawn
    under their examples.

    \b
    Examples:
      syncpretrain sample runs/NAME
      syncpretrain sample runs/NAME --start data --steps 10 --count 10
      syncpretrain sample runs/NAME --level 1 --method stacked --save samples.npy
    """
    import numpy as np

    from syncpretrain.cli.run_data import examples_of
    from syncpretrain.models.stack import load
    from syncpretrain.plot.stacks import image_grid, save_png, shades

    target = out or _beside(run, "samples.png")
    stack = load(run)
    shared.check_target(target, run, data, ending=".png")
    if save is not None:
        shared.check_target(save, run, data, option="save")
    if level is None and (start == "chains" or method == "stacked"):
        level = 1
    images = _images_of(stack, shape, level=level, save=save, out=out)
    shown, first = [], None
    if start == "data":
        X = examples_of(run, data, part, stack=stack).rows
        stack = stack.for_prepared_rows()
        count = min(count, len(X))
        first = X[np.random.default_rng(seed).choice(len(X), size=count, replace=False)]
        shown.append(first)
    chains: dict[str, Any] = {"level": level, "method": method, "steps": steps, "seed": seed}
    begin = "chains" if start == "chains" else first
    shown.append(stack.sample(count, start=begin, save=save, **chains))
    files = [str(save)] if save is not None else []
    if images is not None:
        save_png(image_grid(*(shades(stack, rows) for rows in shown), shape=images), target)
        files.insert(0, str(target))
    of_level = "" if level is None else f" of level {level}"
    click.echo(f"{', '.join(files)}: {count} samples{of_level} after {steps} steps from {start}")
    for line in _mixing(stack, run, data, part, chains):
        click.echo(line)


def _images_of(
    stack: Stack, shape: str | None, *, level: int | None, save: Path | None, out: Path | None
) -> ImageShape | None:
    """Return the shape of samples as images; None if they are only saved.

    Raises
    ------
    SettingsError
        If they are no images, and are not saved, or a picture of them is asked for.
    """
    from syncpretrain.plot.stacks import image_shape, image_shape_of

    if level is not None and level > len(stack.layers):
        raise SettingsError(f"level: got {level}, expected 1 to {len(stack.layers)}")
    is_input = (level or 1) == 1
    if save is None and not is_input:
        raise SettingsError(
            f"save: got none for level {level}, whose states are no images; add --save FILE.npy"
        )
    if is_input and (save is None or shape is not None):
        try:
            return image_shape(stack.layers[0].shape, shape)
        except SettingsError as error:
            raise SettingsError(f"{error}; or add --save FILE.npy, without --shape") from None
    images = image_shape_of(stack) if is_input else None
    for option, value in (("out", out), ("shape", shape)):
        if value is not None and images is None:
            raise SettingsError(
                f"{option}: got {value} for samples that are no images; leave it out"
            )
    return images


def _mixing(
    stack: Stack, run: Path, data: str | None, part: str | None, chains: dict[str, Any]
) -> list[str]:
    """Return lines on the mixing of chains from data and noise, or why it is not measured."""
    from syncpretrain.cli.run_data import dataset_of, is_weighted
    from syncpretrain.models.mixing import LEAST_STEPS
    from syncpretrain.report.examples import examples_to_show, mixing_shown

    if chains["steps"] < LEAST_STEPS:
        return []
    try:
        own = dataset_of(run, data, stack=stack)
        if own.train_weights is not None:
            part = part or "train"  # which has the weights
        found = mixing_shown(stack, examples_to_show(own, part, is_weighted(run)), **chains)
    except (DataError, SettingsError, OSError) as error:
        return [f"mixing: not measured: {error}"]
    head, rows = found.rows()
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    table = ("  ".join(map(str.rjust, row, widths)) for row in (head, *rows))
    return [*found.figures()[:1], *table, *found.figures()[1:], *found.sentences()]
