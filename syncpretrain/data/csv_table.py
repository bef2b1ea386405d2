"""CSV files with columns of text, empty cells or names of columns, as tables.

The first lines say what separates the cells, and whether a line of names is above the rows. A file
of numbers alone is then read by NumPy at once. Any other file is read twice, some rows at a time:
to find which columns hold numbers, then for the values.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data import table
from syncpretrain.data.array_formats import GZIP_MAGIC
from syncpretrain.data.table import is_missing
from syncpretrain.errors import DataError

MAX_LINE = 1 << 24
LINES_AT_ONCE = 10_000
MOST_LINES = 20  # lines read behind the first one; the quotes of a name may span so many
QUOTED = re.compile(r'"[^"]*"')
REMARK = re.compile(r"(?<=\S)\s+#.*")  # comment behind the cells of a line
NAME = re.compile(r"[^\W\d]")  # first letter of a name
TIME = re.compile(r"(\S+[ T])?\d{1,2}:\d\d(:\d\d(\.\d+)?)?")  # time behind a date or alone
INDEXED = re.compile(r"\S+(\s+\d+:[-+.\deE]+)+")  # a line of LIBSVM's format
UNKNOWN = "?"  # missing value in columns of numbers of many public files
TRUTH = {"true": True, "false": False}
YEAR = re.compile("(18|19|20)[0-9]{2}")
FAR = 10  # an axis is this many times the largest number below it
MANY_RISING = 6  # so many numbers hardly rise by chance
TAKEN = (
    "its first line, {}, was taken for names of columns; if it is an example, put a line of names"
    " above it"
)
AN_EXAMPLE = (
    "its first line, {}, was read as an example; if it holds names of columns, put them in quotes,"
    " or delete it"
)


def read_csv_table(path: Path, known: Sequence[str] | None = None) -> table.Table:
    """Read a CSV file as a table; see :func:`syncpretrain.data.csv_table.read_head` for its names.

    Cells that are empty, or hold NaN, NA, N/A, null, None, #N/A, or an error of a spreadsheet such
    as #DIV/0!, are missing values. Numbers are float64, as class labels of many digits and columns
    with a large offset need.

    Parameters
    ----------
    path : Path
    known : sequence of str, optional
        See :func:`syncpretrain.data.csv_table.read_head`.

    Raises
    ------
    DataError
        If the file cannot be read, or its lines differ in width; it names the line.
    """
    head, passed = read_head(path, known), Passed()
    kinds: list[_Kind] = []
    numbers = read_numbers(path, head, passed)
    if numbers is None:
        passed = Passed()
        kinds = _kinds(path, head, passed)
    width = len(kinds) if numbers is None else numbers.shape[1]
    if not (kinds or (numbers is not None and numbers.size)):
        found = ["got no values", *passed.notices()]
        raise DataError(f"{path}: {'; '.join(found)}; expected one example or more")
    names, named = _names(path, head, width)
    columns = _columns(path, head, kinds) if numbers is None else tuple(numbers.T)
    mixed = {
        names[i]: table.Mixed(kind.number, kind.text, kind.slip(i + 1))
        for i, kind in enumerate(kinds)
        if kind.number is not None and kind.text is not None
    }
    told = (f"{path}: {notice}" for notice in passed.notices())
    notices = (*_notices(path, head), *told, *_errors(path, kinds))
    return table.Table(str(path), names, columns, named, mixed, notices)


def _notices(path: Path, head: Head) -> tuple[str, ...]:
    notices = (head.notice,) if head.notice else ()
    if head.names and not head.names[0] and len(head.names) > 1:
        index = "its first column has no name and is trained on; leave it out if it counts the rows"
        return (*notices, f"{path}: {index}, with drop={quote(_number(head.names, 1))}")
    return notices


def _errors(path: Path, kinds: list[_Kind]) -> list[str]:
    """Return a message on cells with an error of a spreadsheet, if there are any."""
    errors = [kind for kind in kinds if kind.errors]
    if not errors:
        return []
    count = sum(kind.errors for kind in errors)
    return [f"{path}: read {count:,} cells such as {errors[0].error} as missing values"]


def _names(path: Path, head: Head, width: int) -> tuple[tuple[str, ...], bool]:
    """Return the names of the columns, and whether the file has them."""
    if head.names is None:
        return tuple(str(number) for number in range(1, width + 1)), False
    if len(head.names) != width:
        raise DataError(
            f"{path}: got {len(head.names)} names of columns above lines of width {width};"
            " expected a name for each column"
        )
    names = tuple(name or _number(head.names, i) for i, name in enumerate(head.names, start=1))
    table.check_distinct_names(str(path), names)
    return names, True


def _number(names: list[str], number: int) -> str:
    """Return the name of a nameless column: its number, if no other column has that name."""
    return f"unnamed {number}" if str(number) in names else str(number)


class Head(NamedTuple):
    """Head of a file: the separator of its cells, and the names of its columns if it has some.

    ``notice`` is a message for the user where the names are a guess, ``lines`` the number of lines
    down to the names, and ``width`` the number of cells in the first row.
    """

    delimiter: str
    names: list[str] | None
    notice: str | None
    lines: int = 0
    width: int = 1


@dataclass
class Passed:
    """Numbers of lines that are passed over although they may be rows.

    ``comments`` are lines that begin with # and have as many cells as a row; ``empty`` are empty
    lines between the rows of a single column.
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
        """Return whether a line is a comment; note its number if it may be a row."""
        if not line.lstrip().startswith("#") or is_missing(cells[0].strip()):
            return False
        if len(cells) == head.width and (head.width > 1 or cells[0][1:2].strip()):
            self.comments.append(number)
        return True


