"""Tasks of fine-tuning: the rows with their targets, the chain that is trained, the stack it makes.

For reconstruction the stack is unrolled into encoder and decoder (Hinton and Salakhutdinov 2006):
layers 1..K up, then K..1 down with weights of their own, which start as the transposed ones of a
tied layer. For classification and regression a head stands on the code instead.

The targets of the rows that have one are classes, as rows of zeros with a one, or numbers to
predict. Numbers are standardized for training, else a target of 150 takes thousands of updates of
the bias alone; the head that is kept predicts them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import is_labelled
from syncpretrain.data.examples import has_missing
from syncpretrain.data.labels import Classes, are_shares, as_classes, single_numbers
from syncpretrain.data.scaling import Scaling
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.finetuning.chain import Affine, Link, link_down, link_up, tuned
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import Pair
from syncpretrain.models.stack import Head, Stack
from syncpretrain.parallel.available_memory import available_bytes
from syncpretrain.rng import Purpose, generator
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.shapes import LayerShape
from syncpretrain.units.kinds import kind_of

BYTES_OF_TARGET = 5  # a truth value, and then a float32 number
ROUNDING = 1e-3  # of a sum of probabilities
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
        return (targets - self.mean) / self.spread


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
        old, outputs = stack.head, self.targets.shape[1]
        wanted = kind, self.classes, outputs
        if old is not None and (old.kind, old.classes, len(old.bias)) == wanted:
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

    y may also have the probability of each class, of shape (n, classes).

    ``classes`` are the possible classes; a row of another class has zeros alone. None takes the
    ``usual`` classes if these hold all classes in y, else the classes in y.

    Raises
    ------
    DataError
        If y is not one class a row, or ``classes`` is None and it has fewer than two; or if they
        are too many for the memory.
    """
    if are_shares(y):
        return _shares_of(y, examples, name, classes, usual)
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
    known = array[rows]
    if len(known) and isinstance(classes[0], str) != (known.dtype.kind == "U"):
        raise DataError(f"{name}: got {known[0].item()!r}, expected classes such as {classes[0]!r}")
    targets = np.equal(known[:, None], np.array(classes)).astype(np.float32)
    return Labels(rows, targets, classes, tuple(np.setdiff1d(known, classes).tolist()))


def _shares_of(y: Any, examples: int, name: str, classes: Classes | None, usual: Classes) -> Labels:
    """Return targets that are the probability of each class; rows with a NaN have none.

    They are the probabilities of ``classes``. None takes the ``usual`` ones if these are as many,
    else the classes 0, 1, ...
    """
    outputs = None if classes is None else len(classes)
    found = numbers_of(single_numbers(y, name, may_be_alike=True), examples, name, outputs)
    sums = found.targets.sum(axis=1)
    wrong = (found.targets < 0).any(axis=1) | (np.abs(sums - 1) > ROUNDING)
    if wrong.any():
        row = int(found.rows[wrong.argmax()])
        raise DataError(
            f"{name}: got row {row} (counted from 0) with the sum {sums[wrong.argmax()]:g} or a"
            " negative number, expected the probabilities of the classes; for numbers to predict"
            " take regression"
        )
    own, columns = usual if classes is None else classes, range(found.targets.shape[1])
    return replace(found, classes=own if len(own) == len(columns) else tuple(columns))


def numbers_of(y: Any, examples: int, name: str, outputs: int | None = None) -> Labels:
    """Return numbers to predict, of shape (n,) or (n, outputs); rows with a NaN have none.

    ``outputs`` is how many there must be a row; None takes any number.

    Raises
    ------
    DataError
        If y has another shape, is infinite, or has no number at all where ``outputs`` is None.
    """
    array = single_numbers(y, name)  # what overflows is found below
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


class Form(NamedTuple):
    """Shape of a stack, known before it is trained.

    ``shapes`` has the shape of each layer, ``units`` the kinds of the input's units and of each
    layer's, ``classes`` the classes of its head, if it has one, and ``scaling`` the scaling of its
    input, as far as it is known.
    """

    shapes: tuple[LayerShape, ...]
    units: tuple[str, ...]
    classes: Classes = ()
    scaling: Scaling | None = None

    def __str__(self) -> str:
        """Return the layers and their units."""
        return f"{', '.join(map(str, self.shapes))} of {', '.join(self.units)} units"

    @classmethod
    def of(cls, stack: Stack) -> Form:
        """Return the form of a stack."""
        classes: Classes = () if stack.head is None else stack.head.classes
        shapes = tuple(layer.shape for layer in stack.layers)
        return cls(shapes, stack.units, classes, stack.scaling)


