"""Predictors: a deep belief network with a head for classes or for numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.extmath import softmax
from sklearn.utils.validation import check_is_fitted

from syncpretrain import Stack
from syncpretrain.data.dataset import UNLABELLED
from syncpretrain.errors import SettingsError
from syncpretrain.sklearn.base import StackEstimator
from syncpretrain.sklearn.passes import Matrix, outputs_of
from syncpretrain.sklearn.targets import classes_of, numbers_of_rows, weights_of
from syncpretrain.sklearn.weight_decay import chosen_decay, is_for_choice

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DBNClassifier", "DBNRegressor", "StackPredictor"]


class StackPredictor(StackEstimator):
    """Base of the predictors: pretraining on all rows, fine-tuning on those with a target."""

    pretrained: Any
    finetune_epochs: int | None

    def _start(self, X: Matrix, seed: int) -> Stack:
        """Return the stack to fine-tune: the one given, or one pretrained on all rows."""
        given = self.pretrained
        if given is None:
            return self._pretrained_on(X, seed)
        if not isinstance(given, (Stack, StackEstimator)) and not hasattr(given, "stack_"):
            raise SettingsError(
                f"pretrained: got a {type(given).__name__}, expected a Stack, a StackedRBM or a"
                " StackedAutoencoder"
            )
        if not isinstance(given, Stack):
            given = given if hasattr(given, "stack_") else clone(given).fit(X)
        stack: Stack = given if isinstance(given, Stack) else given.stack_
        self._check_width(stack, X, "pretrained")
        return stack

    def _train(
        self, X: Matrix, rows: NDArray[np.intp], y: Matrix, weights: Matrix | None, objective: str
    ) -> None:
        """Train on examples of which some rows have the targets y, and weights."""
        seed = self._seed()
        stack = self._start(X, seed)
        options: dict[str, Any] = {"objective": objective}
        options |= self._chosen(stack, X, rows, y, weights, seed)
        if self.batch_size is not None:
            options["batch_size"] = min(self.batch_size, len(rows))
        if len(rows) < X.shape[0]:  # what suits few targets follows from the number of all rows
            none = UNLABELLED if objective == "classification" else np.nan
            y = _spread_out(y, rows, X.shape[0], none)
            weights = None if weights is None else _spread_out(weights, rows, X.shape[0], 0)
        options["weights"] = weights
        self.stack_ = self._finetuned(stack, X, y, seed, self.finetune_epochs, **options)

    def _chosen(self, *data: Any) -> dict[str, Any]:
        """Return settings of fine-tuning that are chosen by trying, for the data of ``_train``."""
        return {}

    def _outputs(self, X: Any) -> Matrix:
        check_is_fitted(self)
        return outputs_of(self.stack_, self._rows(X, reset=False))


def _spread_out(values: Matrix, rows: NDArray[np.intp], length: int, fill: float) -> Matrix:
    """Return an array for all rows, with values at some and ``fill`` at the others."""
    spread: Matrix = np.full((length, *values.shape[1:]), fill, dtype=values.dtype)
    spread[rows] = values
    return spread


class DBNClassifier(ClassifierMixin, StackPredictor):
    """Classifier: a stack of RBMs pretrained on all rows, fine-tuned on the labelled ones.

    Parameters
    ----------
    hidden, epochs, batch_size, learning_rate, visible_units, workers, random_state, verbose
        As of :class:`StackedRBM`; ``epochs=0`` leaves out pretraining.
    finetune_epochs : int, optional
        Passes over the labelled rows; None takes what suits their number.
    pretrained : Stack, StackedRBM or StackedAutoencoder, optional
        What to begin with; a transformer that is not fitted is fitted on X. In a search give the
        ``stack_``, for copies of a transformer are not fitted.
    class_weight : dict or "balanced", optional
        How much the rows of each class count; ``balanced`` gives all classes the same weight.
    settings : dict, optional
        Any other setting of :func:`syncpretrain.pretrain`, and with ``finetune_`` before their
        names those of :func:`syncpretrain.finetune`, such as ``{"finetune_dropout": 0.3}``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    stack_ : Stack
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
            weights = by_class if weights is None else weights * by_class
        self._train(rows, classes.rows, classes.places, weights, "classification")
        return self

    def predict_proba(self, X: Any) -> Matrix:
        """Return the probability of each class, of shape (n_examples, n_classes)."""
        probabilities: Matrix = softmax(self._outputs(X))
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row."""
        outputs = self._outputs(X)
        predicted: NDArray[Any] = self.classes_[outputs.argmax(axis=1)]
        return predicted


class DBNRegressor(RegressorMixin, StackPredictor):
    """Regressor: a stack of RBMs pretrained on all rows, fine-tuned on those with numbers.

    Targets are standardized to train, and predictions are in their units again.

    Parameters
    ----------
    hidden, epochs, finetune_epochs, batch_size, learning_rate, visible_units, pretrained
        As of :class:`DBNClassifier`.
    workers, random_state, verbose, settings
        As of :class:`DBNClassifier`.

    Attributes
    ----------
    stack_ : Stack
    target_mean_, target_scale_ : ndarray of shape (outputs,)
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
        self.target_mean_ = np.average(targets.values, axis=0, weights=weights)
        squares = np.square(targets.values - self.target_mean_)
        spread = np.sqrt(np.average(squares, axis=0, weights=weights))
        self.target_scale_ = np.where(spread > 0, spread, 1.0)
        self._one_dimensional = targets.dimensions == 1
        scaled = (targets.values - self.target_mean_) / self.target_scale_
        self._train(rows, targets.rows, scaled, weights, "regression")
        return self

    def _chosen(
        self,
        stack: Stack,
        X: Matrix,
        rows: NDArray[np.intp],
        y: Matrix,
        weights: Matrix | None,
        seed: int,
    ) -> dict[str, Any]:
        given = dict(self._others(tuning=True))
        if self.finetune_epochs is not None:
            given["epochs"] = self.finetune_epochs
        if not is_for_choice(X.shape[0], len(rows), given):
            self.weight_decay_ = None
            return {}
        finetuned = partial(self._finetuned, stack, seed=seed, objective="regression")
        self.weight_decay_ = chosen_decay(finetuned, X[rows], y, weights, seed)
        return {"weight_decay": self.weight_decay_}

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the numbers of each row, of the shape of y."""
        outputs = self._outputs(X)
        numbers: NDArray[np.float64] = outputs * self.target_scale_ + self.target_mean_
        return numbers[:, 0] if self._one_dimensional else numbers
