"""The head of a CSV file, and a file of numbers alone."""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.idx import GZIP_MAGIC
from syncpretrain.data.table import DECIMAL_COMMA, is_missing
from syncpretrain.errors import DataError

__all__ = ["UNKNOWN", "Head", "Passed", "is_number", "opened", "read_head", "read_numbers"]

MAX_LINE = 1 << 24
MOST_LINES = 20  # of a name of a column
QUOTED = re.compile(r'"[^"]*"')
REMARK = re.compile(r"(?<=\S)\s+#.*")  # behind the cells of a line
NAME = re.compile(r"[^\W\d]")  # at its beginning
TIME = re.compile(r"(\S+[ T])?\d{1,2}:\d\d(:\d\d(\.\d+)?)?")  # behind a date or alone
INDEXED = re.compile(r"\S+(\s+\d+:[-+.\deE]+)+")  # a line of LIBSVM's format
UNKNOWN = "?"  # a missing value of a column of numbers, in many public files
YEAR = re.compile("(18|19|20)[0-9]{2}")
FAR = 10  # times the largest number below
MANY_RISING = 6  # numbers in a row, which hardly rise by chance
TAKEN = (
    "its first line, {}, was taken for names of columns; if it is an example, put a line of names"
    " above it"
)
AN_EXAMPLE = (
    "its first line, {}, was read as an example; if it holds names of columns, put them in quotes,"
    " or delete it"
)


class Head(NamedTuple):
    """The head of a file: what is between its cells, and the names of its columns if it has some.

    ``notice`` is a message for the user, where names are a guess; ``lines`` is the number of lines
    down to the names, and ``width`` that of the cells of the first row.
    """

    delimiter: str
    names: list[str] | None
    notice: str | None
    lines: int = 0
    width: int = 1


@dataclass
class Passed:
    """The numbers of lines that are passed over although they may be rows.

    ``comments`` begin with # and have as many cells as a row; ``empty`` ones are between the rows
    of a single column.
    """

    comments: list[int] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)

    def notices(self) -> list[str]:
        """Return messages for the user."""
        found, passed = [], "passed over {:,} lines that {}, such as line {}; {}"
        if self.comments:
            quotes = "if they are examples, put their first cells in quotes"
            lines = len(self.comments), "begin with #", self.comments[0], quotes
            found.append(passed.format(*lines))
        if self.empty:
            lines = len(self.empty), "are empty", self.empty[0], "write NA where a value is missing"
            found.append(passed.format(*lines))
        return found

    def is_comment(self, line: str, number: int, cells: list[str], head: Head) -> bool:
        """Return whether a line is a comment; one that may be a row is counted."""
        if not line.lstrip().startswith("#") or is_missing(cells[0].strip()):
            return False
        if len(cells) == head.width and (head.width > 1 or cells[0][1:2].strip()):
            self.comments.append(number)
        return True


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


def read_head(path: Path, known: Sequence[str] | None = None) -> Head:
    """Read the first lines of a CSV file, whose delimiter is a comma, a semicolon or a tab.

    The first line that is neither empty nor a comment holds the names of the columns, and is no
    example, if

    * it has no number in it,
    * its fields are quoted, and the numbers of the second line are not,
    * it has a text above numbers,
    * its numbers count 0, 1, 2, ... as pandas names columns, in three columns or more,
    * they count from 0 or 1 in two columns or more, and the second line has a decimal point, or
    * they are an axis, such as 1100,1102,1104 or 2018,2019,2020 above fractions or far smaller
      numbers, and no text beside them is in the same column below.

    A comment above it with as many fields, and no number, holds the names if that line does not.

    Parameters
    ----------
    path : Path
    known : sequence of str, optional
        The names of columns in a file that was read before, none if it had none: a line with all
        of them holds the names, and so does no number where there were none.

    Raises
    ------
    DataError
        If it cannot be read, or something else is between its cells.
    """
    with opened(path) as file:
        number, line, comment = 1, file.readline(MAX_LINE), ""
        while line and (not line.strip() or _is_remark(line)):
            comment = line.strip() or comment
            number, line = number + 1, file.readline(MAX_LINE)
        ahead = [line, *(file.readline(MAX_LINE) for _ in range(MOST_LINES))]
    mark = next((mark for mark in ";\t" if mark in QUOTED.sub("", ahead[0] or comment)), ",")
    more = _lines_of_first(ahead, mark) - 1
    first = "".join(ahead[: more + 1])
    below = [x for x in ahead[more + 1 :] if x.strip() and not _is_remark(x)]
    _check_delimiter(path, first, below)
    cells, rows = _fields(first, mark), [_fields(x, mark) for x in below]
    above = _fields(comment.removeprefix("#"), mark)  # as numpy.savetxt writes names
    if len(above) == len(cells) and not any(map(is_number, above)):
        has_values = any(is_number(x) or is_missing(x) or x == UNKNOWN for x in cells)
        if has_values or not (rows and any(map(is_number, rows[0]))):
            return Head(mark, above, None, number - 1, len(cells))
    same = [x for x in rows if len(x) == len(cells)]
    has_names, guess = _header(first, "".join(below[:1]), cells, same)
    if known is not None and rows and any(map(is_number, cells)):
        is_known = len(known) > 0 and set(known) <= set(cells)
        if is_known and not has_names:
            has_names, guess = True, TAKEN if all(map(is_number, cells)) else None
        elif not known and guess == TAKEN:
            has_names, guess = False, AN_EXAMPLE
    notice = f"{path}: {guess.format(first.strip()[:40])}" if guess else None
    names, lines = (cells, number + more) if has_names else (None, 0)
    return Head(mark, names, notice, lines, len(cells))


