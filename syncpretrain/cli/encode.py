"""``syncpretrain encode``."""

from __future__ import annotations

import io
from pathlib import Path

import click

from syncpretrain.cli.options import RUN, data_option

__all__ = ["command"]


@click.command("encode")
@click.argument("run", type=RUN)
@data_option(help="Default what the run was trained on. All rows of a file, in their order.")
@click.option(
    "--part",
    type=click.Choice(["train", "validation", "test"]),
    default="test",
    show_default=True,
    help="Which part of a named data set.",
)
@click.option("--layer", type=int, metavar="L", help="Stop at this layer; default the top one.")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="Z.npy",
    help="The .npy file to write.",
)
def command(run: Path, data: str | None, part: str, layer: int | None, out: Path) -> None:
    """Write the code of each example, float32 of shape (examples, units), to a .npy file.

    \b
    Examples:
      syncpretrain encode runs/NAME --data X.npy --out Z.npy
      syncpretrain encode runs/NAME --part train --out train-codes.npy
    """
    import numpy as np

    from syncpretrain.cli.examples import examples_of
    from syncpretrain.cli.files import check_target
    from syncpretrain.modelfile import write_atomically
    from syncpretrain.stack import load

    check_target(out)
    stack = load(run)
    codes = stack.encode(examples_of(run, data, part, width=stack.widths[0]), layer=layer)
    buffer = io.BytesIO()
    np.save(buffer, codes, allow_pickle=False)
    write_atomically(out, buffer.getvalue())
    click.echo(f"{out}: {len(codes):,} codes of {codes.shape[1]} units")