class Part(NamedTuple):
    """Examples to train on or to validate with, their targets, and the name for error messages.

    ``weights`` says how much each training example counts; None if all count alike.
    """

    X: Any
    y: Any
    name: str
    weights: Any = None


class Examples(NamedTuple):
    """Rows as the lowest layer sees them, the target of each, and its weight in the loss.

    ``targets`` is ``inputs`` itself for reconstruction. ``weights`` of shape (n, 1) is None if all
    rows count alike; errors are not weighted. ``numbers`` is None if each row has a target in its
    place; else it has the numbers of the rows with a target, in the order of these, and then those
    of the rows without one.
    """

    inputs: Array
    targets: Array
    weights: Array | None = None
    numbers: NDArray[np.intp] | None = None

    @property
    def rows(self) -> tuple[Array, ...]:
        """The inputs, and the targets if they are others."""
        return self[:1] if self.targets is self.inputs else self[:2]

    def to(self, device: Callable[[Any], Any]) -> Examples:
        """Return the same moved by ``device``; one array stays one."""
        # The weights first: they are few, and the rows may take all the memory of a device.
        weights = None if self.weights is None else device(self.weights)
        inputs = device(self.inputs)
        targets = inputs if self.targets is self.inputs else device(self.targets)
        return Examples(inputs, targets, weights, self.numbers)


def check_targets(objective: str, train: Part, validation: Part | None) -> None:
    """Refuse targets that an objective has no use for, and none where it needs some.

    Raises
    ------
    SettingsError, DataError
        The second where only the validation examples have none.
    """
    if objective == "none":
        raise SettingsError("objective: got none, expected something to fine-tune for")
    if objective == "reconstruction":
        if train.y is not None:
            raise SettingsError("objective: got reconstruction with targets y; leave one out")
        for part, name in ((train, "X"), (validation, "validation")):
            if part is not None and has_missing(part.X):
                raise DataError(
                    f"{name}: got NaN, which stands for missing values, with fine-tuning for"
                    " reconstruction, whose targets these would be; pretrain without it, and"
                    " fill them in with Stack.impute"
                )
    elif train.y is None:
        raise SettingsError(f"objective: got {objective} without targets, expected y")
    elif validation is not None and validation.y is None:
        raise DataError(
            f"{validation.name}: got nothing, expected the targets of the validation rows"
        )


def check_sizes(
    options: FinetuneSettings, examples: int, has_judges: bool, *, with_targets: bool
) -> None:
    """Refuse a minibatch larger than the examples, and patience with nothing to judge by.

    Raises
    ------
    SettingsError
    """
    if options.batch_size > examples:
        raise SettingsError(
            f"finetune_batch_size: got {options.batch_size}, expected at most {examples},"
            " the examples to train on"
        )
    if options.patience is not None and not has_judges:
        targets = " that have a target" if with_targets else ""
        raise SettingsError(
            f"finetune_patience: got a number without validation examples{targets}, expected"
            " some to judge by; hold out a larger part for validation"
        )


def targets_of(
    objective: str, part: Part, *, usual: Classes = (), like: Labels | None = None
) -> Labels:
    """Return the targets of a part.

    ``like`` are the training targets: validation targets must have their classes or width.
    """
    if objective == "classification":
        classes = None if like is None else like.classes
        return labels_of(part.y, len(part.X), part.name, classes, usual=usual)
    outputs = None if like is None else like.targets.shape[1]
    return numbers_of(part.y, len(part.X), part.name, outputs)


def unknown_classes(judged: Labels | None) -> str:
    """Return a warning of validation examples with a class that no training example has, or ""."""
    if judged is None or not judged.others:
        return ""
    count = int((~judged.targets.any(axis=1)).sum())
    return (
        f"warning: {count} of {len(judged.rows)} labelled validation examples are of classes that"
        f" no training example has ({', '.join(map(str, judged.others))}); they count as wrong"
    )


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
        old, depth = self.stack.layers, len(chain) // 2
        units, halves = self.stack.units[:depth], (chain[:depth], reversed(chain[depth:]))
        layers = []
        for layer, kind, encoder, (weight, bias) in zip(old, units, *halves, strict=True):
            decoder = {"visible_units": kind, "visible_bias": bias.copy()}
            decoder["decoder_weight"] = weight.reshape(layer.decoding.shape).copy()
            layers.append(tuned(layer, encoder, **decoder))
        return Stack(tuple(layers), info, self.stack.scaling)


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
        layers = tuple(map(tuned, self.stack.layers, chain))
        weight, bias = (array.copy() for array in chain[-1])
        if self._standard is not None:
            weight *= self._standard.spread
            bias *= self._standard.spread
            bias += self._standard.mean
        head = replace(self._head, weight=weight, bias=bias)
        return Stack(layers, info, self.stack.scaling, head)
