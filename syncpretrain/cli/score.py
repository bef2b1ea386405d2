"""``syncpretrain score``."""

from __future__ import annotations

from pathlib import Path

import click

from syncpretrain.cli.options import RUN, check_target, data_option, out_option, part_option

__all__ = ["command"]


@click.command("score")
@click.argument("run", type=RUN)
@data_option("Default what the run was trained on.")
@part_option
@click.option(
    "--by",
    type=click.Choice(["reconstruction", "free-energy"]),
    default="reconstruction",
    help="The error of the whole stack (default), or the free energy of layer 1, an RBM.",
)
@click.option("--per-feature", is_flag=True, help="Write the part of each column in the error too.")
@click.option(
    "--quantile",
    type=float,
    default=0.99,
    metavar="FRACTION",
    help="Quantile of the training scores above which an example is an outlier. Default 0.99.",
)
@out_option
def command(
    run: Path,
    data: str | None,
    part: str | None,
    by: str,
    per_feature: bool,
    quantile: float,
    out: Path,
) -> None:
    """Write how unlike the training data each example is, and whether it is an outlier.

    A higher score means less alike. The threshold is a quantile of the scores of the run's own
    training examples, which are read again. A .npy file holds the scores alone.

    \b
    Examples:
      syncpretrain score runs/NAME --data new.csv --out scores.csv
      syncpretrain score runs/NAME --by free-energy --quantile 0.95 --out scores.npy
    """
    import numpy as np

    from syncpretrain.cli.run_data import check_names_data, dataset_of, examples_of
    from syncpretrain.data.output_file import check_output, write_output
    from syncpretrain.errors import SettingsError
    from syncpretrain.models.scores import check_scores, feature_names, feature_scores, scores
    from syncpretrain.models.stack import load

    check_target(out, run, data)
    check_output(out)
    if not 0 <= quantile <= 1:
        raise SettingsError(f"quantile: got {quantile}, expected a number from 0 to 1")
    if per_feature and by != "reconstruction":
        raise SettingsError(
            "per_feature: got it with --by free-energy, which has no parts by column; take"
            " --by reconstruction"
        )
    stack = load(run)
    check_scores(stack, by)
    check_names_data(run)
    examples = examples_of(run, data, part, stack=stack)
    trained_on, stack = dataset_of(run, None, stack=stack).train, stack.for_prepared_rows()
    usual = scores(stack, trained_on, by=by)
    threshold = float(np.quantile(usual, quantile))
    if per_feature:
        parts = feature_scores(stack, examples.rows)
        found = parts.sum(axis=1)
    else:
        found = scores(stack, examples.rows, by=by)
    table = {"score": found, "outlier": (outliers := found > threshold)}
    arrays = {**table, "threshold": np.array(threshold)}
    if per_feature:
        names = feature_names(stack)
        table |= {f"score({name})": parts[:, i] for i, name in enumerate(names)}
        arrays |= {"per_feature": parts, "columns": np.array(names)}
    write_output(out, table, arrays)
    click.echo(
        f"{out}: {len(found):,} scores by {by}, of {examples.name}; {int(outliers.sum()):,} above"
        f" {threshold:.6g}, the {quantile:g} quantile of the training examples"
    )
