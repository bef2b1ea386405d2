"""Predictors: a deep belief network with a head for classes or for numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.extmath import softmax
from sklearn.utils.validation import check_is_fitted

from syncpretrain import Stack
from syncpretrain.data.scaling import Scaling
from syncpretrain.finetuning.classes import Classes
from syncpretrain.models.stack import Head
from syncpretrain.sklearn.few_labels import are_few, head_first, of_bits
from syncpretrain.sklearn.passes import Matrix, outputs_of
from syncpretrain.sklearn.ranges import are_bits, in_shared_range, shared_range
from syncpretrain.sklearn.stack_predictor import StackPredictor
from syncpretrain.sklearn.targets import (
    classes_of,
    mean_and_spread,
    numbers_of_rows,
    relative,
    weights_of,
)
from syncpretrain.sklearn.trials import with_weight
from syncpretrain.sklearn.weight_decay import chosen_decay, is_for_choice

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DBNClassifier", "DBNRegressor"]

MANY_UNITS, FEW_UNITS = 256, 64
FEW_CLASSES = 20


class DBNClassifier(ClassifierMixin, StackPredictor):
    """Classifier: a stack of RBMs pretrained on all rows, fine-tuned on the labelled ones.

    Parameters
    ----------
    hidden : sequence of int, optional
        Units of each layer. None takes (256, 64), and (256, 256) for more than 20 classes.
    epochs, batch_size, learning_rate, visible_units, workers, random_state, verbose
        As of :class:`StackedRBM`; ``epochs=0`` leaves out pretraining.
    finetune_epochs : int, optional
        Passes over the labelled rows; None takes what suits their number.
    pretrained : Stack, StackedRBM, StackedAutoencoder or fitted predictor, optional
        What to begin with; a transformer that is not fitted is fitted on X. In a search give the
        ``stack_``, for copies of a transformer are not fitted. A head that has all classes of y
        goes on.
    class_weight : dict or "balanced", optional
        How much the rows of each class count; ``balanced`` gives all classes the same weight.
    settings : dict, optional
        Any other setting of :func:`syncpretrain.pretrain`, and with ``finetune_`` before their
        names those of :func:`syncpretrain.finetune`, such as ``{"finetune_dropout": 0.3}``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    n_unlabelled_ : int
        The number of rows without a label.
    stack_ : Stack
    n_features_in_ : int
        The number of columns.
    feature_names_in_ : ndarray of str
        Where X has names of columns.
    """

    def __init__(
        self,
        hidden: Sequence[int] | None = None,
        *,
        epochs: int | Sequence[int] | None = None,
        finetune_epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | Sequence[float] | None = None,
        visible_units: str = "auto",
        pretrained: Any = None,
        class_weight: Any = None,
        workers: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.hidden = hidden
        self.epochs = epochs
        self.finetune_epochs = finetune_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.visible_units = visible_units
        self.pretrained = pretrained
        self.class_weight = class_weight
        self.workers = workers
        self.random_state = random_state
        self.verbose = verbose
        self.settings = settings

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Pretrain on all rows, then fine-tune on those with a label.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_examples, n_features)
        y : array-like of shape (n_examples,)
            Labels: numbers, text or booleans. None, NaN and -1 stand for none, but -1 is a class
            where there is one other number.
        sample_weight : array-like of shape (n_examples,), optional
            How much the loss of each labelled row counts in fine-tuning; pretraining reads all rows
            alike.
        """
        rows = self._rows(X, reset=True)
        classes = classes_of(y, rows)
        self.classes_ = classes.labels
        weights = weights_of(sample_weight, rows, classes.rows)
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, classes.labels[classes.places])
            weights = relative(by_class, "class_weight") * (1 if weights is None else weights)
            weights = relative(weights, "sample_weight")
        self._train(rows, classes.rows, classes.places, weights, "classification")
        self.stack_ = for_labels(self.stack_, classes.labels)
        return self

    def _widths(self, columns: int) -> list[int]:
        """Return the units of each layer: codes of few units do not keep many classes apart."""
        if self.hidden is not None:
            return super()._widths(columns)
        few = len(self.classes_) <= FEW_CLASSES
        return [MANY_UNITS, FEW_UNITS if few else MANY_UNITS]

    def _to_train(self, stack: Stack) -> Stack:
        return for_places(stack, self.classes_)

    def _scaling(self, X: Matrix) -> Scaling | None:
        return shared_range(X) if self.visible_units == "auto" else None

    def _pretrained_for(self, X: Matrix, targets: int, seed: int, **suited: Any) -> Stack:
        scaling = self._scaling(X)
        seen = X if scaling is None else in_shared_range(X, scaling)
        # Settings of the user may not go together with those that suit zeros and ones.
        is_free = self.learning_rate is None and not self._others(tuning=False)
        is_binary = self.visible_units in ("auto", "bernoulli")
        if is_free and is_binary and are_few(X.shape[0], targets) and are_bits(seen):
            suited |= of_bits(len(self._widths(X.shape[1])))
        stack = self._pretrained_on(seen, seed, **suited)
        return stack if scaling is None else replace(stack, scaling=scaling)

    def _chosen(
        self,
        stack: Stack,
        X: Matrix,
        rows: NDArray[np.intp],
        y: Matrix,
        weights: Matrix | None,
        seed: int,
    ) -> tuple[Stack, dict[str, Any]]:
        is_trained = self.pretrained is not None or self._trains(self.epochs)
        if self._given_tuning() or not is_trained or not are_few(X.shape[0], len(rows)):
            return stack, {}
        rows, y, weights = with_weight(rows, y, weights)
        if len(np.unique(y)) < len(self.classes_):  # the labels of a class do not count
            return stack, {}
        return head_first(stack, X[rows], y, weights, seed)

    def predict_proba(self, X: Any) -> Matrix:
        """Return the probability of each class, of shape (n_examples, n_classes)."""
        probabilities: Matrix = softmax(self._outputs(X))
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row."""
        outputs = self._outputs(X)
        predicted: NDArray[Any] = self.classes_[outputs.argmax(axis=1)]
        return predicted

    def _outputs(self, X: Any) -> Matrix:
        check_is_fitted(self)
        return outputs_of(self.stack_, self._rows(X, reset=False))


class DBNRegressor(RegressorMixin, StackPredictor):
    """Regressor: a stack of RBMs pretrained on all rows, fine-tuned on those with numbers.

    Targets are standardized to train, and predictions are in their units again.

    Parameters
    ----------
    hidden : sequence of int
        Units of each layer.
    epochs, finetune_epochs, batch_size, learning_rate, visible_units, pretrained
        As of :class:`DBNClassifier`.
    workers, random_state, verbose, settings
        As of :class:`DBNClassifier`.

    Attributes
    ----------
    stack_ : Stack
    target_mean_, target_scale_ : ndarray of shape (outputs,)
    n_unlabelled_ : int
        The number of rows without numbers.
    weight_decay_ : float, optional
        Where it was chosen by cross-validation, as with 50 to 10,000 rows with numbers, a fifth of
        all rows at least; ``finetune_epochs`` or a setting that decides it leave it out.
    n_features_in_ : int
        The number of columns.
    feature_names_in_ : ndarray of str
        Where X has names of columns.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (256, 64),
        *,
        epochs: int | Sequence[int] | None = None,
        finetune_epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | Sequence[float] | None = None,
        visible_units: str = "auto",
        pretrained: Any = None,
        workers: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.hidden = hidden
        self.epochs = epochs
        self.finetune_epochs = finetune_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.visible_units = visible_units
        self.pretrained = pretrained
        self.workers = workers
        self.random_state = random_state
        self.verbose = verbose
        self.settings = settings

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Pretrain on all rows, then fine-tune on those with numbers.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_examples, n_features)
        y : array-like of shape (n_examples,) or (n_examples, outputs)
            Rows with a NaN have no target.
        sample_weight : array-like of shape (n_examples,), optional
            As of :class:`DBNClassifier`.
        """
        rows = self._rows(X, reset=True)
        targets = numbers_of_rows(y, rows)
        weights = weights_of(sample_weight, rows, targets.rows)
        self.target_mean_, self.target_scale_ = mean_and_spread(targets.values, weights)
        self._one_dimensional = targets.dimensions == 1
        scaled = (targets.values - self.target_mean_) / self.target_scale_
        self._train(rows, targets.rows, scaled, weights, "regression")
        self._head = self.stack_.head
        self.stack_ = for_numbers(self.stack_, self.target_mean_, self.target_scale_)
        return self

    def _to_train(self, stack: Stack) -> Stack:
        return for_standardized(stack, self.target_mean_, self.target_scale_)

    def _chosen(
        self,
        stack: Stack,
        X: Matrix,
        rows: NDArray[np.intp],
        y: Matrix,
        weights: Matrix | None,
        seed: int,
    ) -> tuple[Stack, dict[str, Any]]:
        rows, y, weights = with_weight(rows, y, weights)
        if not is_for_choice(X.shape[0], len(rows), self._given_tuning()):
            self.weight_decay_ = None
            return stack, {}
        finetuned = partial(self._finetuned, stack, seed=seed, objective="regression")
        self.weight_decay_ = chosen_decay(finetuned, X[rows], y, weights, seed)
        return stack, {"weight_decay": self.weight_decay_}

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the numbers of each row, of the shape of y."""
        check_is_fitted(self)
        rows = self._rows(X, reset=False)  # with the precision of these, not that of the head
        outputs = outputs_of(replace(self.stack_, head=self._head), rows)
        numbers: NDArray[np.float64] = outputs * self.target_scale_ + self.target_mean_
        return numbers[:, 0] if self._one_dimensional else numbers


