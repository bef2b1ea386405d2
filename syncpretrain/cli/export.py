"""``syncpretrain export``."""

from __future__ import annotations

from pathlib import Path

import click

from syncpretrain.cli.shared import RUN, check_target, out_option
from syncpretrain.models.export.formats import EXPORT_FORMATS, EXPORT_PARTS


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
def command(run: Path, file_format: str | None, part: str | None, out: Path) -> None:
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
    network = describe(load(run).model, part)
    files = write_export(out, file_format, network)
    wide = f"{len(network.table)} columns" if network.table else f"{network.width} values"
    end = f"{len(network.classes)} classes" if network.classes else f"{network.outputs} values"
    click.echo(f"{' and '.join(map(str, files))}: {network.part}, {wide} to {end}")
