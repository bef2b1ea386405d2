"""The head of a CSV file, and a file of numbers alone."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError

__all__ = ["Head", "opened", "read_head", "read_numbers"]

MAX_LINE = 1 << 24


class Head(NamedTuple):
    """The head of a file: what is between its cells, and the names of its columns if it has some.

    ``notice`` is a message for the user, where names are a guess.
    """

    delimiter: str
    names: list[str] | None
    notice: str | None


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a file of text, while it is read.

    Raises
    ------
    DataError
        If it cannot be read, or is no text.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: got bytes that are no text, expected numbers in CSV") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_head(path: Path) -> Head:
    """Read the first lines of a CSV file, whose delimiter is a comma, a semicolon or a tab.

    The first line holds the names of the columns, and is no example, if

    * it has no number in it,
    * its fields are quoted, and those of the second line are not,
    * it counts 0, 1, 2, ... as pandas names columns, in three columns or more, or
    * it counts from 0 or 1 in two columns or more, and the second line has a decimal point.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    with opened(path) as file:
        first, second = file.readline(MAX_LINE), file.readline(MAX_LINE)
    delimiter = next((mark for mark in ";\t" if mark in first), ",")
    has_names, guess = _header(first, second, delimiter)
    names = None
    if has_names:
        fields = next(csv.reader([first], delimiter=delimiter, skipinitialspace=True), [])
        names = [field.strip() for field in fields]
    return Head(delimiter, names, f"{path}: {guess}" if guess else None)


def read_numbers(path: Path, head: Head, *, dtype: Any = np.float32) -> NDArray[Any] | None:
    """Read the lines below the head as numbers; return None if there is something else.

    Empty lines, and what follows ``#``, are passed over.

    Raises
    ------
    DataError
        If the file cannot be read.
    """
    with opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of no rows; the caller says it better
        if head.names is not None:
            file.readline(MAX_LINE)
        try:
            return np.loadtxt(file, dtype=dtype, delimiter=head.delimiter, quotechar='"', ndmin=2)
        except ValueError:
            return None


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


def _is_number(field: str) -> bool:
    try:
        float(field.strip().strip('"'))
    except ValueError:
        return False
    return True