# Heads are trained on places of classes and on standardized numbers. The head of ``stack_`` is for
# the labels and the numbers of y: a saved stack predicts what its estimator does.


def for_places(stack: Stack, labels: NDArray[np.generic]) -> Stack:
    """Return a stack whose head is for the places of labels; without it if a label is new to it."""
    head, names = stack.head, _names(labels)
    if head is None:
        return stack
    if head.kind != "classification" or not set(names) <= set(head.classes):
        return replace(stack, head=None)
    places = [head.classes.index(name) for name in names]
    weight, bias = np.ascontiguousarray(head.weight[:, places]), head.bias[places]
    return replace(stack, head=Head(weight, bias, head.kind, tuple(range(len(names)))))


def for_labels(stack: Stack, labels: NDArray[np.generic]) -> Stack:
    """Return a stack whose head, one for places, is for the labels themselves."""
    assert stack.head is not None
    return replace(stack, head=replace(stack.head, classes=_names(labels)))


def for_standardized(stack: Stack, mean: Matrix, scale: Matrix) -> Stack:
    """Return a stack whose head is for standardized numbers, without one if it is for others."""
    head = stack.head
    if head is None:
        return stack
    if head.kind != "regression" or head.bias.shape != mean.shape:
        return replace(stack, head=None)
    return replace(stack, head=_affine(head, head.weight / scale, (head.bias - mean) / scale))


def for_numbers(stack: Stack, mean: Matrix, scale: Matrix) -> Stack:
    """Return a stack whose head, one for standardized numbers, is for these as they were."""
    head = stack.head
    assert head is not None
    return replace(stack, head=_affine(head, head.weight * scale, head.bias * scale + mean))


def _affine(head: Head, weight: Matrix, bias: Matrix) -> Head:
    with np.errstate(over="ignore"):  # numbers that float32 cannot hold
        return replace(head, weight=weight.astype(np.float32), bias=bias.astype(np.float32))


def _names(labels: NDArray[np.generic]) -> Classes:
    """Return labels as a head has them: texts, or whole numbers, of truth values too."""
    values: Any = labels.tolist()
    names: tuple[Any, ...] = tuple(x if isinstance(x, str) else int(x) for x in values)
    return names
