"""A data set: examples in three parts, labels where there are some, and where it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.columns import Columns
from syncpretrain.data.examples import scale_examples
from syncpretrain.data.meaning import Meaning
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.data.split import stratified_split
from syncpretrain.errors import DataError

__all__ = ["PARTS", "UNLABELLED", "Dataset", "classes_only", "from_rows", "hold_out", "is_labelled"]

PARTS = ("train", "validation", "test")
UNLABELLED = -1  # among labels, stands for none


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples to pretrain on, to validate with and to test with.

    Parameters
    ----------
    name : str
        What the user asked for: mnist, digits, or a file's path.
    source : str
        Where the examples came from, in plain words.
    train, validation, test : float32 arrays of shape (n_examples, width)
        C-contiguous, values in [0, 1]; validation and test may have no rows. Of a file that is
        too large they are ``FileRows``, of a sparse matrix ``SparseRows``, which stand for arrays.
    train_labels, validation_labels, test_labels : int64 arrays of shape (n_examples,), or None
        Classes, with -1 for none; or float32 with NaN for none, the numbers of a regression.
    notices : tuple of str
        Messages for the user, such as that a smaller set was used.
    columns : Columns or None
        What the values of an example are, where the data came as a table.
    meaning : Meaning or None
        The meaning of the numbers that the values were made of.
    """

    name: str
    source: str
    train: NDArray[np.float32]
    validation: NDArray[np.float32]
    test: NDArray[np.float32]
    train_labels: NDArray[Any] | None = None
    validation_labels: NDArray[Any] | None = None
    test_labels: NDArray[Any] | None = None
    notices: tuple[str, ...] = ()
    columns: Columns | None = None
    meaning: Meaning | None = None
    full_sha256: str | None = field(
        default=None, repr=False
    )  # of all labels, where some are left out, or of a mapped file
    stamp: Any = field(default=None, repr=False)  # a FileStamp, of a mapped file

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of every example and label: shapes, float32 values and int64 labels, by part.

        Of sparse rows it is that of what is kept, in its one form without zeros.
        It is computed once, at the speed of reading; labels that :meth:`with_labels` leaves out
        count all the same. Classes that are texts are part of it.
        """
        if self.full_sha256 is not None:
            return self.full_sha256
        digest = hashlib.sha256()
        for part in PARTS:
            for array in (getattr(self, part), getattr(self, f"{part}_labels")):
                digest.update(f"{part}:{None if array is None else array.shape};".encode())
                for own in array.csr if isinstance(array, SparseRows) else (array,):
                    if own is not None:
                        digest.update(np.ascontiguousarray(own).data)
        target = None if self.columns is None else self.columns.target
        if target is not None and target.classes is not None:
            digest.update(repr(target.classes).encode())
        return digest.hexdigest()

    @property
    def width(self) -> int:
        """The number of values of an example: the visible units that layer 1 needs."""
        return int(self.train.shape[1])

    def targets(self, part: str) -> NDArray[Any] | None:
        """Return the labels of a part; classes that are texts as these, with "" for none."""
        labels: NDArray[Any] | None = getattr(self, f"{part}_labels")
        target = None if self.columns is None else self.columns.target
        if labels is None or target is None or target.classes is None:
            return labels
        names: NDArray[Any] = np.array([*target.classes, ""])
        found: NDArray[Any] = names[labels]  # -1 is the last one
        return found

    def with_examples(self, count: int, *, seed: int = 0) -> Dataset:
        """Return the data with ``count`` of the training examples, in their order.

        Each class keeps its share; fewer examples are not a part of more.

        Raises
        ------
        DataError
            If there are fewer.
        """
        if not 1 <= count <= len(self.train):
            raise DataError(
                f"examples: got {count}, expected 1 to {len(self.train)}, the training examples"
                f" of {self.name}"
            )
        if count == len(self.train):
            return self
        labels = self.train_labels
        rows = stratified_split(
            classes_only(labels), len(self.train), held_out=count, seed=seed, step=2
        )[1]
        train: Any = self.train
        return replace(
            self,
            train=train[rows] if isinstance(train, np.ndarray) else train.subset(rows),
            train_labels=None if labels is None else labels[rows],
            full_sha256=self.sha256 if self.full_sha256 else None,
        )

    def with_labels(self, count: int, *, seed: int = 0) -> Dataset:
        """Return the data with ``count`` labelled training examples, as many of each class.

        The labels of the others become -1, which stands for none. Fewer labelled examples are a
        part of more, for one seed and as far as the classes' sizes permit.

        Raises
        ------
        DataError
            If there are fewer labels, or none.
        """
        if self.train_labels is None:
            raise DataError(f"labels: got {count}, but {self.name} has no labels")
        labelled = np.flatnonzero(is_labelled(self.train_labels))
        if not 1 <= count <= len(labelled):
            raise DataError(f"labels: got {count}, expected 1 to {len(labelled)}, those there are")
        kept = labelled
        if count < len(labelled):
            kept = labelled[
                stratified_split(
                    classes_only(self.train_labels[labelled]),
                    len(labelled),
                    held_out=count,
                    seed=seed,
                    equal_classes=True,
                    step=1,
                )[1]
            ]
        is_class = self.train_labels.dtype.kind != "f"
        labels = np.full_like(self.train_labels, UNLABELLED if is_class else np.nan)
        labels[kept] = self.train_labels[kept]
        return replace(self, train_labels=labels, full_sha256=self.sha256)


def is_labelled(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows have a label."""
    if labels.dtype.kind == "f":
        found: NDArray[np.bool_] = ~np.isnan(labels)
    else:
        found = np.not_equal(labels, "" if labels.dtype.kind == "U" else UNLABELLED)
    return found


