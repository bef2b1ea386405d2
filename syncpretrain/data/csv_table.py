"""CSV files with columns of text, empty cells or names of columns, as tables.

A file of numbers alone is read by NumPy at once. Any other is read twice, some rows at a time: to
find which columns hold numbers, then for their values.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.csvfile import (
    UNKNOWN,
    Head,
    Passed,
    is_number,
    opened,
    read_head,
    read_numbers,
)
from syncpretrain.data.table import Mixed, Table, Values, check_names, is_missing, texts_of
from syncpretrain.errors import DataError

__all__ = ["read_csv_table"]

LINES_AT_ONCE = 10_000
TRUTH = {"true": True, "false": False}


def read_csv_table(path: Path, known: Sequence[str] | None = None) -> Table:
    """Read a CSV file as a table; see :func:`syncpretrain.data.csvfile.read_head` for its names.

    Cells that are empty, or hold NaN, NA, N/A, null, None, #N/A, or an error of a spreadsheet such
    as #DIV/0!, are missing values. Numbers are float64, as class labels of many digits and columns
    with a large offset need.

    Parameters
    ----------
    path : Path
    known : sequence of str, optional
        See :func:`syncpretrain.data.csvfile.read_head`.

    Raises
    ------
    DataError
        If the file cannot be read, or its lines differ in width; it names the line.
    """
    head = read_head(path, known)
    notices = _notices(path, head)
    passed = Passed()
    numbers = read_numbers(path, head, passed)
    if numbers is not None:
        if not numbers.size:
            raise _no_values(path, passed)
        notices = (*notices, *(f"{path}: {notice}" for notice in passed.notices()))
        names, named = _names(path, head, numbers.shape[1])
        return Table(str(path), names, tuple(numbers.T), named, notices=notices)
    passed = Passed()
    kinds = _kinds(path, head, passed)
    notices = (
        *notices,
        *(f"{path}: {notice}" for notice in passed.notices()),
        *_errors(path, kinds),
    )
    names, named = _names(path, head, len(kinds))
    mixed = {
        name: Mixed(kind.number, kind.text, kind.slip(field))
        for field, (name, kind) in enumerate(zip(names, kinds, strict=True), start=1)
        if kind.number is not None and kind.text is not None
    }
    columns = _columns(path, head, kinds)
    return Table(str(path), names, columns, named, mixed, notices)


def _notices(path: Path, head: Head) -> tuple[str, ...]:
    notices = (head.notice,) if head.notice else ()
    if head.names and not head.names[0] and len(head.names) > 1:
        index = "its first column has no name and is trained on; leave it out if it counts the rows"
        return (*notices, f"{path}: {index}, with drop={_number(head.names, 1)}")
    return notices


def _errors(path: Path, kinds: list[_Kind]) -> list[str]:
    """Return a message on cells with an error of a spreadsheet, if there are any."""
    errors = [kind for kind in kinds if kind.errors]
    if not errors:
        return []
    count = sum(kind.errors for kind in errors)
    return [f"{path}: read {count:,} cells such as {errors[0].error} as missing values"]


def _no_values(path: Path, passed: Passed) -> DataError:
    found = ["got no values", *passed.notices()]
    return DataError(f"{path}: {'; '.join(found)}; expected one example or more")


def _names(path: Path, head: Head, width: int) -> tuple[tuple[str, ...], bool]:
    """Return the names of the columns, and whether they are those of the file."""
    if head.names is None:
        return tuple(str(number) for number in range(1, width + 1)), False
    if len(head.names) != width:
        raise DataError(
            f"{path}: got {len(head.names)} names of columns above lines of width {width};"
            " expected a name for each column"
        )
    names = tuple(name or _number(head.names, i) for i, name in enumerate(head.names, start=1))
    check_names(str(path), names)
    return names, True


def _number(names: list[str], number: int) -> str:
    """Return the name of a column without one: its number, unless that is another's name."""
    return f"unnamed {number}" if str(number) in names else str(number)


class _Rows(NamedTuple):
    """Some lines of a file: their numbers, and their cells by column."""

    lines: list[int]
    columns: list[tuple[str, ...]]


def _chunks(path: Path, head: Head, passed: Passed) -> Iterator[_Rows]:
    """Yield the rows of a file, some at a time; what is passed over is counted."""
    with opened(path) as file:
        for _ in range(head.lines):
            file.readline()
        lines = _Lines(file)
        reader = csv.reader(iter(lines), delimiter=head.delimiter, skipinitialspace=True)
        width = None
        try:
            rows = _numbered(reader, lines, passed, head)
            while block := list(islice(rows, LINES_AT_ONCE)):
                width = width or len(block[0][1])
                for line, cells in block:
                    if len(cells) != width:
                        raise DataError(
                            f"{path}: got width {len(cells)} in line {line} after lines of width"
                            f" {width}; expected as many cells in every line"
                        )
                columns = list(zip(*(cells for _, cells in block), strict=True))
                yield _Rows([line for line, _ in block], columns)
        except csv.Error as error:
            raise DataError(
                f"{path}: got no CSV in line {head.lines + reader.line_num} ({error}); expected"
                f" cells between {head.delimiter!r}"
            ) from error


