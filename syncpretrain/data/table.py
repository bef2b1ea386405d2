"""Tables: named columns of numbers, truth values or texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.errors import DataError

MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "<na>"})  # in lower case
# #N/A and #DIV/0! of spreadsheets, also in other languages, and 1.#QNAN of Windows
ERROR = re.compile(r"#(NA|N/A( N/A)?|N/D|NV|[^\sa-z]+[!?])|[+-]?1\.#(IND|QNAN|SNAN)\d*")
LISTED = 8  # names in a message
FEW_VALUES = 20  # texts of a category: shown in a message, or permitted however few the rows
# 1,5 and 1,234; 1,234.5 and 1,234,567; 1.234,5
DECIMAL_COMMA = re.compile(r"[+-]?(\d+,\d+|\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+,\d+)")
# 1 000 and 1'234.5
BLANKS = re.compile(r"[+-]?\d{1,3}([ \u00a0\u2009\u202f'\u2019]\d{3})+([.,]\d+)?")
CURRENCY = "$€£¥₹₩₽₺₪"
WITH_UNIT = re.compile(  # -1.5 kg, 45%, $1,200, <5 m/s; neither room 12 nor 10-20
    rf"[+-]?(?P<before>[~<>≤≥≈±]?\s?(?:[A-Z]{{0,2}}[{CURRENCY}]|USD|EUR|GBP|CHF|JPY|CNY)?)\s?"
    r"[+\u2212-]?(?:\d+(?:[ \u00a0\u2009\u202f'\u2019,.]\d{3})*(?:[.,]\d+)?|[.,]\d+)"
    r"(?:[eE][+-]?\d+)?\s?"
    rf"(?P<after>(?:(?:[^\W\d_]|[%‰°'\"{CURRENCY}]).{{0,14}})?)"
)
PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
OF_ONE_UNIT = 0.9  # smallest share of texts with a unit: the others may mean a missing value
LOOKED_AT = 10_000  # texts searched for units


@dataclass(frozen=True, eq=False)
class Texts:
    """Column of texts: ``values[codes[i]]`` in row i, and no value where the code is -1.

    ``are_categories`` says that the column's type in a data frame is categorical, and
    ``is_alphabet`` that the values are known before any row is read.
    """

    codes: NDArray[np.int32]
    values: tuple[str, ...]
    are_categories: bool = False
    is_alphabet: bool = False

    def __len__(self) -> int:
        return len(self.codes)


# Numbers are floats with NaN for a missing value, or integers; truth values are booleans.
Values = NDArray[Any] | Texts


def texts_of(cells: Iterable[str | None]) -> Texts:
    """Return a column of texts with sorted values; None is a missing value."""
    numbers: dict[str, int] = {}
    codes = [-1 if cell is None else numbers.setdefault(cell, len(numbers)) for cell in cells]
    order = sorted(numbers)
    rank = np.empty(len(order) + 1, dtype=np.int32)
    rank[-1] = -1
    rank[[numbers[value] for value in order]] = np.arange(len(order), dtype=np.int32)
    return Texts(rank[np.asarray(codes, dtype=np.int64)], tuple(order))


class Mixed(NamedTuple):
    """First number and first text of a column; ``slip`` is the text's place if it seems a slip."""

    number: str
    text: str
    slip: str = ""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length.

    Parameters
    ----------
    name : str
        Name of the table in errors: a file's path, or X.
    names : tuple of str
        Names of the columns; columns without names are counted from 1.
    columns : tuple of Values
    named : bool
        True if the columns have names of their own.
    mixed : dict of str to Mixed
        The columns that hold both numbers and texts, by name.
    notices : tuple of str
        Messages for the user.
    refused : dict of str to str
        Columns with values of other types, by name, and that type. They hold NaN, and are refused
        when they are used.
    is_file : bool
        True if the option ``drop`` can leave out columns.
    of_run : bool
        True if its rows are for an earlier run.
    all_names : tuple of str
        Names of the columns before some were left out; empty if none was. Numbers of columns count
        in them.
    """

    name: str
    names: tuple[str, ...]
    columns: tuple[Values, ...]
    named: bool = True
    mixed: Mapping[str, Mixed] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    is_file: bool = True
    of_run: bool = False
    all_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def column(self, name: str) -> Values:
        """Return the column of a name.

        Raises
        ------
        DataError
            If it holds neither numbers, truth values nor texts.
        """
        if name in self.refused:
            raise DataError(
                f"{self.name}: column {name!r} holds values of type {self.refused[name]}, expected"
                f" numbers, truth values or text; leave it out{self.by_drop(name)}"
            )
        return self.columns[self.names.index(name)]

    def by_drop(self, name: str) -> str:
        """Return the option that leaves a column out, as words that follow "leave it out"."""
        return f" with drop={self.option(name)}" if self.is_file else ""

    def option(self, name: str) -> str:
        """Return a column as an option takes it: its number if the name has commas or breaks.

        Quotes are those that Python and a shell share.
        """
        plain = name.isprintable() and "," not in name
        return quote(name) if plain else str((self.all_names or self.names).index(name) + 1)

    def find(self, wanted: str, option: str) -> str:
        """Return the name of the column with a name, or with a number from 1 (-1 for the last).

        Raises
        ------
        DataError
            If there is no such column; the message names the nearest one.
        """
        if wanted in self.names:
            return wanted
        try:
            number = int(wanted)
        except ValueError:
            number = 0
        if 1 <= number <= len(self.names) or -len(self.names) <= number <= -1:
            return self.names[number - 1 if number > 0 else number]
        by_number = " (write a name with commas as its number, from 1)"
        raise DataError(
            f"{option}: got {wanted!r}, which is no column of {self.name};"
            f" {nearest(wanted, self.names)}"
            + (by_number if option == "drop" and any("," in name for name in self.names) else "")
        )

    def without(self, names: Iterable[str]) -> Table:
        """Return the table without some columns."""
        left = set(names)
        kept = [i for i, name in enumerate(self.names) if name not in left]
        return replace(
            self,
            names=tuple(self.names[i] for i in kept),
            columns=tuple(self.columns[i] for i in kept),
            all_names=self.all_names or self.names,
        )


def is_missing(cell: str) -> bool:
    """Return whether a cell of a file stands for no value."""
    return cell.lower() in MISSING or ("#" in cell and ERROR.fullmatch(cell) is not None)


def check_distinct_names(name: str, names: Sequence[str]) -> None:
    """Refuse two columns with the same name.

    Raises
    ------
    DataError
    """
    for own, times in Counter(names).items():
        if times > 1:
            raise DataError(f"{name}: got two columns of the name {own!r}; rename one")


def check_decimals(name: str, column: str, texts: Texts, otherwise: str = "") -> None:
    """Refuse a column of numbers that are written as text: with commas, blanks or a unit.

    A few texts with a unit, such as 5 stars, are categories, and so are texts that begin with a
    word, such as room 12. ``otherwise`` is further advice for the error.

    Raises
    ------
    DataError
    """
    if not texts.values:
        return
    holds, shown = f"{name}: column {column!r} holds numbers", f"such as {texts.values[0][:40]!r}"
    if all(map(DECIMAL_COMMA.fullmatch, texts.values)):
        remedy = "write decimal points, and nothing between thousands"
        raise DataError(f"{holds} with commas, {shown}; {remedy}")
    if texts.are_categories:
        return
    errors = [text for text in texts.values if ERROR.fullmatch(text)]
    if errors and all(ERROR.fullmatch(x) or PLAIN.fullmatch(x) for x in texts.values):
        remedy = "convert them to numbers, with NaN for such cells"
        raise DataError(f"{holds} as text beside {errors[0]!r}; {remedy}")
    if all(map(BLANKS.fullmatch, texts.values)):
        raise DataError(f"{holds} with blanks, {shown}; write nothing between thousands")
    found = _with_unit(texts.values[:LOOKED_AT]) if len(texts.values) > FEW_VALUES else None
    if found is not None:
        raise DataError(
            f"{holds} with the unit {found[1]!r}, such as {found[0]!r}, in {len(texts.values):,}"
            f" values; write the numbers alone{otherwise}"
        )


def _with_unit(texts: Sequence[str]) -> tuple[str, str] | None:
    """Return a text and its unit if nearly all texts are numbers with one unit; else None.

    If some numbers have a decimal point, there may be up to three units, such as kg and g.
    """
    found = filter(None, (WITH_UNIT.fullmatch(text.strip()) for text in texts))
    units = [(x.string, x["before"].strip() or x["after"].strip()) for x in found]
    most = 3 if any("." in text for text, _ in units) else 1
    counts = Counter(unit.lower() for _, unit in units if unit).most_common(most)
    if sum(count for _, count in counts) < OF_ONE_UNIT * len(texts):
        return None
    return next(x for x in units if x[1].lower() == counts[0][0])


def nearest(wanted: str, names: Sequence[str]) -> str:
    """Return advice on an unknown name: the nearest of ``names``, or a list of them."""
    from difflib import get_close_matches  # for a wrong name alone

    in_other_case = [name for name in names if name.lower() == wanted.lower()]
    close = get_close_matches(wanted, names, n=1) or in_other_case
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(names[:LISTED])
    return f"its columns are {shown}" + (", ..." if len(names) > LISTED else "")


def is_null(cell: Any) -> bool:
    """Return whether a cell is None, NaN, or the missing value of pandas."""
    is_nan = isinstance(cell, (float, np.floating, Decimal)) and bool(cell != cell)
    return is_nan or cell is None or type(cell).__name__ in ("NAType", "NaTType")
