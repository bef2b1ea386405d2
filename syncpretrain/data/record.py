"""The record of a data set: a few words and one hash, kept by what was trained on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from syncpretrain.data.dataset import PARTS, Dataset

__all__ = ["DataRecord", "record_in", "record_of"]


class DataRecord(msgspec.Struct, frozen=True):
    """Record of a data set in a run.

    Attributes
    ----------
    name : str
        mnist, digits, or the path of a file, as it was given.
    source : str
        Where the examples came from, in plain words.
    train, validation, test : int
        Examples of each part.
    width : int
        Values of an example.
    sha256 : str
        Of all examples and labels: :attr:`syncpretrain.data.dataset.Dataset.sha256`.
    """

    name: str
    source: str
    train: int
    validation: int
    test: int
    width: int
    sha256: str

    def __str__(self) -> str:
        """Return one phrase that identifies the data set."""
        sizes = ", ".join(f"{getattr(self, part):,} {part}" for part in PARTS)
        return f"{self.source} ({sizes}; {self.width} columns; SHA-256 {self.sha256[:12]})"


def record_of(data: Dataset) -> DataRecord:
    """Return the record of a data set."""
    sizes = {part: len(getattr(data, part)) for part in PARTS}
    return DataRecord(
        name=data.name,
        source=data.source,
        width=data.width,
        sha256=data.sha256,
        **sizes,
    )


def record_in(info: Mapping[str, Any]) -> DataRecord | None:
    """Return the record in the ``info`` of a model; None if it has none."""
    try:
        return msgspec.convert(info.get("data"), DataRecord | None)
    except msgspec.ValidationError:  # of a model written by another program
        return None
