"""Targets of the rows that have one: classes as rows of zeros with a one, and numbers to predict.

Numbers to predict are standardized for training, else a target of 150 takes thousands of updates of
the bias alone; the head that is kept predicts them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import is_labelled
from syncpretrain.data.labels import Classes, as_classes, single_numbers
from syncpretrain.errors import DataError
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.stack import Head, Stack
from syncpretrain.parallel.available_memory import available_bytes
from syncpretrain.rng import Purpose, generator

BYTES_OF_TARGET = 5  # a truth value, and then a float32 number
HEAD_SPREAD = 0.01  # standard deviation of the head's first weights


class Standard(NamedTuple):
    """Mean of each target, and one spread of all of them, so that the loss keeps its optimum."""

    mean: Array
    spread: float

    @classmethod
    def of(cls, targets: Array, weights: Array | None = None) -> Standard:
        """Return mean and spread of targets of shape (n, outputs), with weights of shape (n, 1)."""
        by = None if weights is None else weights[:, 0]
        mean = np.average(targets.astype("f8"), axis=0, weights=by)
        squares = np.average(np.square(targets - mean), axis=0, weights=by)
        return cls(mean.astype(np.float32), float(np.sqrt(squares.mean())) or 1.0)

    def applied(self, targets: Array) -> Array:
        """Return targets as they are trained on."""
        standardized: Array = (targets - self.mean) / self.spread
        return standardized


@dataclass(frozen=True, slots=True)
class Labels:
    """The rows that have a target, and their targets of shape (n_labelled, outputs).

    ``others`` are the classes that were met and are none of ``classes``; their targets are zeros.
    """

    rows: NDArray[np.intp]
    targets: Array
    classes: Classes
    others: Classes = ()

    def head(self, stack: Stack, kind: str, seed: int, standard: Standard | None) -> Head:
        """Return a head to begin with: the stack's own if it has these classes."""
        old = stack.head
        outputs = self.targets.shape[1]
        if old is not None and (old.kind, old.classes, len(old.bias)) == (
            kind,
            self.classes,
            outputs,
        ):
            return old
        draws = generator(seed, Purpose.WEIGHTS)
        weight = draws.standard_normal((stack.widths[-1], outputs), dtype=np.float32)
        weight *= np.float32(HEAD_SPREAD)
        if standard is None:
            return Head(weight, np.zeros(outputs, dtype=np.float32), kind, self.classes)
        return Head(weight * standard.spread, standard.mean, kind)


def labels_of(
    y: Any, examples: int, name: str, classes: Classes | None = None, *, usual: Classes = ()
) -> Labels:
    """Return classes as rows of zeros with a one; rows of -1, None or NaN have no label.

    ``classes`` are the possible classes; a row of another class has zeros alone. None takes the
    ``usual`` classes if these hold all classes in y, else the classes in y.

    Raises
    ------
    DataError
        If y is not one class a row, or ``classes`` is None and it has fewer than two; or if they
        are too many for the memory.
    """
    array = as_classes(y, name)
    if array.shape != (examples,):
        raise DataError(f"{name}: got shape {array.shape}, expected ({examples},), one a row")
    rows = np.flatnonzero(is_labelled(array))
    if classes is None:
        classes = tuple(np.unique(array[rows]).tolist())
        if classes and set(classes) <= set(usual):
            classes = usual
        if len(classes) < 2:
            got = f"1 class, {classes[0]!r}" if classes else "no class"
            none = examples - len(rows)
            unlabelled = f" ({none:,} rows of -1, None or NaN have no label)" if none else ""
            raise DataError(
                f"{name}: got {got}, expected two or more; label training examples of another"
                f" class{unlabelled}"
            )
    needed = BYTES_OF_TARGET * len(rows) * len(classes)
    if needed > available_bytes():
        raise DataError(
            f"{name}: got {len(classes):,} classes in {len(rows):,} rows, which need"
            f" {needed / 1e9:.1f} GB as targets, more than is free; take regression to predict"
            " numbers, or a target of fewer classes"
        )
    targets = np.equal(array[rows, None], np.array(classes)).astype(np.float32)
    others = np.setdiff1d(array[rows], classes)
    return Labels(rows, targets, classes, tuple(others.tolist()))


def numbers_of(y: Any, examples: int, name: str, outputs: int | None = None) -> Labels:
    """Return numbers to predict, of shape (n,) or (n, outputs); rows with a NaN have none.

    ``outputs`` is how many there must be a row; None takes any number.

    Raises
    ------
    DataError
        If y has another shape, is infinite, or has no number at all where ``outputs`` is None.
    """
    try:
        array = single_numbers(y, name)  # what overflows is found below
    except DataError:
        raise
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: got no numbers ({error})") from error
    array = array.reshape(-1, 1) if array.ndim == 1 else array
    if array.ndim != 2 or len(array) != examples or not array.shape[1]:
        raise DataError(f"{name}: got shape {np.shape(y)}, expected ({examples},), one a row")
    if outputs is not None and array.shape[1] != outputs:
        raise DataError(f"{name}: got {array.shape[1]} numbers a row, expected {outputs}, as in y")
    if np.isinf(array).any():
        raise DataError(f"{name}: holds infinite values")
    rows = np.flatnonzero(~np.isnan(array).any(axis=1))
    if outputs is None and not len(rows):
        raise DataError(f"{name}: got no number in any row")
    return Labels(rows, array[rows], ())
