"""Commands that show what a run learned: as figures, as a page, and as pictures (PNG).

``evaluate`` prints figures, and ``report`` writes a page; ``filters``, ``reconstruct`` and
``sample`` draw.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncpretrain.cli import shared
from syncpretrain.cli.output import print_errors
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.storage import write_atomically

if TYPE_CHECKING:
    from syncpretrain.models.stack import Stack
    from syncpretrain.report.examples import Shown
    from syncpretrain.runs.record import RunRecord
    from syncpretrain.shapes import ImageShape

REPORT_NAME = "report.html"
LEVEL_HELP = "RBM to sample, from 1; default the top one, decoded, or 1 if stacked or from chains."
METHOD_HELP = "Chains of one RBM, or of all, which swap states. Default gibbs."
PIXELS = 36  # about the side of a filter in the picture


@click.command("evaluate")
@click.argument("run", type=shared.RUN)
@shared.data_option("Default what the run was trained on.")
@click.option(
    "--log-z", "partition", is_flag=True, help="Estimate log Z of each layer; takes a while."
)
@shared.json_option
def evaluate(run: Path, data: str | None, partition: bool, as_json: bool) -> None:
    """Measure each layer and the whole stack.

    The reconstruction error is the squared error, summed over the values of an example and averaged
    over examples; Gaussian visible units count with their standardized values. A file that the run
    was not trained on counts as test data as a whole.

    For a layer that is still an RBM, the free-energy gap between held-out and training examples
    shows overfitting, and the pseudo-likelihood how well it models them (both in nats; values
    between 0 and 1 are taken as probabilities of binary units). Dead and saturated units are off,
    or on, for every example. --log-z estimates the partition function by annealed importance
    sampling, or enumerates it where a side has at most 20 units.

    \b
    Examples:
      syncpretrain evaluate runs/NAME
      syncpretrain evaluate runs/NAME --data other.npy --json
      syncpretrain evaluate runs/NAME --log-z
    """
    from syncpretrain.cli.run_data import dataset_of
    from syncpretrain.data.dataset import PARTS
    from syncpretrain.models.diagnosis import diagnose_layers
    from syncpretrain.models.stack import load
    from syncpretrain.runs.metrics import measure

    stack = load(run)
    examples = dataset_of(run, data, stack=stack)
    stack = stack.for_prepared_rows()
    measured = measure(stack, examples, layer_parts=PARTS)
    measured["trained_on"] = stack.info.get("data")
    held_out = examples.validation if len(examples.validation) else examples.test
    figures = diagnose_layers(stack, examples.train, held_out, partition=partition)
    for row, found in zip(measured["layers"], figures, strict=True):
        row.update(found)
    if as_json:
        click.echo(json.dumps(measured))
    else:
        finetuned = any(layer.decoder_weight is not None for layer in stack.layers)
        print_errors(measured, finetuned=finetuned)


@click.command("report")
@click.argument("run", type=shared.RUN)
@click.argument("other", type=shared.RUN, required=False, metavar="[OTHER]")
@shared.data_option("Default what the run was trained on.")
@shared.part_option
@shared.shape_option
@shared.out_option("FILE.html", "Default report.html in the folder of the run.")
def report(
    run: Path,
    other: Path | None,
    data: str | None,
    part: str | None,
    shape: str | None,
    out: Path | None,
) -> None:
    """Write what a run did and learned as one page of HTML, which loads nothing.

    The page begins with whether the run worked. Then follow its errors, learning curves, who
    trained when, reconstructions, filters, activities of the hidden units, a map of the codes,
    samples, the times of other schedules, and its settings. The page of a run that failed or was
    stopped has what there is, and the reason. Without its data the examples are left out.

    With OTHER the page compares two runs: settings that differ, errors, curves, diagrams, and
    reconstructions of examples of the first run by both.

    \b
    Examples:
      syncpretrain report runs/NAME
      syncpretrain report runs/NAME runs/NAME --out both.html
    """
    from syncpretrain.report import check_report, report_page, sections_of, sections_of_comparison
    from syncpretrain.runs.record import read_run

    check_report()
    runs = [read_run(path) for path in (run, other) if path is not None]
    if len({record.name for record in runs}) < len(runs):  # two folders have the same name
        runs = [read_run(path, name=str(path)) for path in (run, other) if path is not None]
    target = out or runs[0].folder / REPORT_NAME
    shared.check_target(target, data, run, other)
    examples = () if runs[0].stack is None else _shown(runs[0], runs[0].stack, data, part, shape)
    sections = sections_of_comparison(runs, *examples) if other else sections_of(runs[0], *examples)
    write_atomically(target, report_page(runs, sections))
    click.echo(f"{target}: {len(sections)} sections")


def _shown(
    run: RunRecord, stack: Stack, data: str | None, part: str | None, shape: str | None
) -> tuple[ImageShape | None, Shown | str]:
    """Return the shape of the examples as images, and the examples.

    If the examples of the run cannot be read any more, the reason stands in their place.
    """
    from syncpretrain.cli.run_data import dataset_of, is_weighted
    from syncpretrain.plot.stacks import image_shape_of
    from syncpretrain.report.examples import examples_to_show

    images = image_shape_of(stack, shape)
    try:
        found = dataset_of(run.folder, data, stack=stack)
        return images, examples_to_show(found, part, is_weighted(run.folder))
    except (DataError, SettingsError, OSError) as error:
        if data is not None or part is not None:
            raise  # the user gave them
        return images, str(error)


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
    images = image_shape(lowest, shape) if layer == 1 and isinstance(lowest, DenseShape) else None
    drawn, form = filter_images(stack, layer, images)
    grid = image_grid(*(rows[:count] for rows in drawn), shape=form)
    save_png(grid, target, enlarge=max(ENLARGE, PIXELS // form.height))
    click.echo(f"{target}: {min(count, len(drawn[0]))} of {len(drawn[0])} units of layer {layer}")


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
    save_png(image_grid(*drawn, shape=images), target)
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
