"""CSV files of numbers, with a line of names or none."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError

__all__ = ["read_csv"]

MAX_LINE = 1 << 24


def read_csv(path: Path) -> NDArray[np.float32]:
    """Read a file of numbers between commas, semicolons or tabs, an example a line.

    A first line without any number is taken for names. Empty lines, and what follows ``#``, are
    passed over.

    Raises
    ------
    DataError
        Naming the first line, counted from 1, that holds something else or more or fewer numbers.
    """
    try:
        with path.open(encoding="utf-8-sig") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of no rows; the caller says it better
            first = file.readline(MAX_LINE)
            delimiter = next((mark for mark in ";\t" if mark in first), ",")
            header = not any(_is_number(field) for field in first.split(delimiter))
            if not header:
                file.seek(0)
            try:
                return np.loadtxt(
                    file, dtype=np.float32, delimiter=delimiter, quotechar='"', ndmin=2
                )
            except ValueError as error:
                file.seek(0)
                place = _first_bad(file, delimiter, header=header) or str(error)
                raise DataError(
                    f"{path}: {place}; expected numbers, as many in every line"
                ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: got bytes that are no text, expected numbers in CSV") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _first_bad(file: TextIO, delimiter: str, *, header: bool) -> str | None:
    """Find what NumPy refused, whose own rows and columns count now from 0, now from 1."""
    width = None
    for number, line in enumerate(file, start=1):
        text = line.partition("#")[0].strip("\r\n")
        if not text or (header and number == 1):
            continue
        fields = text.split(delimiter)
        for column, field in enumerate(fields, start=1):
            if not _is_number(field):
                return f"got {field[:40]!r} in line {number}, field {column}"
        width = width or len(fields)
        if len(fields) != width:
            return f"got width {len(fields)} in line {number} after lines of width {width}"
    return None


def _is_number(field: str) -> bool:
    try:
        float(field.strip().strip('"'))
    except ValueError:
        return False
    return True
