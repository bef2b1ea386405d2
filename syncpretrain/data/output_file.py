"""Files of results, one row an example, in the format of the suffix: CSV, NumPy's or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import SettingsError, needed
from syncpretrain.storage import write_atomically

OUTPUT_FORMATS = ".csv, .npy, .npz or .parquet"


def check_output(path: Path) -> None:
    """Refuse a file of an unknown format, before the results are computed.

    Raises
    ------
    SettingsError
        If the suffix is unknown, or the package for it is missing.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".npy", ".npz", ".parquet"):
        raise SettingsError(f"out: got {path}, expected a file that ends in {OUTPUT_FORMATS}")
    if suffix == ".parquet":
        text = "which needs the package pyarrow, and that is not installed; install it, or"
        needed("pyarrow", SettingsError(f"out: got {path}, {text} take .csv"))


def write_output(
    path: Path, columns: Mapping[str, NDArray[Any]], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write results, the file whole or not at all.

    Parameters
    ----------
    path : Path
        Path with one of the suffixes of :func:`check_output`.
    columns : mapping of str to arrays of shape (n,)
        Columns of a CSV or Parquet file.
    arrays : mapping of str to arrays
        Arrays of a ``.npz`` file; a ``.npy`` file holds the first one.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    suffix, buffer = path.suffix.lower(), io.BytesIO()
    if suffix == ".npy":
        np.save(buffer, next(iter(arrays.values())), allow_pickle=False)
    elif suffix == ".npz":
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
    elif suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
        parquet.write_table(table, buffer)
    else:
        text = io.TextIOWrapper(buffer, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(map(_cell, values) for values in columns.values()), strict=True))
        text.flush()
    write_atomically(path, buffer.getvalue())


def _cell(value: Any) -> Any:
    """Return a number with the fewest digits that identify it in its type."""
    if isinstance(value, np.floating):
        return np.format_float_positional(value, trim="-") if 1e-4 <= abs(value) < 1e15 else value
    return int(value) if isinstance(value, (bool, np.bool_)) else value
