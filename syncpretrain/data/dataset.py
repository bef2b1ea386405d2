"""A data set: examples and labels in three parts, how they are divided, and the record of it.

The parts are for training, validation and test; each holds the same share of every class where
there are labels. A model and a run keep the record: a few words, the sizes and one hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import chosen_rows
from syncpretrain.data.columns import Columns
from syncpretrain.data.examples import scale_examples
from syncpretrain.data.meaning import Meaning
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import DataError
from syncpretrain.rng import Purpose, generator

__all__ = [
    "PARTS",
    "UNLABELLED",
    "DataRecord",
    "Dataset",
    "Rows",
    "classes_only",
    "divided",
    "from_rows",
    "hold_out",
    "is_labelled",
    "no_labels",
    "record_in",
    "record_of",
    "stratified_split",
]

PARTS = ("train", "validation", "test")
UNLABELLED = -1  # among labels, stands for none
Places = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples to pretrain on, to validate with and to test with.

    Parameters
    ----------
    name : str
        Name that the user asked for: mnist, digits, or a file's path.
    source : str
        Origin of the examples, in plain words.
    train, validation, test : float32 arrays of shape (n_examples, width)
        C-contiguous, values in [0, 1]; validation and test may have no rows. For a mapped file
        they are ``FileRows``, for a sparse matrix ``SparseRows``, which stand for arrays.
    train_labels, validation_labels, test_labels : int64 arrays of shape (n_examples,), or None
        Classes, with -1 for none; or float32 with NaN for none, the numbers of a regression.
    notices : tuple of str
        Messages for the user, such as that a smaller set was used.
    columns : Columns or None
        Columns of the table that the examples came from, if there was one.
    meaning : Meaning or None
        Meaning of the numbers that became the values.
    train_weights : float64 array of shape (n_train,), or None
        Weights of the training examples; None if all count alike.
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
    # Hash with the labels that were left out, or hash of a mapped file.
    full_sha256: str | None = field(default=None, repr=False)
    train_weights: NDArray[np.float64] | None = None
    stamp: Any = field(default=None, repr=False)  # a FileStamp, of a mapped file

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of every example and label: shapes, float32 values and int64 labels, by part.

        Sparse rows are hashed in their one form without zeros. Labels that :meth:`with_labels`
        leaves out count too, and so do the texts of classes. The hash is computed once, at the
        speed of reading.
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
        if self.train_weights is not None:
            digest.update(self.train_weights.data)
        target = None if self.columns is None else self.columns.target
        if target is not None and target.classes is not None:
            digest.update(repr(target.classes).encode())
        return digest.hexdigest()

    @property
    def width(self) -> int:
        """The number of values of an example: the visible units that layer 1 needs."""
        return int(self.train.shape[1])

    def targets(self, part: str) -> NDArray[Any] | None:
        """Return the labels of a part; classes with texts as texts, "" for no label."""
        labels: NDArray[Any] | None = getattr(self, f"{part}_labels")
        target = None if self.columns is None else self.columns.target
        if labels is None or target is None or target.classes is None:
            return labels
        names: NDArray[Any] = np.array([*target.classes, ""])
        found: NDArray[Any] = names[labels]  # -1 is the last one
        return found

    def with_examples(self, count: int, *, seed: int = 0) -> Dataset:
        """Return the data with ``count`` of the training examples, in their order.

        Each class keeps its share; a smaller choice is not part of a larger one.

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
        classes, n = classes_only(self.train_labels), len(self.train)
        _, rows = stratified_split(classes, n, held_out=count, seed=seed, step=2)
        sha256 = self.sha256 if self.full_sha256 else None
        return replace(self.with_train_rows(rows), full_sha256=sha256)

    def with_train_rows(self, rows: Places) -> Dataset:
        """Return the data with some of the training examples; rows of a file stay in the file."""
        names = ("train", "train_labels", "train_weights")
        there = [name for name in names if getattr(self, name) is not None]
        kept: dict[str, Any] = {name: chosen_rows(getattr(self, name), rows) for name in there}
        return replace(self, **kept)

    def with_labels(self, count: int, *, seed: int = 0) -> Dataset:
        """Return the data with ``count`` labelled training examples, as many of each class.

        The labels of the others become -1, which stands for none. For one seed, a smaller choice is
        part of a larger one, as far as the sizes of the classes permit.

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
            own, n = classes_only(self.train_labels[labelled]), len(labelled)
            parts = stratified_split(own, n, held_out=count, seed=seed, equal_classes=True, step=1)
            kept = labelled[parts[1]]
        labels = no_labels(self.train_labels, len(self.train_labels))
        labels[kept] = self.train_labels[kept]
        return replace(self, train_labels=labels, full_sha256=self.sha256)


class Rows(NamedTuple):
    """Examples of a file, with their labels and a test part if there are any.

    ``meaning`` is the meaning of the file's numbers, or of the earlier file that they were prepared
    by.
    """

    X: NDArray[Any]
    labels: NDArray[Any] | None = None
    notices: tuple[str, ...] = ()
    columns: Columns | None = None
    test: Rows | None = None
    meaning: Meaning | None = None
    weights: NDArray[Any] | None = None


def from_rows(
    name: str,
    rows: Rows,
    *,
    source: str = "",
    parts: tuple[Places, Places, Places],
    earlier: Meaning | None = None,
) -> Dataset:
    """Build a data set; ``parts`` are the numbers of its training, validation and test rows.

    ``rows`` hold checked examples of any numeric type; each part becomes float32 by itself, so that
    the whole never exists twice. If the rows have a meaning, they were prepared by it; else they
    are prepared by the meaning of ``earlier`` examples, or have their own. Without a ``source``
    they are all examples of the file ``name``.
    """
    X, labels, notices, columns, _, meaning, weights = rows
    if meaning is None:
        meaning = earlier or Meaning.of(X)
        X = X if earlier is None else earlier.prepare(X, name)
    everything = len(parts[0]) == len(X)
    own = [None if labels is None else labels[part] for part in parts]
    return Dataset(
        name,
        source or all_of(name, len(X)),
        train=scale_examples(X, rows=None if everything else parts[0]),
        validation=scale_examples(X, rows=parts[1]),
        test=scale_examples(X, rows=parts[2]),
        train_labels=own[0],
        validation_labels=own[1],
        test_labels=own[2],
        notices=notices,
        columns=columns,
        meaning=meaning,
        train_weights=None if weights is None else weights[parts[0]],
    )


def all_of(path: Any, count: int) -> str:
    """Return the source of a data set that has all examples of a file."""
    return f"the {count:,} example{'' if count == 1 else 's'} of {path}"


def is_labelled(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows have a label."""
    none = "" if labels.dtype.kind == "U" else UNLABELLED
    found: NDArray[np.bool_] = ~np.isnan(labels) if labels.dtype.kind == "f" else labels != none
    return found


