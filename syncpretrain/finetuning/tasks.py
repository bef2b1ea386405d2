"""Fine-tuning tasks: the chain of a stack, its targets, and the stack made of the result.

For reconstruction the stack is unrolled into encoder and decoder (Hinton and Salakhutdinov 2006):
layers 1..K up, then K..1 down with weights of their own, which start as the transposed ones of a
tied layer. For classification and regression a head stands on the code instead. Numbers to predict
are standardized for training, else a target of 150 takes thousands of updates of the bias alone;
the head that is kept predicts them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import is_labelled
from syncpretrain.data.labels import single_numbers
from syncpretrain.errors import DataError
from syncpretrain.finetuning.chain import Affine, Link, link_down, link_up, tuned
from syncpretrain.finetuning.classes import Classes, as_classes
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import Pair
from syncpretrain.models.stack import Head, Stack
from syncpretrain.parallel.available_memory import available_bytes
from syncpretrain.rng import Purpose, generator
from syncpretrain.units.kinds import kind_of

__all__ = [
    "Labels",
    "Reconstruction",
    "Standard",
    "Supervised",
    "labels_of",
    "numbers_of",
    "reconstruction_loss",
]

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


class Reconstruction:
    """The output is to be the input."""

    objective, error_scale = "reconstruction", 1.0

    def __init__(self, stack: Stack, *, loss: str | None) -> None:
        self.stack = stack
        self.loss = reconstruction_loss(loss, stack.units[0])
        self.is_bounded = kind_of(stack.units[0]).is_bounded

    def chain(self) -> list[Link]:
        """Return the unrolled stack."""
        layers, kinds = self.stack.layers, self.stack.units
        pairs = zip(reversed(layers), reversed(kinds[:-1]), strict=True)
        return [*map(link_up, layers), *(link_down(layer, units) for layer, units in pairs)]

    def stack_of(self, chain: Sequence[Pair], info: dict[str, Any]) -> Stack:
        """Return the stack that a trained chain makes."""
        depth = len(chain) // 2
        halves = zip(self.stack.layers, chain[:depth], reversed(chain[depth:]), strict=True)
        layers = tuple(
            tuned(
                layer,
                weight=weight.reshape(layer.weight.shape).copy(),
                hidden_bias=hidden_bias.copy(),
                visible_bias=visible_bias.copy(),
                decoder_weight=decoder_weight.reshape(layer.decoding.shape).copy(),
                visible_units=units,
            )
            for units, (layer, (weight, hidden_bias), (decoder_weight, visible_bias)) in zip(
                self.stack.units, halves, strict=False
            )
        )
        return Stack(layers, info, self.stack.scaling)


def reconstruction_loss(loss: str | None, visible_units: str) -> str:
    """Return the loss of a reconstruction by units of a kind: ``squared`` if none is asked for.

    For units in blocks it is the matching loss of each block.

    Raises
    ------
    DataError
        If it is for values in [0, 1] alone and these are others.
    """
    kind = kind_of(visible_units)
    if loss == "cross-entropy" and kind.loss != "cross-entropy":
        raise DataError(
            f"finetune_loss: got cross-entropy for {visible_units} visible units, expected squared"
        )
    return loss or ("squared" if kind.blocks is None else kind.loss)


class Supervised:
    """The output is to be a class or numbers, by a head on the code.

    With ``standard`` the head predicts targets as they are, and the chain standardized targets,
    with errors that are ``error_scale`` times smaller.
    """

    def __init__(
        self, stack: Stack, head: Head, objective: str, standard: Standard | None = None
    ) -> None:
        self.stack, self._head, self.objective = stack, head, objective
        self._standard = standard
        self.error_scale = 1.0 if standard is None else standard.spread**2
        self.loss = "cross-entropy" if objective == "classification" else "squared"
        self.is_bounded = objective == "classification"

    def chain(self) -> list[Link]:
        """Return the stack's encoder and the head."""
        units = "softmax" if self.objective == "classification" else "gaussian"
        weight, bias = self._head.weight, self.targets(self._head.bias)
        if self._standard is not None:
            weight = weight / self._standard.spread
        return [*map(link_up, self.stack.layers), Affine(weight, bias, units)]

    def targets(self, targets: Array) -> Array:
        """Return targets as the chain is trained on them."""
        return targets if self._standard is None else self._standard.applied(targets)

    def stack_of(self, chain: Sequence[Pair], info: dict[str, Any]) -> Stack:
        """Return the stack of a trained chain; its decoder stays as it was."""
        layers = tuple(
            tuned(
                layer,
                weight=weight.reshape(layer.weight.shape).copy(),
                hidden_bias=bias.copy(),
            )
            for layer, (weight, bias) in zip(self.stack.layers, chain, strict=False)
        )
        weight, bias = (array.copy() for array in chain[-1])
        if self._standard is not None:
            weight *= self._standard.spread
            bias *= self._standard.spread
            bias += self._standard.mean
        head = replace(self._head, weight=weight, bias=bias)
        return Stack(layers, info, self.stack.scaling, head)


class Labels:
    """The rows that have a target, and their targets of shape (n_labelled, outputs).

    ``others`` are the classes that were met and are none of ``classes``; their targets are zeros.
    """

    def __init__(
        self,
        rows: NDArray[np.intp],
        targets: Array,
        classes: Classes,
        others: Classes = (),
    ) -> None:
        self.rows, self.targets, self.classes, self.others = rows, targets, classes, others

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
    y: Any,
    examples: int,
    name: str,
    classes: Classes | None = None,
    *,
    usual: Classes = (),
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