def read_numbers(path: Path, head: Head, passed: Passed) -> NDArray[np.float64] | None:
    """Read the lines below the head as numbers; return None if there is something else.

    Empty lines, and what follows a blank and ``#``, are passed over.

    Raises
    ------
    DataError
        If the file cannot be read.
    """
    with opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of no rows; the caller says it better
        for _ in range(head.lines):
            file.readline(MAX_LINE)
        lines = _rows_of_numbers(file, head, passed)
        try:
            return np.loadtxt(
                lines, comments=None, delimiter=head.delimiter, quotechar='"', ndmin=2
            )
        except ValueError:
            return None


def _rows_of_numbers(file: TextIO, head: Head, passed: Passed) -> Iterator[str]:
    empty: list[int] = []
    for number, line in enumerate(file, start=head.lines + 1):
        if head.width == 1 and not line.strip():
            empty.append(number)
            continue
        if "#" in line:
            if passed.is_comment(line, number, _fields(line, head.delimiter), head):
                continue
            line = REMARK.sub("", line)
        passed.empty += empty
        empty.clear()
        yield line


def _is_remark(line: str) -> bool:
    """Return whether a line above the first row is a comment."""
    return line.lstrip().startswith("#") and not is_missing(re.split("[,;\t\r\n]", line.strip())[0])


def _check_delimiter(path: Path, first: str, below: list[str]) -> None:
    """Refuse lines with something else between their cells than what is read.

    Raises
    ------
    DataError
    """
    lines = [QUOTED.sub("x", line).strip(" \r\n") for line in (first, *below)]
    body = lines[1:] or lines
    for mark in "|\x01\x1f":
        counts = {line.count(mark) for line in lines}
        if len(counts) == 1 and counts != {0} and not re.search("[,;\t]", lines[0]):
            raise _other_delimiter(path, repr(mark))
    if any(re.search("[;\t]", line) for line in lines):
        return
    if all(map(INDEXED.fullmatch, body)):
        raise _other_delimiter(path, "blanks and the numbers of columns")
    for mark, name in ((" ", "blanks"), (":", "':'")):
        rows = [re.split(f"{mark}+" if mark == " " else mark, line) for line in body]
        if len(set(map(len, rows))) != 1 or len(rows[0]) == 1 or all(map(TIME.fullmatch, body)):
            continue
        width, has_comma = len(rows[0]), any("," in line for line in lines)
        # With commas between the cells too, only decimal commas in each column can say otherwise.
        decimal = all(any("," in x for x in column) for column in zip(*rows, strict=True))
        if has_comma and (mark == ":" or not decimal):
            continue
        numbers = sum(all(map(_may_be_number, column)) for column in zip(*rows, strict=True))
        if numbers == width or (numbers >= max(width - 1, 2) and not has_comma):
            raise _other_delimiter(path, name)


def _other_delimiter(path: Path, got: str) -> DataError:
    return DataError(
        f"{path}: got {got} between the cells, expected a comma, a semicolon or a tab; write one of"
        " these, or put each line in quotes if it is one text"
    )


def _may_be_number(cell: str) -> bool:
    return is_number(cell) or is_missing(cell) or DECIMAL_COMMA.fullmatch(cell) is not None


