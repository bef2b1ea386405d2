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


def read_csv(path: Path) -> tuple[NDArray[np.float32], list[str]]:
    """Read a file of numbers between commas, semicolons or tabs, an example a line.

    Empty lines, and what follows ``#``, are passed over. The first line holds the names of the
    columns, and is no example, if

    * it has no number in it,
    * its fields are quoted, and those of the second line are not,
    * it counts 0, 1, 2, ... as pandas names columns, in three columns or more, or
    * it counts from 0 or 1 in two columns or more, and the second line has a decimal point.

    Returns
    -------
    X : float32 array of shape (n_examples, width)
    notices : list of str
        Messages for the user: a first line of numbers may be names or an example.

    Raises
    ------
    DataError
        Naming the first line, counted from 1, that holds something else or more or fewer numbers.
    """
    try:
        with path.open(encoding="utf-8-sig") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of no rows; the caller says it better
            first, second = file.readline(MAX_LINE), file.readline(MAX_LINE)
            delimiter = next((mark for mark in ";\t" if mark in first), ",")
            header, guess = _header(first, second, delimiter)
            file.seek(0)
            if header:
                file.readline(MAX_LINE)
            try:
                rows = np.loadtxt(
                    file, dtype=np.float32, delimiter=delimiter, quotechar='"', ndmin=2
                )
            except ValueError as error:
                file.seek(0)
                place = _first_bad(file, delimiter, header=header) or str(error)
                raise DataError(
                    f"{path}: {place}; expected numbers, as many in every line"
                ) from error
            return rows, [f"{path}: {guess}"] if guess else []
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: got bytes that are no text, expected numbers in CSV") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _header(first: str, second: str, delimiter: str) -> tuple[bool, str | None]:
    """Return whether the first line holds names, and a notice where that is a guess."""
    fields = [field.strip() for field in first.split(delimiter)]
    if not any(map(_is_number, fields)):
        return True, None
    if all(len(x) > 1 and x[0] == x[-1] == '"' for x in fields) and second.count('"') == 0:
        return bool(second.strip()), None
    counts = [[str(start + i) for i in range(len(fields))] for start in (0, 1)]
    if fields not in counts or len(fields) == 1 or not second.strip():
        return False, None
    shown = first.strip()[:40]
    if "." in second or (fields == counts[0] and len(fields) > 2):
        return True, (
            f"its first line, {shown}, was taken for names of columns; if it is an example, put a"
            " line of names above it"
        )
    return False, (
        f"its first line, {shown}, was read as an example; if it holds names of columns, delete it"
    )


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
