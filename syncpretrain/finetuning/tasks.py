"""Tasks of fine-tuning: the rows with their targets, the chain that is trained, the stack it makes.

For reconstruction the stack is unrolled into encoder and decoder (Hinton and Salakhutdinov 2006):
layers 1..K up, then K..1 down with weights of their own, which start as the transposed ones of a
tied layer. For classification and regression a head stands on the code instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import StoredRows
from syncpretrain.data.labels import Classes
from syncpretrain.data.scaling import Scaling
from syncpretrain.data.visible import has_missing
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.finetuning.chain import Affine, Link, link_down, link_up, tuned
from syncpretrain.finetuning.targets import Labels, Standard, labels_of, numbers_of
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.backprop import Pair
from syncpretrain.models.stack import Head, Stack
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.shapes import LayerShape
from syncpretrain.units.kinds import kind_of


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

    def to(self, device: Callable[[Any], Any]) -> Examples:
        """Return the same moved by ``device``; one array stays one."""
        # The weights first: they are few, and the rows may take all the memory of a device.
        weights = None if self.weights is None else device(self.weights)
        inputs = device(self.inputs)
        targets = inputs if self.targets is self.inputs else device(self.targets)
        return Examples(inputs, targets, weights, self.numbers)


def chosen_rows(X: Any, rows: Any) -> Any:
    """Return some rows; rows of a file stay in the file."""
    return X.subset(rows) if isinstance(X, StoredRows) else X[rows]


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
        depth = len(chain) // 2
        halves = zip(self.stack.layers, chain[:depth], reversed(chain[depth:]), strict=True)
        layers = tuple(
            tuned(
                layer,
                encoder,
                visible_bias=bias.copy(),
                decoder_weight=weight.reshape(layer.decoding.shape).copy(),
                visible_units=units,
            )
            for units, (layer, encoder, (weight, bias)) in zip(
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
        layers = tuple(map(tuned, self.stack.layers, chain))
        weight, bias = (array.copy() for array in chain[-1])
        if self._standard is not None:
            weight *= self._standard.spread
            bias *= self._standard.spread
            bias += self._standard.mean
        head = replace(self._head, weight=weight, bias=bias)
        return Stack(layers, info, self.stack.scaling, head)
