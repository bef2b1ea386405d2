"""``syncpretrain encode``."""

from __future__ import annotations

from pathlib import Path

import click

from syncpretrain.cli.options import RUN, check_target, data_option, out_option, part_option

__all__ = ["command"]


@click.command("encode")
@click.argument("run", type=RUN)
@data_option("Default what the run was trained on.")
@part_option
@click.option(
    "--layer",
    type=int,
    metavar="L",
    help="Stop at this layer, counted from 1; default the top one.",
)
@click.option(
    "--log-odds", is_flag=True, help="Write log-odds of binary units instead of probabilities."
)
@out_option
def command(
    run: Path, data: str | None, part: str | None, layer: int | None, log_odds: bool, out: Path
) -> None:
    """Write the code of each example to a file: float32 of shape (examples, units).

    \b
    Examples:
      syncpretrain encode runs/NAME --data X.npy --out Z.npy
      syncpretrain encode runs/NAME --part train --out train-codes.npy
      syncpretrain encode runs/NAME --log-odds --out documents.npy
    """
    from syncpretrain.cli.run_data import examples_of
    from syncpretrain.data.output_file import check_output, write_output
    from syncpretrain.errors import SettingsError
    from syncpretrain.models.passes import with_log_odds
    from syncpretrain.models.stack import load

    check_target(out, run, data)
    check_output(out)
    stack = load(run)
    if layer is not None and not 1 <= layer <= len(stack.layers):
        raise SettingsError(f"layer: got {layer}, expected 1 to {len(stack.layers)}")
    if log_odds:
        with_log_odds(stack.layers[:layer])  # refuses before data is read
    examples = examples_of(run, data, part, stack=stack)
    codes = stack.for_prepared_rows().encode(examples.rows, layer=layer, log_odds=log_odds)
    units = {f"unit{i + 1}": codes[:, i] for i in range(codes.shape[1])}
    write_output(out, units, {"codes": codes})
    click.echo(f"{out}: {len(codes):,} codes of {codes.shape[1]} units, of {examples.name}")