@contextmanager
def opened(path: Path, expected: str = "CSV") -> Iterator[TextIO]:
    """Open a file of text, gzipped or not, while it is read.

    ``expected`` is the format of the file, for errors.

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
            f"{path}: got bytes that are no text in UTF-8, expected {expected}; save it in that"
            " encoding"
        ) from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: got damaged gzip data: {error}; pack it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_head(path: Path, known: Sequence[str] | None = None) -> Head:
    """Read the first lines of a CSV file; its delimiter is a comma, a semicolon or a tab.

    The first line that is neither empty nor a comment holds the names of the columns, and is no
    example, if

    * it has no number in it,
    * its fields are quoted, and the numbers of the second line are not,
    * it has a text above numbers,
    * its numbers count 0, 1, 2, ... as pandas names columns, in three columns or more,
    * they count from 0 or 1 in two columns or more, and the second line has a decimal point, or
    * they are an axis, such as 1100,1102,1104 or 2018,2019,2020 above fractions or far smaller
      numbers, and no text beside them is in the same column below.

    If that line holds no names, a comment above it with as many fields, and no number, does.

    Parameters
    ----------
    path : Path
    known : sequence of str, optional
        Names of the columns of an earlier file; empty if it had no names. A line with all of them
        holds the names; if the earlier file had none, a line of numbers holds none.

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


def _lines_of_first(ahead: list[str], delimiter: str) -> int:
    """Return how many lines the first row takes: its quotes may hold line breaks."""
    reader = csv.reader(ahead, delimiter=delimiter, skipinitialspace=True)
    try:
        next(reader, None)
    except csv.Error:
        return 1
    return reader.line_num if 0 < reader.line_num < len(ahead) else 1


def _is_remark(line: str) -> bool:
    """Return whether a line above the first row is a comment."""
    return line.lstrip().startswith("#") and not is_missing(re.split("[,;\t\r\n]", line.strip())[0])


