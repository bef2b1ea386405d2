"""``syncpretrain evaluate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from syncpretrain.cli.options import RUN, data_option, json_option
from syncpretrain.cli.output import print_errors


@click.command("evaluate")
@click.argument("run", type=RUN)
@data_option("Default what the run was trained on.")
@click.option(
    "--log-z", "partition", is_flag=True, help="Estimate log Z of each layer; takes a while."
)
@json_option
def command(run: Path, data: str | None, partition: bool, as_json: bool) -> None:
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
    report = measure(stack, examples, layer_parts=PARTS)
    report["trained_on"] = stack.info.get("data")
    held_out = examples.validation if len(examples.validation) else examples.test
    figures = diagnose_layers(stack, examples.train, held_out, partition=partition)
    for row, found in zip(report["layers"], figures, strict=True):
        row.update(found)
    if as_json:
        click.echo(json.dumps(report))
    else:
        finetuned = any(layer.decoder_weight is not None for layer in stack.layers)
        print_errors(report, sys.stdout, finetuned=finetuned)
