"""``syncpretrain evaluate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from syncpretrain.cli.options import RUN, data_option, json_option

__all__ = ["command"]


@click.command("evaluate")
@click.argument("run", type=RUN)
@data_option("Default what the run was trained on.")
@json_option
def command(run: Path, data: str | None, as_json: bool) -> None:
    """Measure the reconstruction error of each layer and of the whole stack.

    It is the squared error summed over the values of an example, averaged over examples. A file
    that the run was not trained on counts as test data, all of it.

    \b
    Examples:
      syncpretrain evaluate runs/NAME
      syncpretrain evaluate runs/NAME --data other.npy --json
    """
    from syncpretrain.cli.examples import dataset_of
    from syncpretrain.cli.tables import print_errors
    from syncpretrain.run import PARTS, measure
    from syncpretrain.stack import load

    stack = load(run)
    report = measure(stack, dataset_of(run, data, width=stack.widths[0]), layer_parts=PARTS)
    if as_json:
        click.echo(json.dumps(report))
    else:
        finetuned = any(layer.decoder_weight is not None for layer in stack.layers)
        print_errors(report, sys.stdout, finetuned=finetuned)