def _check_delimiter(path: Path, first: str, below: list[str]) -> None:
    """Refuse lines with another separator between the cells than the known delimiters.

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
    return is_number(cell) or is_missing(cell) or table.DECIMAL_COMMA.fullmatch(cell) is not None


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
    """Return whether numbers in the first line are an axis, and a notice where they may be one."""
    counts = [[str(start + i) for i in range(len(cells))] for start in (0, 1)]
    if cells in counts and len(cells) > 1 and not beside_text:
        is_axis = "." in second or (cells == counts[0] and len(cells) > 2)
        return is_axis, TAKEN if is_axis else AN_EXAMPLE
    values = np.array(list(map(float, cells)))
    below = [[x for x in column if is_number(x)] for column in zip(*rows, strict=True)]
    if not all(below) or not np.isfinite(values).all():
        return False, None
    has_fractions = all(any("." in x for x in column) for column in below)
    whole = has_fractions and all(x.isdecimal() for x in cells)
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
    """Return the step of equally spaced numbers, else 0; two numbers must be consecutive years."""
    if len(cells) < 2 or not all(map(is_number, cells)):
        return 0.0
    steps = np.diff(np.array(list(map(float, cells))))
    if len(cells) == 2 and not (steps[0] == 1 and YEAR.fullmatch(cells[0])):
        return 0.0
    return float(steps[0]) if np.isclose(steps, steps[0]).all() else 0.0


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


def read_numbers(path: Path, head: Head, passed: Passed) -> NDArray[np.float64] | None:
    """Read the lines below the head as numbers; return None if a cell is no number.

    Empty lines, and comments behind a blank and ``#``, are passed over.

    Raises
    ------
    DataError
        If the file cannot be read.
    """
    with opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no rows: the caller says it better
        for _ in range(head.lines):
            file.readline(MAX_LINE)
        rows = _rows_of_numbers(file, head, passed)
        try:
            return np.loadtxt(rows, comments=None, delimiter=head.delimiter, quotechar='"', ndmin=2)
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


class _Rows(NamedTuple):
    """Some lines of a file: their numbers, and their cells by column."""

    lines: list[int]
    columns: list[tuple[str, ...]]


def _chunks(path: Path, head: Head, passed: Passed) -> Iterator[_Rows]:
    """Yield the rows of a file, some at a time; note the lines that are passed over."""
    with opened(path) as file:
        for _ in range(head.lines):
            file.readline()
        lines: list[str] = []  # of the row that is being read
        reader = csv.reader(_noted(file, lines), delimiter=head.delimiter, skipinitialspace=True)
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


def _noted(file: TextIO, row: list[str]) -> Iterator[str]:
    """Yield the lines of a file; ``row`` collects the lines of the row that is being read."""
    for line in file:
        row.append(line)
        yield line


def _numbered(
    reader: Any, lines: list[str], passed: Passed, head: Head
) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is neither empty nor a comment, behind the number of its last line.

    Raises
    ------
    csv.Error
        If a quote does not end before the file does, so that one row has taken the others.
    """
    empty: list[int] = []
    for row in reader:
        first, number = lines[0], head.lines + reader.line_num
        if len(lines) > 1:
            more = csv.reader([*lines, "x"], delimiter=head.delimiter, skipinitialspace=True)
            if len(list(more)) == 1:  # a row that ends takes no further line
                began = number - len(lines) + 1
                raise csv.Error(f"a quote in the row that begins in line {began} has no end")
        lines.clear()
        if not row or (len(row) == 1 and not row[0].strip() and '"' not in first):
            empty.append(number)
        elif not passed.is_comment(first, number, row, head):
            passed.empty += empty if head.width == 1 else []
            empty.clear()
            yield number, row


@dataclass
class _Kind:
    """Contents of a column: counts of its cells by type, the first number and the first text."""

    numbers: int = 0
    texts: int = 0
    truths: int = 0
    unknown: int = 0
    number: str | None = None
    text: str | None = None
    place: int = 0  # the line of the first text
    values: list[Any] = field(default_factory=list)
    errors: int = 0  # cells with an error of a spreadsheet
    error: str = ""

    @property
    def is_text(self) -> bool:
        return self.texts + self.truths > 0 and not self.is_truth

    @property
    def is_truth(self) -> bool:
        return self.truths > 0 and not (self.numbers or self.texts or self.unknown)

    def slip(self, field: int) -> str:
        """Return the place of the first text if texts are few enough to be slips, else ""."""
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
    """Return the contents of each column; see :func:`_chunks`."""
    kinds: list[_Kind] = []
    for rows in _chunks(path, head, passed):
        kinds = kinds or [_Kind() for _ in rows.columns]
        for kind, cells in zip(kinds, rows.columns, strict=True):
            kind.look(cells, rows.lines)
    return kinds


def _columns(path: Path, head: Head, kinds: list[_Kind]) -> tuple[table.Values, ...]:
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


def _joined(kind: _Kind) -> table.Values:
    if kind.is_text:
        return table.texts_of(kind.values)
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
    """Return cells as numbers; None if a cell is no number or is missing."""
    try:
        found = np.array(list(map(float, cells)))
    except ValueError:
        return None
    if any("_" in cell for cell in cells):  # which Python permits in a number
        return None
    return None if np.isnan(found).any() else found
