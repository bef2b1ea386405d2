"""Commands that show what a run reached: ``evaluate`` and ``report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

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
