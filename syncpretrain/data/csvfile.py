"""The head of a CSV file, and a file of numbers alone."""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.idx import GZIP_MAGIC
from syncpretrain.errors import DataError

__all__ = ["Head", "is_number", "opened", "read_head", "read_numbers"]

MAX_LINE = 1 << 24
MOST_LINES = 20  # of a name of a column
QUOTED = re.compile(r'"[^"]*"')


class Head(NamedTuple):
    """The head of a file: what is between its cells, and the names of its columns if it has some.

    ``notice`` is a message for the user, where names are a guess; ``lines`` is the number of lines
    down to the names.
    """

    delimiter: str
    names: list[str] | None
    notice: str | None
    lines: int = 0


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open a file of text, gzipped or not, while it is read.

    Raises
    ------
    DataError
        If it cannot be read, or is no text.
    """
    try:
        with path.open("rb") as raw:
            is_packed = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if is_packed else raw
            with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as file:
                yield file
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: got bytes that are no text in UTF-8, expected CSV; save it in that encoding"
        ) from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: got damaged gzip data: {error}; pack it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_head(path: Path) -> Head:
    """Read the first lines of a CSV file, whose delimiter is a comma, a semicolon or a tab.

    The first line that is not empty holds the names of the columns, and is no example, if

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
        lines, first = 1, file.readline(MAX_LINE)
        while first and not first.strip():
            lines, first = lines + 1, file.readline(MAX_LINE)
        ahead = [first, *(file.readline(MAX_LINE) for _ in range(MOST_LINES))]
    unquoted = QUOTED.sub("", first)
    delimiter = next((mark for mark in ";\t" if mark in unquoted), ",")
    more = _lines_of_first(ahead, delimiter) - 1
    lines, first, second = lines + more, "".join(ahead[: more + 1]), ahead[more + 1]
    has_names, guess = _header(first, second, delimiter)
    names = None
    if has_names:
        names = _fields(first.removeprefix("#"), delimiter)  # as numpy.savetxt writes them
    notice = f"{path}: {guess}" if guess else None
    return Head(delimiter, names, notice, 0 if names is None else lines)


def read_numbers(path: Path, head: Head) -> NDArray[np.float64] | None:
    """Read the lines below the head as numbers; return None if there is something else.

    Empty lines, and what follows ``#``, are passed over.

    Raises
    ------
    DataError
        If the file cannot be read.
    """
    with opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of no rows; the caller says it better
        for _ in range(head.lines):
            file.readline(MAX_LINE)
        try:
            return np.loadtxt(file, delimiter=head.delimiter, quotechar='"', ndmin=2)
        except ValueError:
            return None


def _header(first: str, second: str, delimiter: str) -> tuple[bool, str | None]:
    """Return whether the first line holds names, and a notice where that is a guess."""
    if not any(map(is_number, _fields(first, delimiter))):
        return True, None
    fields = [field.strip() for field in first.split(delimiter)]  # with their quotes
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


def _lines_of_first(ahead: list[str], delimiter: str) -> int:
    """Return how many lines the first row takes, whose quotes may hold line breaks."""
    reader = csv.reader(ahead, delimiter=delimiter, skipinitialspace=True)
    try:
        next(reader, None)
    except csv.Error:
        return 1
    return reader.line_num if 0 < reader.line_num < len(ahead) else 1


def _fields(line: str, delimiter: str) -> list[str]:
    fields = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    return [field.strip() for field in fields]


def is_number(cell: str) -> bool:
    """Return whether a cell holds a number; Python permits ``_`` in one, files do not."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell
