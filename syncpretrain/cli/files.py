"""Commands that write a file by a run: values of examples, or a part of it for other libraries.

``encode``, ``predict`` and ``score`` write a value of each example, ``export`` a model.
"""

from __future__ import annotations

from pathlib import Path

import click

from syncpretrain.cli.shared import RUN, check_target, data_option, out_option, part_option
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.models.export.formats import EXPORT_FORMATS, EXPORT_PARTS

OUT = out_option("FILE", "The file to write: .csv, .npy, .npz or .parquet.", required=True)


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
@OUT
def encode(
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
    from syncpretrain.models.layer import with_log_odds
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


@click.command("predict")
@click.argument("run", type=RUN)
@data_option("Default what the run was trained on.")
@part_option
@click.option("--proba", is_flag=True, help="Write the probability of each class too.")
@OUT
def predict(run: Path, data: str | None, part: str | None, proba: bool, out: Path) -> None:
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
@OUT
def score(
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
    threshold = float(np.quantile(scores(stack, trained_on, by=by), quantile))
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


@click.command("export")
@click.argument("run", type=RUN)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(list(EXPORT_FORMATS)),
    help="Default by the suffix of --out.",
)
@click.option(
    "--part",
    type=click.Choice(EXPORT_PARTS),
    help="Default what the run was trained for: its classifier or regressor, else its encoder.",
)
@out_option(
    "FILE",
    f"The file to write: {', '.join(kind.suffix for kind in EXPORT_FORMATS.values())}.",
    required=True,
)
def export(run: Path, file_format: str | None, part: str | None, out: Path) -> None:
    """Write a part of a run as a model of another library, without a pickle.

    The model reads raw rows: standardization and the categories of a table are part of it. The
    suffixes stand for ONNX, PyTorch (parameters, with a Python file that loads them), Keras,
    scikit-learn (by skops) and NumPy, in this order.

    \b
    Examples:
      syncpretrain export runs/NAME --out encoder.onnx
      syncpretrain export runs/NAME --format torch --part autoencoder --out net.safetensors
    """
    from syncpretrain.models.export.describe import describe
    from syncpretrain.models.export.formats import format_for, write_export
    from syncpretrain.models.stack import load

    check_target(out, run)
    format_for(file_format, out)  # a wrong one is refused before the work
    stack = load(run)
    network = describe(stack.model, part)
    files = write_export(out, file_format, network)
    wide = f"{len(network.table)} columns" if network.table else f"{network.width} values"
    end = f"{len(network.classes)} classes" if network.classes else f"{network.outputs} values"
    click.echo(f"{' and '.join(map(str, files))}: {network.part}, {wide} to {end}")
    if stack.meaning is not None and stack.meaning.values == "bytes":
        click.echo("trained on bytes: give it rows divided by 255", err=True)