class _Lines:
    """The lines of a file, and those of the row that is read."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.row: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for line in self.file:
            self.row.append(line)
            yield line


def _numbered(
    reader: Any, lines: _Lines, passed: Passed, head: Head
) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is neither empty nor a comment, behind the number of its last line.

    Raises
    ------
    csv.Error
        If a quote does not end before the file does, so that one row has taken the others.
    """
    empty: list[int] = []
    for row in reader:
        first, number = lines.row[0], head.lines + reader.line_num
        if len(lines.row) > 1:
            more = csv.reader([*lines.row, "x"], delimiter=head.delimiter, skipinitialspace=True)
            if len(list(more)) == 1:  # a row that ends takes no further line
                began = number - len(lines.row) + 1
                raise csv.Error(f"a quote in the row that begins in line {began} has no end")
        lines.row.clear()
        if not row or (len(row) == 1 and not row[0].strip() and '"' not in first):
            empty.append(number)
        elif not passed.is_comment(first, number, row, head):
            passed.empty += empty if head.width == 1 else []
            empty.clear()
            yield number, row


@dataclass
class _Kind:
    """What the cells of a column are: counts, and the first number and the first text."""

    numbers: int = 0
    texts: int = 0
    truths: int = 0
    unknown: int = 0
    number: str | None = None
    text: str | None = None
    place: int = 0  # the line of the first text
    values: list[Any] = field(default_factory=list)
    errors: int = 0  # of a spreadsheet
    error: str = ""

    @property
    def is_text(self) -> bool:
        return self.texts + self.truths > 0 and not self.is_truth

    @property
    def is_truth(self) -> bool:
        return self.truths > 0 and not (self.numbers or self.texts or self.unknown)

    def slip(self, field: int) -> str:
        """Return where the first text is, if there are so few that they seem slips."""
        is_slip = self.numbers >= self.texts + self.truths
        return f"line {self.place}, field {field}" if is_slip else ""

    def look(self, cells: tuple[str, ...], lines: list[int]) -> None:
        """Count the cells of some rows."""
        if _floats(cells) is not None:
            self.numbers += len(cells)
            self.number = self.number or cells[0]
            return
        for found, count in Counter(cells).items():  # in the order of their first places
            cell = found.strip()
            if is_missing(cell):
                if "#" in cell:
                    self.errors, self.error = self.errors + count, self.error or cell
                continue
            if cell == UNKNOWN:
                self.unknown += count
            elif is_number(cell):
                self.numbers += count
                self.number = self.number or cell
            else:
                is_truth = cell.lower() in TRUTH
                self.truths += count if is_truth else 0
                self.texts += 0 if is_truth else count
                if self.text is None:
                    self.text, self.place = cell, lines[cells.index(found)]


def _kinds(path: Path, head: Head, passed: Passed) -> list[_Kind]:
    """Return what each column holds; see :func:`_chunks`."""
    kinds: list[_Kind] = []
    for rows in _chunks(path, head, passed):
        kinds = kinds or [_Kind() for _ in rows.columns]
        for kind, cells in zip(kinds, rows.columns, strict=True):
            kind.look(cells, rows.lines)
    if not kinds:
        raise _no_values(path, passed)
    return kinds


def _columns(path: Path, head: Head, kinds: list[_Kind]) -> tuple[Values, ...]:
    """Return the columns, once their kinds are known."""
    for rows in _chunks(path, head, Passed()):
        for kind, cells in zip(kinds, rows.columns, strict=True):
            if kind.is_text:
                texts = {cell: _text(cell) for cell in set(cells)}
                kind.values.extend(texts[cell] for cell in cells)
            elif kind.is_truth:
                kind.values.append([TRUTH.get(cell.strip().lower(), np.nan) for cell in cells])
            else:
                kind.values.append(_numbers(cells))
    return tuple(map(_joined, kinds))


def _joined(kind: _Kind) -> Values:
    if kind.is_text:
        return texts_of(kind.values)
    joined = np.concatenate([np.asarray(part, dtype=np.float64) for part in kind.values])
    return joined > 0 if kind.is_truth and not np.isnan(joined).any() else joined


def _numbers(cells: tuple[str, ...]) -> NDArray[np.float64]:
    found = _floats(cells)
    if found is not None:
        return found
    texts = [cell.strip() for cell in cells]
    return np.array([np.nan if x == UNKNOWN or is_missing(x) else float(x) for x in texts])


def _text(cell: str) -> str | None:
    cell = cell.strip()
    return None if is_missing(cell) else cell


def _floats(cells: tuple[str, ...]) -> NDArray[np.float64] | None:
    """Return numbers, None if a cell is none or is missing."""
    try:
        found = np.array(list(map(float, cells)))
    except ValueError:
        return None
    if any("_" in cell for cell in cells):  # which Python permits in a number
        return None
    return None if np.isnan(found).any() else found