def classes_only(labels: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return labels to stratify by: classes; None for the numbers of a regression."""
    return None if labels is None or labels.dtype.kind == "f" else labels


def hold_out(
    rows: NDArray[np.intp],
    labels: NDArray[Any] | None,
    *,
    validation: float | None,
    default: int,
    seed: int,
    equal_classes: bool = False,
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Divide rows into those to train on and those to validate with, each ascending.

    ``validation`` is the fraction held out, or None for ``default`` rows, as many of each class
    where ``equal_classes`` asks for it. A fraction keeps the classes' proportions. ``labels`` has
    one entry for each entry of ``rows``.

    Raises
    ------
    DataError
        If the fraction is not in [0, 1), or leaves nothing to train on.
    """
    held_out = default
    if validation is not None:
        if not 0 <= validation < 1:
            raise DataError(
                f"validation: got {validation}, expected a fraction of at least 0 and below 1"
            )
        # A fraction above 0 asks for validation, so that it holds out one example at least.
        held_out = max(round(validation * len(rows)), 1 if validation else 0)
        if held_out >= len(rows):
            raise DataError(
                f"validation: got {validation}, which holds out all of {len(rows)} examples; take"
                " a smaller fraction"
            )
        equal_classes = False
    kept, held = stratified_split(
        classes_only(labels), len(rows), held_out=held_out, seed=seed, equal_classes=equal_classes
    )
    return rows[kept], rows[held]


def from_rows(
    name: str,
    X: NDArray[Any],
    labels: NDArray[Any] | None,
    *,
    source: str,
    parts: tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]],
    notices: Sequence[str] = (),
    columns: Columns | None = None,
    meaning: Meaning | None = None,
    earlier: Meaning | None = None,
) -> Dataset:
    """Build a data set of the rows ``parts``: to train, to validate and to test with.

    ``X`` holds checked examples of any numeric type; each part becomes float32 by itself, so that
    the whole never exists twice. They have been prepared by ``meaning``, or are to be by that of
    ``earlier`` examples, or by their own.
    """
    if meaning is None:
        meaning = earlier or Meaning.of(X)
        X = X if earlier is None else earlier.prepare(X, name)
    everything = len(parts[0]) == len(X)
    own = [None if labels is None else labels[rows] for rows in parts]
    return Dataset(
        name,
        source,
        train=scale_examples(X, rows=None if everything else parts[0]),
        validation=scale_examples(X, rows=parts[1]),
        test=scale_examples(X, rows=parts[2]),
        train_labels=own[0],
        validation_labels=own[1],
        test_labels=own[2],
        notices=tuple(notices),
        columns=columns,
        meaning=meaning,
    )
