"""``syncpretrain predict``."""

from __future__ import annotations

from pathlib import Path

import click

from syncpretrain.cli.options import RUN, check_target, data_option, out_option, part_option

__all__ = ["command"]


@click.command("predict")
@click.argument("run", type=RUN)
@data_option("Default what the run was trained on.")
@part_option
@click.option("--proba", is_flag=True, help="Write the probability of each class too.")
@out_option
def command(run: Path, data: str | None, part: str | None, proba: bool, out: Path) -> None:
    """Write the class of each example by its own name, or the number that a regression predicts.

    The columns of a table are found by their names; the target column may be missing. A .npy file
    holds the predictions alone, with --proba the probabilities alone.

    \b
    Examples:
      syncpretrain predict runs/NAME --data new.csv --out y.csv
      syncpretrain predict runs/NAME --data new.csv --proba --out y.npz
    """
    import numpy as np

    from syncpretrain.cli.run_data import examples_of
    from syncpretrain.data.columns import columns_in
    from syncpretrain.data.output_file import check_output, write_output
    from syncpretrain.errors import DataError, SettingsError
    from syncpretrain.models.stack import load

    check_target(out, run, data)
    check_output(out)
    stack = load(run)
    if stack.head is None:
        raise DataError(
            f"{run}: predicts nothing; train it with --finetune classification, or fine-tune it:"
            f" syncpretrain finetune {run} --data FILE --target COLUMN"
        )
    if proba and stack.head.kind != "classification":
        raise SettingsError("proba: got it for a regression, expected a classifier")
    examples = examples_of(run, data, part, stack=stack)
    prepared = stack.for_prepared_rows()
    predicted = prepared.predict(examples.rows)
    columns = columns_in(stack.info)
    target = columns.target.name if columns and columns.target else "y"
    if predicted.ndim == 1:
        table = {target: predicted}
    else:
        table = {f"{target}{i}": predicted[:, i] for i in range(predicted.shape[1])}
    arrays = {"y": predicted}
    if proba:
        shares = prepared.predict_proba(examples.rows)
        table |= {f"p({name})": shares[:, i] for i, name in enumerate(stack.head.classes)}
        arrays = {"proba": shares, "y": predicted, "classes": np.array(stack.head.classes)}
    write_output(out, table, arrays)
    click.echo(f"{out}: {len(predicted):,} predictions of {target}, of {examples.name}")
