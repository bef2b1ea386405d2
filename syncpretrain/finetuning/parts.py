"""The form of a stack, and examples with their targets: the input of fine-tuning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from syncpretrain.data.blocks import StoredRows
from syncpretrain.data.scaling import Scaling
from syncpretrain.data.visible import has_missing
from syncpretrain.errors import DataError, SettingsError
from syncpretrain.finetuning.classes import Classes
from syncpretrain.finetuning.tasks import Labels, labels_of, numbers_of
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.stack import Stack
from syncpretrain.settings.finetuning import FinetuneSettings
from syncpretrain.shapes import LayerShape

__all__ = [
    "Examples",
    "Form",
    "Part",
    "check_sizes",
    "check_targets",
    "chosen_rows",
    "targets_of",
    "unknown_classes",
]


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
    """Rows as the lowest layer sees them, and the target of each."""

    inputs: Array
    targets: Array

    def to(self, device: Callable[[Any], Any]) -> Examples:
        """Return both moved by ``device``; one array stays one."""
        inputs = device(self.inputs)
        return Examples(inputs, inputs if self.targets is self.inputs else device(self.targets))


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
