"""Aligned protein sequences in FASTA files, as tables: a column a position, a category a letter.

A line that begins with > is the name of a sequence, which may span many lines; a line that begins
with ; is a comment. The 20 amino acids are the categories, and the gap, written - or ., is another
one where a file has gaps. Other letters (X, B, Z, J, U, O) and * and ? are unknown, and so missing
values. A * at the end of every sequence, the stop codon, is dropped. Lower case is read as upper
case.
"""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase, ascii_uppercase

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.csv_table import opened
from syncpretrain.data.table import Table, Texts
from syncpretrain.errors import DataError

FASTA_SUFFIXES = (".fasta", ".fas", ".fa", ".faa", ".afa")
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
GAP = "-"
UNKNOWN = "XBZJUO*?"
STOP, COMMENT = "*", ";"
SPACES = " \t\r\n\v\f"
# Not str.upper(), which makes two letters of some that are no ASCII.
AS_LETTERS = str.maketrans(ascii_lowercase, ascii_uppercase, SPACES)
UNKNOWN_CODE, REFUSED_CODE = -1, -2
NUCLEOTIDES = "ACGTUN-."
NOTICE = "{}: read {:,} unknown letters such as {!r} as missing values"
NOT_PROTEINS = (
    "{}: has the letters of DNA or RNA alone, and is read as amino acids, 20 choices a position; a"
    " CSV file with a column for each position has a choice for each of its letters"
)


def read_fasta(path: Path) -> Table:
    """Read aligned sequences as a table with a column of categories for each position, from 1.

    Raises
    ------
    DataError
        If the file cannot be read, holds no sequence, or sequences differ in length or hold
        anything but letters and gaps; it names the sequence.
    """
    names, sequences = _sequences(path)
    letters = np.frombuffer("".join(sequences).encode("utf-32-le"), dtype="<u4")
    codes = _codes(letters)
    if (codes == REFUSED_CODE).any():
        first = int((codes == REFUSED_CODE).argmax())
        ends = np.cumsum([len(sequence) for sequence in sequences])
        row = int(np.searchsorted(ends, first, side="right"))
        place = first - int(ends[row]) + len(sequences[row])
        raise DataError(
            f"{path}: sequence {row + 1}, {names[row]!r}, has {sequences[row][place]!r} at position"
            f" {place + 1}, expected a letter of an amino acid or a gap"
        )
    length = len(sequences[0])
    for number, (name, sequence) in enumerate(zip(names, sequences, strict=True), start=1):
        if len(sequence) != length:
            raise DataError(
                f"{path}: sequence {number}, {name!r}, has {len(sequence):,} positions, expected"
                f" the {length:,} of the first one; align the sequences"
            )
    codes = codes.reshape(len(sequences), length)
    unknown = codes == UNKNOWN_CODE
    notices = []
    if set(map(chr, np.unique(letters))) <= set(NUCLEOTIDES):
        notices.append(NOT_PROTEINS.format(path))
    if unknown.any():
        letter = chr(int(letters[unknown.ravel().argmax()]))
        notices.append(NOTICE.format(path, int(unknown.sum()), letter))
    alphabet = tuple(AMINO_ACIDS) + ((GAP,) if (codes == len(AMINO_ACIDS)).any() else ())
    columns = tuple(Texts(column, alphabet, is_alphabet=True) for column in codes.T.copy())
    places = tuple(str(place) for place in range(1, length + 1))
    return Table(str(path), places, columns, named=False, notices=tuple(notices))


def _sequences(path: Path) -> tuple[list[str], list[str]]:
    """Return the names and the sequences of a file, in upper case."""
    names, found = list[str](), list[list[str]]()
    with opened(path, "FASTA") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.strip(SPACES)
            if line.startswith(COMMENT):
                continue
            if line.startswith(">"):
                names.append(line[1:].strip())
                found.append([])
            elif line and not found:
                raise DataError(
                    f"{path}: got {line[:40]!r} in line {number}, expected the name of a sequence"
                    " behind a >, as in FASTA"
                )
            elif line:
                found[-1].append(line.translate(AS_LETTERS))
    sequences = ["".join(lines) for lines in found]
    if not sequences:
        raise DataError(f"{path}: got no sequences, expected one example or more")
    if all(sequence.endswith(STOP) for sequence in sequences):
        sequences = [sequence[:-1] for sequence in sequences]
    for number, (name, sequence) in enumerate(zip(names, sequences, strict=True), start=1):
        if not sequence:
            raise DataError(f"{path}: sequence {number}, {name!r}, is empty; leave it out")
    return names, sequences


def _codes(letters: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Return the places of letters among the amino acids, with the gap last."""
    codes = np.full(129, REFUSED_CODE, dtype=np.int32)  # the last one for all other characters
    codes[[ord(x) for x in UNKNOWN]] = UNKNOWN_CODE
    for code, letter in enumerate(AMINO_ACIDS + GAP):
        codes[ord(letter)] = code
    codes[ord(".")] = codes[ord(GAP)]
    return codes[np.minimum(letters, 128)]