def no_labels(like: NDArray[Any], count: int) -> NDArray[Any]:
    """Return ``count`` labels that stand for none, of the type of others."""
    return np.full(count, np.nan if like.dtype.kind == "f" else UNLABELLED, dtype=like.dtype)


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
    """Divide rows into training and validation rows, each in ascending order.

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


def stratified_split(
    labels: NDArray[Any] | None,
    n: int,
    *,
    held_out: int,
    seed: int,
    equal_classes: bool = False,
    step: int = 0,
) -> tuple[Places, Places]:
    """Divide n rows into kept ones and ``held_out`` held ones, a function of the arguments alone.

    Parameters
    ----------
    labels : array of shape (n,), or None
        Classes; each class gives its share. Without labels the held rows are drawn uniformly.
    n : int
        The number of rows.
    held_out, seed : int
        Number of rows held out, 0 or more, and seed of the draw.
    equal_classes : bool
        Hold out as many rows of one class as of another, as far as the classes' sizes permit
        (1,000 of each of MNIST's). Otherwise in proportion to their sizes, to within one row.
    step : int
        Number that distinguishes several splits under one seed.

    Returns
    -------
    kept, held : arrays of row numbers, ascending

    Raises
    ------
    DataError
        If ``held_out`` is negative or leaves nothing, or there is not one label a row.
    """
    if not 0 <= held_out < max(n, 1):
        raise DataError(
            f"validation and test: got {held_out} of {n} examples to hold out, expected at least 0"
            " and fewer than there are; hold out a smaller part, or give more examples"
        )
    if labels is not None and np.shape(labels) != (n,):
        raise DataError(f"labels: got shape {np.shape(labels)}, expected ({n},), one an example")
    draws = generator(seed, Purpose.SPLIT, step=step)
    held = np.zeros(n, dtype=bool)
    if labels is None:
        held[draws.permutation(n)[:held_out]] = True
    else:
        _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        shares = (_equal if equal_classes else _proportional)(sizes, held_out, draws)
        # Rows grouped by class, each group in row order.
        groups = np.split(np.argsort(classes, kind="stable"), np.cumsum(sizes)[:-1])
        for group, count in zip(groups, shares, strict=True):
            held[draws.permutation(group)[:count]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def _proportional(sizes: Places, held_out: int, draws: np.random.Generator) -> Places:
    """Return shares by the largest remainder; ties are broken by chance, for no label to win."""
    shares, remainders = np.divmod(sizes * held_out, int(sizes.sum()))
    order = np.lexsort((draws.permutation(len(sizes)), -remainders))
    shares[order[: held_out - int(shares.sum())]] += 1
    return shares


def _equal(sizes: Places, held_out: int, draws: np.random.Generator) -> Places:
    """Return shares that differ by one at most, except where a class has no more rows."""
    shares = np.zeros_like(sizes)
    order = draws.permutation(len(sizes))
    while (left := held_out - int(shares.sum())) > 0:
        able = order[shares[order] < sizes[order]]
        if left < len(able):
            shares[able[:left]] += 1
        else:
            shares[able] = np.minimum(sizes[able], shares[able] + left // len(able))
    return shares


def divided(
    path: Any,
    rows: Rows,
    *,
    validation: float | None = None,
    test: float | None = None,
    seed: int = 0,
) -> Dataset:
    """Divide the examples and labels of a file into the parts of a data set.

    ``test`` is the fraction to test with, held out before the validation part.

    Raises
    ------
    DataError
        If the fraction is not in [0, 1) or leaves nothing to train on.
    """
    n, labels = len(rows.X), rows.labels
    kept = np.arange(n)
    tested = kept[:0]
    if test is not None:
        # Step 3 makes the draws differ from the draws of the validation examples.
        kept, tested = stratified_split(
            classes_only(labels), n, held_out=max(round(test * n), 1), seed=seed, step=3
        )
    own = None if labels is None else labels[kept]
    train, held = hold_out(kept, own, validation=validation, default=len(kept) // 10, seed=seed)
    return from_rows(str(path), rows, parts=(train, held, tested))


class DataRecord(msgspec.Struct, frozen=True):
    """Record of a data set in a run.

    Attributes
    ----------
    name : str
        mnist, digits, or the path of a file, as the user gave it.
    source : str
        Origin of the examples, in plain words.
    train, validation, test : int
        Number of examples in each part.
    width : int
        Number of values in an example.
    sha256 : str
        Hash of all examples and labels: :attr:`syncpretrain.data.dataset.Dataset.sha256`.
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
    train, validation, test = (len(getattr(data, part)) for part in PARTS)
    return DataRecord(data.name, data.source, train, validation, test, data.width, data.sha256)


def record_in(info: Mapping[str, Any]) -> DataRecord | None:
    """Return the record in the ``info`` of a model; None if it has none."""
    try:
        return msgspec.convert(info.get("data"), DataRecord | None)
    except msgspec.ValidationError:  # another program wrote the model
        return None