def _header(
    first: str, second: str, cells: list[str], rows: list[list[str]]
) -> tuple[bool, str | None]:
    """Return whether the first line holds names, and a notice where that is a guess.

    ``rows`` are the fields of the lines below it.
    """
    columns = [[row[i] for row in rows] for i in range(len(cells))]
    recurs = any(cell and cell in column for cell, column in zip(cells, columns, strict=True))
    places = [i for i, cell in enumerate(cells) if is_number(cell)]
    if not places:
        has_numbers = any(is_number(x) for column in columns for x in column)
        marks = all(is_missing(cell) or cell == UNKNOWN for cell in cells) and any(cells)
        return True, TAKEN if marks or (recurs and not has_numbers) else None
    if not rows:
        return False, None
    if _only_first_quoted(first, second, cells, rows[0]):
        return True, None
    for cell, column in zip(cells, columns, strict=True):
        known = [x for x in column if not is_missing(x)]
        if NAME.match(cell) and not is_missing(cell) and known and all(map(is_number, known)):
            return True, TAKEN
    if not cells[0] and len(cells) > 1:  # the index of a data frame
        counts = [str(i) for i in range(len(rows))]
        if columns[0] == counts and places == list(range(1, len(cells))):
            found = _axis(cells[1:], [row[1:] for row in rows], second)
            return (True, TAKEN) if cells[1:] == [str(i) for i in range(len(places))] else found
        return False, None
    if len(places) == len(cells):
        return (False, None) if '"' in first else _axis(cells, rows, second)
    if recurs or any(is_missing(cell) for cell in cells):
        return False, None
    own = [[row[i] for i in places] for row in rows]
    return _axis([cells[i] for i in places], own, second, beside_text=True)


def _only_first_quoted(first: str, second: str, cells: list[str], below: list[str]) -> bool:
    """Return whether the first line has quotes around its numbers, and the second has none."""
    quoted = [
        [x.strip().startswith('"') for x in re.split("[,;\t]", line.strip())]
        for line in (first, second)
    ]
    if [len(x) for x in quoted] != [len(cells)] * 2 or not all(quoted[0]):
        return False
    numbers = [i for i, x in enumerate(cells) if is_number(x)]
    return not any(quoted[1]) or all(is_number(below[i]) > quoted[1][i] for i in numbers)


def _axis(
    cells: list[str], rows: list[list[str]], second: str, *, beside_text: bool = False
) -> tuple[bool, str | None]:
    """Return whether numbers above others are an axis, and a notice where they may be one."""
    counts = [[str(start + i) for i in range(len(cells))] for start in (0, 1)]
    if cells in counts and len(cells) > 1 and not beside_text:
        is_axis = "." in second or (cells == counts[0] and len(cells) > 2)
        return is_axis, TAKEN if is_axis else AN_EXAMPLE
    values = np.array(list(map(float, cells)))
    below = [[x for x in column if is_number(x)] for column in zip(*rows, strict=True)]
    if not all(below) or not np.isfinite(values).all():
        return False, None
    whole = all(x.isdecimal() for x in cells) and all(
        any("." in x for x in column) for column in below
    )
    largest = [max(abs(float(x)) for x in column) for column in below]
    far = all(abs(x) > FAR * most > 0 for x, most in zip(values, largest, strict=True))
    rising = len(values) > 1 and bool((np.diff(values) > 0).all() or (np.diff(values) < 0).all())
    step = _step(cells)
    even = step != 0 and not any(np.isclose(step, _step(row)) for row in rows)
    years = even and len(values) > 2 and all(map(YEAR.fullmatch, cells))
    long = even or len(values) >= MANY_RISING
    is_axis = rising and (years or (whole and even) or (far and (whole or long)))
    is_axis |= beside_text and ((whole and far) or (rising and (whole or even)))
    if is_axis:
        return True, TAKEN
    is_likely = far or (rising and (whole or (beside_text and len(values) > 2)))
    return False, AN_EXAMPLE if is_likely or step else None


def _step(cells: list[str]) -> float:
    """Return the step of numbers at equal distances, of two if they may be years; 0 of others."""
    if len(cells) < 2 or not all(map(is_number, cells)):
        return 0.0
    steps = np.diff(np.array(list(map(float, cells))))
    if len(cells) == 2 and not (steps[0] == 1 and YEAR.fullmatch(cells[0])):
        return 0.0
    return float(steps[0]) if np.isclose(steps, steps[0]).all() else 0.0


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
