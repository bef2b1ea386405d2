"""Predictors: a deep belief network with a head for classes or for numbers.

A predictor pretrains on all rows, then fine-tunes on the rows with a target; or it learns on all
rows from a committee (:mod:`syncpretrain.sklearn.committee`), where that is known to be better.
Classes are trained as their places among the sorted labels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.extmath import softmax
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from syncpretrain import Stack
from syncpretrain.data.dataset import UNLABELLED
from syncpretrain.data.examples import has_missing
from syncpretrain.data.facts import facts_of
from syncpretrain.data.labels import MOST_ROUNDING, Classes, doubts_about
from syncpretrain.data.scaling import Scaling
from syncpretrain.data.table import is_null
from syncpretrain.errors import DataError, PoorResultWarning, SettingsError
from syncpretrain.events import tell
from syncpretrain.models.stack import Head
from syncpretrain.parallel.blas import at_once, usable_cores
from syncpretrain.sklearn import committee
from syncpretrain.sklearn import fit_choices as choices
from syncpretrain.sklearn.base import StackEstimator, core_limit, keep, training_rows
from syncpretrain.sklearn.fit_choices import Targets
from syncpretrain.sklearn.passes import Matrix, outputs_of

ClassifierT = TypeVar("ClassifierT", bound="DBNClassifier")
RegressorT = TypeVar("RegressorT", bound="DBNRegressor")
Doubles = NDArray[np.float64]
MANY_UNITS, FEW_UNITS = 256, 64
FEW_CLASSES = 20
FEW_TARGETS_UNITS = 128  # of each of two rectified layers with few targets


class StackPredictor(StackEstimator):
    """Base of the predictors: pretraining on all rows, fine-tuning on the rows with a target."""

    pretrained: Any
    finetune_epochs: int | None
    n_unlabelled_: int
    teachers_: dict[str, float]

    def _start(self, X: Matrix, targets: int, seed: int, **suited: Any) -> Stack:
        """Return the stack to fine-tune: the one given, or one pretrained on all rows."""
        given = self.pretrained
        if given is None:
            return self._pretrained_for(X, targets, seed, **suited)
        if not isinstance(given, (Stack, StackEstimator)) and not hasattr(given, "stack_"):
            raise SettingsError(
                f"pretrained: got a {type(given).__name__}, expected a Stack, a StackedRBM, a"
                " StackedAutoencoder or a fitted predictor"
            )
        if isinstance(given, StackPredictor) and not hasattr(given, "stack_"):
            raise SettingsError(
                f"pretrained: got a {type(given).__name__} that is not fitted, expected a fitted"
                " one, or a transformer, which is fitted on X"
            )
        if not isinstance(given, Stack):
            given = given if hasattr(given, "stack_") else clone(given).fit(X)
        stack: Stack = given if isinstance(given, Stack) else given.stack_
        if stack.widths[0] != X.shape[1]:
            raise DataError(
                f"pretrained: got a stack for {stack.widths[0]} columns, expected one for the"
                f" {X.shape[1]} of X"
            )
        return self._named(stack)

    def _suited(self, X: Matrix, targets: Targets) -> dict[str, Any]:
        """Return settings of pretraining: many targets of measurements take rectified units.

        Return none if the user gave settings: these may not go together with the ones chosen here.
        """
        is_free = self._leaves_open("learning_rate", "finetune_epochs")
        if not is_free or len(targets.weighted().rows) < choices.MANY_LABELS:
            return {}
        are_measured = choices.are_measurements(training_rows(X), self.visible_units)
        if not are_measured or self._scaling(X) is not None:
            return {}
        return {"hidden_units": ["relu"] * len(self._widths(X.shape[1]))}

    def _leaves_open(self, *names: str) -> bool:
        """Return whether the user gave neither these parameters nor any settings."""
        return not self.settings and all(getattr(self, name) is None for name in names)

    def _scaling(self, X: Matrix) -> Scaling | None:
        """Return the scaling of columns to [0, 1] for binary units, if there is one."""
        return None

    def _seen(self, X: Matrix) -> tuple[Matrix, Scaling | None]:
        """Return examples scaled to [0, 1] if their columns share a range, and the scaling."""
        scaling = self._scaling(X)
        return (X, None) if scaling is None else (choices.in_shared_range(X, scaling), scaling)

    def _pretrained_for(self, X: Matrix, targets: int, seed: int, **suited: Any) -> Stack:
        """Return a stack pretrained on examples; ``targets`` of them have a target."""
        # The user's settings may not go together with the settings for zeros and ones.
        is_free = self.learning_rate is None and not self._extra_settings(tuning=False)
        is_binary = self.visible_units in ("auto", "bernoulli")
        are_few = choices.are_few(X.shape[0], targets)
        if is_free and is_binary and are_few and choices.are_bits(self._seen(X)[0]):
            suited |= choices.settings_for_bits(len(self._widths(X.shape[1])))
        return self._scaled(X, seed, **suited)

    def _scaled(self, X: Matrix, seed: int, **options: Any) -> Stack:
        """Return a stack pretrained on examples as it sees them."""
        seen, scaling = self._seen(X)
        stack = self._pretrained_on(seen, seed, **options)
        return stack if scaling is None else replace(stack, scaling=scaling)

    def _untrained(
        self, X: Matrix, seed: int, units: Callable[[int], list[str]], width: int
    ) -> Stack:
        """Return a network with random weights; ``units`` are called with the number of layers."""
        hidden = [width] * 2 if self.hidden is None else self._widths(X.shape[1])
        network = {"layers": [X.shape[1], *hidden], "hidden_units": units(len(hidden))}
        untrained = {"epochs": None, "schedule": "none", "observers": (), "blas_threads": 1}
        return self._scaled(X, seed, **network, **untrained)

    def _is_to_ask(self, X: Matrix, targets: int, outputs: int) -> bool:
        """Return whether a committee is asked for the targets of all rows.

        It is asked where that suits the number of targets, unless the user has asked for a training
        of another kind or X, as it is scaled, has counts of words, which RBMs alone read.
        """
        is_free = self._leaves_open("pretrained", "epochs", "learning_rate", "finetune_epochs")
        if not is_free or not choices.are_for_committee(X.shape, targets, outputs):
            return False
        if self.visible_units != "auto":
            return "counts" not in str(self.visible_units)
        return not facts_of(training_rows(X)).are_counts

    def _asked(self, *, are_few: bool) -> committee.Asked:
        """Return what a committee is asked for, where targets are few or more than that."""
        raise NotImplementedError

    def _taught(self, X: Matrix, targets: Targets, seed: int, objective: str) -> Stack:
        """Return a stack that has learned from a committee."""
        count = len(targets.rows)
        are_few = choices.are_few(X.shape[0], count)
        X = X.astype(np.float64)  # scikit-learn's models compute in the type of their rows
        if are_few:
            X, targets = committee.rows_to_learn(X, targets, seed)
        rows = X if are_few else committee.with_mixed_rows(X, seed)
        kind = self._asked(are_few=are_few)
        units = FEW_TARGETS_UNITS if are_few else MANY_UNITS
        network = self._untrained(X, seed, kind.units, units)
        # All take one thread: fits in threads at once may not set limits of BLAS that differ.
        finetuned = partial(self._finetuned, seed=seed, objective=objective, blas_threads=1)
        settings = partial(committee.network_settings, kind, batch_size=self.batch_size)
        member = partial(committee.stack_member, kind, finetuned=finetuned)
        alone = partial(settings, guess=False)
        members = {"network": member(network, settings=alone)}
        if objective == "classification" and are_few:
            members["guesses"] = member(network, settings=settings)
        elif objective == "classification":
            bounded = self._untrained(X, seed, committee.bounded_units, units)
            members["exact"] = member(
                bounded, settings=lambda *about: alone(*about) | committee.EXACT
            )
        seen, _ = self._seen(X)
        # RBMs learn what zeros and ones have in common, and little of a few measurements.
        if choices.are_bits(np.nan_to_num(seen) if has_missing(seen) else seen):
            members["rbms"] = member(self._pretrained_for(X, count, seed, blas_threads=1))
        cores = core_limit(self.workers) or usable_cores()
        members |= committee.models(kind, X, seed, cores)
        about, threads = partial(tell, self._observers()), partial(at_once, cores)
        with warnings.catch_warnings():
            # A regression that has not converged is good enough, and so are fewer landmarks.
            warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
            answers, self.teachers_ = committee.asked(
                kind, members, rows, targets, seed, threads, about
            )
        weights = ", ".join(f"{name} {weight:.2f}" for name, weight in self.teachers_.items())
        about(f"the network learns from the committee: {weights}")
        learner = partial(finetuned, network)
        steps = None if are_few else committee.steps_for(kind, count)
        return committee.learned(kind, learner, rows, answers, self.batch_size, steps=steps)

    def _train(self, X: Matrix, targets: Targets, objective: str) -> None:
        """Train on examples and the targets of some of them."""
        self._check_tuning(objective, self.finetune_epochs)
        seed, self.n_unlabelled_ = self._seed(), X.shape[0] - len(targets.rows)
        outputs, self.teachers_ = self._asked(are_few=True).width, {}
        asks = self._is_to_ask(self._seen(X)[0], len(targets.rows), outputs)
        train = self._taught if asks else self._trained
        self.stack_ = train(X, targets, seed, objective)
        self._warn()

    def _trained(self, X: Matrix, targets: Targets, seed: int, objective: str) -> Stack:
        """Return a stack, pretrained and fine-tuned."""
        (rows, y, weights), suited = targets, {}
        if self.pretrained is None:
            suited = self._suited(X, targets)
        stack = self._to_train(self._start(X, len(rows), seed, **suited))
        options = {"objective": objective} | self._chosen(stack, targets)
        epochs = options.pop("epochs", self.finetune_epochs)
        if self.batch_size is not None:
            options.setdefault("batch_size", min(self.batch_size, len(rows)))
        if len(rows) < X.shape[0]:  # settings for few targets depend on the number of all rows
            y, weights = targets.spread_out(X.shape[0])
        options |= {"weights": weights, "warn": False}
        return self._finetuned(stack, X, y, seed, epochs, **options)

    def _to_train(self, stack: Stack) -> Stack:
        """Return a stack with its head, if any, converted to the targets of the training."""
        raise NotImplementedError

    def _chosen(self, stack: Stack, targets: Targets) -> dict[str, Any]:
        """Return settings of fine-tuning; one row cannot be normalized."""
        is_free = self.pretrained is None and not self.settings and self.batch_size != 1
        targets = targets.weighted()
        are_many = is_free and len(targets.rows) >= choices.MANY_LABELS
        is_rectified = set(stack.units[1:]) == {"relu"}  # not so where the user has given settings
        return self._of_many(len(targets.rows)) if are_many and is_rectified else {}

    def _of_many(self, targets: int) -> dict[str, Any]:
        """Return settings of fine-tuning rectified units on many targets."""
        raise NotImplementedError


class DBNClassifier(ClassifierMixin, StackPredictor):
    """Classifier: a stack of RBMs, pretrained on all rows and fine-tuned on the labelled rows.

    With few labels, or fewer than 10,000 of a small table, it is a network that learns, on all rows
    or on rows mixed from them, from a committee: itself on the labels alone; with few labels, with
    guessed classes (Lee 2013), with more, without noise; RBMs where all values are 0 or 1; and four
    classifiers of scikit-learn, each with the weight that makes labels left out most likely.

    From 10,000 labels of measurements on, all hidden units are rectified, with batch normalization.

    Parameters
    ----------
    hidden : sequence of int, optional
        Units of each layer. None takes (256, 64), and (256, 256) for more than 20 classes or from a
        committee, and with few labels (128, 128).
    epochs, batch_size, learning_rate, visible_units, workers, random_state, verbose
        As for :class:`StackedRBM`; ``epochs=0`` leaves out pretraining.
    finetune_epochs : int, optional
        Passes over the labelled rows; None takes a number that suits their number.
    pretrained : Stack, StackedRBM, StackedAutoencoder or fitted predictor, optional
        Stack to begin with; a transformer that is not fitted is fitted on X. In a search give the
        ``stack_``, since copies of a transformer are not fitted. A head with all classes of y is
        trained further.
    class_weight : dict or "balanced", optional
        Weight of the rows of each class; ``balanced`` gives all classes the same total weight.
    settings : dict, optional
        Any other setting of :func:`syncpretrain.pretrain`, and with the prefix ``finetune_`` any
        other setting of :func:`syncpretrain.finetune`, such as ``{"finetune_dropout": 0.3}``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    n_unlabelled_ : int
        Number of rows without a label.
    teachers_ : dict of str to float
        The weight of each member of the committee, empty where none was asked.
    stack_ : Stack
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if X has any.
    """

    class_weight: Any

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
        keep(self, locals())

    def fit(self: ClassifierT, X: Any, y: Any, sample_weight: Any = None) -> ClassifierT:
        """Pretrain on all rows, then fine-tune on the rows with a label.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_examples, n_features)
        y : array-like of shape (n_examples,)
            Labels: numbers, text or booleans. None, NaN and -1 stand for no label, but -1 is a
            class if there is only one other number.
        sample_weight : array-like of shape (n_examples,), optional
            Weight of each labelled row's loss in fine-tuning; in pretraining all rows have equal
            weight.
        """
        rows = self._rows(X, reset=True)
        self.classes_, targets = classes_of(y, rows)
        weights = weights_of(sample_weight, rows, targets.rows)
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, self.classes_[targets.y])
            weights = relative(by_class, "class_weight") * (1 if weights is None else weights)
            weights = relative(weights, "sample_weight")
        self._train(rows, targets._replace(weights=weights), "classification")
        self.stack_ = for_labels(self.stack_, self.classes_)
        return self

    def _of_many(self, targets: int) -> dict[str, Any]:
        return choices.OF_MANY_LABELS

    def _widths(self, columns: int) -> list[int]:
        """Return the units of each layer: codes of few units do not separate many classes."""
        if self.hidden is not None:
            return super()._widths(columns)
        return [MANY_UNITS, FEW_UNITS if len(self.classes_) <= FEW_CLASSES else MANY_UNITS]

    def _to_train(self, stack: Stack) -> Stack:
        return for_places(stack, self.classes_)

    def _asked(self, *, are_few: bool) -> committee.Asked:
        return committee.ForClasses(len(self.classes_))

    def _scaling(self, X: Matrix) -> Scaling | None:
        return choices.shared_range(X) if self.visible_units == "auto" else None

    def predict_proba(self, X: Any) -> Matrix:
        """Return the probability of each class, of shape (n_examples, n_classes)."""
        probabilities: Matrix = softmax(self._outputs(X))
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row."""
        outputs = self._outputs(X)  # refused before fit, which sets the classes
        predicted: NDArray[Any] = self.classes_[outputs.argmax(axis=1)]
        return predicted

    def _outputs(self, X: Any) -> Matrix:
        check_is_fitted(self)
        return outputs_of(self.stack_, self._rows(X, reset=False))


class DBNRegressor(RegressorMixin, StackPredictor):
    """Regressor: a stack of RBMs, pretrained on all rows and fine-tuned on rows with numbers.

    With few numbers, or fewer than 10,000 of a small table, it is a network that learns, on all
    rows or on rows mixed from them, from a committee: itself on the numbers alone, RBMs where all
    values are 0 or 1, and three or four regressors of scikit-learn, each with the weight that
    predicts numbers left out best.

    Targets are standardized for training, and predictions are in the units of the targets.

    Parameters
    ----------
    hidden : sequence of int, optional
        Units of each layer. None takes (256, 64), from a committee (256, 256), and with few numbers
        (128, 128).
    epochs, finetune_epochs, batch_size, learning_rate, visible_units, pretrained
        As for :class:`DBNClassifier`.
    workers, random_state, verbose, settings
        As for :class:`DBNClassifier`.

    Attributes
    ----------
    teachers_ : dict of str to float
        The weight of each member of the committee, empty where none was asked.
    stack_ : Stack
    target_mean_, target_scale_ : ndarray of shape (outputs,)
    n_unlabelled_ : int
        Number of rows without numbers.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if X has any.
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
        workers: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        keep(self, locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self: RegressorT, X: Any, y: Any, sample_weight: Any = None) -> RegressorT:
        """Pretrain on all rows, then fine-tune on the rows with numbers.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_examples, n_features)
        y : array-like of shape (n_examples,) or (n_examples, outputs)
            Rows with a NaN have no target.
        sample_weight : array-like of shape (n_examples,), optional
            As for :class:`DBNClassifier`.
        """
        rows = self._rows(X, reset=True)
        targets, dimensions = numbers_of_rows(y, rows)
        weights = weights_of(sample_weight, rows, targets.rows)
        self.target_mean_, self.target_scale_ = mean_and_spread(targets.y, weights)
        self._one_dimensional = dimensions == 1
        scaled = (targets.y - self.target_mean_) / self.target_scale_
        self._warn_of_rounding()
        self._train(rows, Targets(targets.rows, scaled, weights), "regression")
        self._head = self.stack_.head
        self.stack_ = for_numbers(self.stack_, self.target_mean_, self.target_scale_)
        return self

    def _warn_of_rounding(self) -> None:
        """Warn, at the line that called fit, of numbers that a head in float32 cannot predict."""
        exact = self.target_mean_ + np.outer([-1, 1], self.target_scale_)
        with np.errstate(over="ignore"):
            lost = np.abs(exact.astype(np.float32) - exact).max(axis=0)
        if not (lost <= MOST_ROUNDING * self.target_scale_).all():
            text = (
                f"y: got numbers of mean {self.target_mean_} and deviation {self.target_scale_}; in"
                " float32 stack_, its files and exports cannot tell them apart: subtract the mean"
            )
            warnings.warn(text, PoorResultWarning, stacklevel=3)

    def _asked(self, *, are_few: bool) -> committee.Asked:
        return committee.ForNumbers(len(self.target_mean_), are_few=are_few)

    def _of_many(self, targets: int) -> dict[str, Any]:
        return choices.of_many_numbers(targets)

    def _widths(self, columns: int) -> list[int]:
        return [MANY_UNITS, FEW_UNITS] if self.hidden is None else super()._widths(columns)

    def _to_train(self, stack: Stack) -> Stack:
        return for_standardized(stack, self.target_mean_, self.target_scale_)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the numbers of each row, of the shape of y."""
        check_is_fitted(self)
        # Outputs get the precision of the rows.
        outputs = outputs_of(replace(self.stack_, head=self._head), self._rows(X, reset=False))
        numbers: Doubles = outputs * self.target_scale_ + self.target_mean_
        return numbers[:, 0] if self._one_dimensional else numbers


# Heads are trained on places of classes and on standardized numbers. The head of ``stack_`` is for
# the labels and the numbers of y: a saved stack predicts what its estimator does.


def for_places(stack: Stack, labels: NDArray[np.generic]) -> Stack:
    """Return a stack with its head for the places of labels, or without it if a label is new."""
    head, names = stack.head, _names(labels)
    if head is None:
        return stack
    if head.kind != "classification" or not set(names) <= set(head.classes):
        return replace(stack, head=None)
    places = [head.classes.index(name) for name in names]
    weight, bias = np.ascontiguousarray(head.weight[:, places]), head.bias[places]
    return replace(stack, head=Head(weight, bias, head.kind, tuple(range(len(names)))))


def for_labels(stack: Stack, labels: NDArray[np.generic]) -> Stack:
    """Return a stack with its head converted from the places of labels to the labels."""
    assert stack.head is not None
    return replace(stack, head=replace(stack.head, classes=_names(labels)))


def for_standardized(stack: Stack, mean: Matrix, scale: Matrix) -> Stack:
    """Return a stack with its head for standardized numbers, or without it if it does not fit."""
    head = stack.head
    if head is None:
        return stack
    if head.kind != "regression" or head.bias.shape != mean.shape:
        return replace(stack, head=None)
    return replace(stack, head=_affine(head, head.weight / scale, (head.bias - mean) / scale))


def for_numbers(stack: Stack, mean: Matrix, scale: Matrix) -> Stack:
    """Return a stack with its head converted from standardized numbers to the original ones."""
    head = stack.head
    assert head is not None
    return replace(stack, head=_affine(head, head.weight * scale, head.bias * scale + mean))


def _affine(head: Head, weight: Matrix, bias: Matrix) -> Head:
    with np.errstate(over="ignore"):  # numbers that float32 cannot hold
        return replace(head, weight=weight.astype(np.float32), bias=bias.astype(np.float32))


def _names(labels: NDArray[np.generic]) -> Classes:
    """Return labels as a head has them: texts or whole numbers; truth values become numbers."""
    names: tuple[Any, ...] = tuple(x if isinstance(x, str) else int(x) for x in labels.tolist())
    return names


LEAST_SQUARE = 1e-305  # smaller squares lose digits


def classes_of(y: Any, X: NDArray[Any]) -> tuple[NDArray[Any], Targets]:
    """Return the sorted labels, and as targets their places: -1, None and NaN stand for no label.

    If there is only one other number, -1 is a class, as in y of -1 and 1.

    Warns
    -----
    PoorResultWarning
        If labels may have another meaning.

    Raises
    ------
    DataError
        If there is no y, or only one class.
    ValueError
        If y has another length or holds no classes.
    """
    _check_given(y, "labels")
    values = _one_column(y)
    check_consistent_length(X, values)
    missing, ones = np.array([is_null(cell) for cell in values.tolist()], dtype=bool), 0
    if values.dtype.kind in "ifO":
        unlabelled = np.zeros(len(values), dtype=bool)
        unlabelled[~missing] = values[~missing] == UNLABELLED  # NA of pandas cannot be compared
        others = set(values[~missing & ~unlabelled].tolist())
        if len(others) > 1 or any(isinstance(label, str) for label in others):
            missing |= unlabelled
            ones = int(unlabelled.sum())
    rows = np.flatnonzero(~missing)
    known = values[rows]
    if known.dtype == object:
        known = _of_one_type(known)
    if not len(known):
        raise DataError("y: got no label, expected one for some rows")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # many classes: doubts_about warns of them
        check_classification_targets(known)
    labels, places = np.unique(known, return_inverse=True)
    if len(labels) < 2:
        only = labels.tolist()[0]
        label = "two classes, with -1 for no label" if only == UNLABELLED else "another class"
        raise DataError(f"y: got 1 class, {only!r}, expected two or more; label rows of {label}")
    for doubt in doubts_about(known, ones, "y"):
        warnings.warn(doubt, PoorResultWarning, stacklevel=3)
    return labels, Targets(rows, places)


def numbers_of_rows(y: Any, X: NDArray[Any]) -> tuple[Targets, int]:
    """Return the numbers to predict, of shape (n_targets, outputs), and the dimensions of y.

    y has shape (n_examples,) or (n_examples, outputs). Rows with a NaN have no target.

    Raises
    ------
    DataError
        If there is no y, or no row has a number.
    ValueError
        If y has another length or shape, or is infinite.
    """
    _check_given(y, "numbers")
    if np.asarray(y).dtype.kind in "mM":  # which would become nanoseconds
        raise DataError(f"y: got values of type {np.asarray(y).dtype}, expected numbers")
    values = check_array(
        y, ensure_2d=False, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y"
    )
    check_consistent_length(X, values)
    dimensions, values = values.ndim, values.reshape(len(values), -1)
    rows = np.flatnonzero(~np.isnan(values).any(axis=1))
    if not len(rows):
        raise DataError("y: got NaN in every row, expected a number for some")
    return Targets(rows, values[rows]), dimensions


def weights_of(sample_weight: Any, X: NDArray[Any], rows: NDArray[np.intp]) -> Doubles | None:
    """Return the weights of some rows, at most 1, or None without weights.

    Raises
    ------
    ValueError
        If there is not one number of at least 0 for each row, or all are 0.
    """
    if sample_weight is None:
        return None
    weights: Doubles = _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
    return relative(weights[rows], "sample_weight")


def relative(weights: Doubles, name: str) -> Doubles:
    """Return weights divided by a power of two, so that the largest is at most 1.

    Sums and products of the weights stay finite, and ratios stay the same to the last bit.

    Raises
    ------
    DataError
        If a weight is negative or not finite, or all are 0.
    """
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise DataError(f"{name}: got one that is negative or not finite, expected 0 or more")
    largest = weights.max()
    if not largest:
        raise DataError(
            f"{name}: got 0 for every row with a target, expected some above 0; leave it out to"
            " count all rows alike"
        )
    scaled: Doubles = np.ldexp(weights, -np.frexp(largest)[1])
    return scaled


def mean_and_spread(values: Doubles, weights: Doubles | None) -> tuple[Doubles, Doubles]:
    """Return the mean and the standard deviation of each column; 1 in place of a deviation of 0.

    Raises
    ------
    DataError
        If squares of the numbers are infinite, or too small though the numbers differ.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.average(values, axis=0, weights=weights)
        squares = np.square(values - mean)
        spread = np.sqrt(np.average(squares, axis=0, weights=weights))
    if not np.isfinite(spread).all():
        raise DataError(
            f"y: got numbers up to {np.abs(values).max():g}, expected ones whose squares are"
            " finite; divide by a larger unit"
        )
    counted = slice(None) if weights is None else weights > 0
    low, high = values[counted].min(axis=0), values[counted].max(axis=0)
    lost = (low < high) & (squares[counted].max(axis=0) < LEAST_SQUARE)
    if lost.any():
        raise DataError(
            f"y: got numbers that differ by {(high - low)[lost].max():g} at most, expected ones"
            f" with differences above {np.sqrt(LEAST_SQUARE):.0e}; divide by a smaller unit"
        )
    return mean, np.where(spread > 0, spread, 1.0)


def _check_given(y: Any, expected: str) -> None:
    if y is None:
        raise DataError(
            f"y: got None, expected {expected}; this estimator requires y to be passed, but the"
            " target y is None"
        )


def _one_column(y: Any) -> NDArray[Any]:
    """Return labels as an array of one dimension; labels of a table's column keep their type."""
    if str(getattr(y, "dtype", "")) == "boolean":  # pandas' type would become 1.0, 0.0 and NaN
        y = np.asarray(y, dtype=object)
    has_others = isinstance(y, (list, tuple)) and not all(isinstance(label, str) for label in y)
    if has_others and np.asarray(y).dtype.kind == "U":  # NumPy would make texts of numbers, too
        y = np.asarray(y, dtype=object)
    values = np.asarray(column_or_1d(y, warn=True))
    if values.dtype.kind not in "biufUSO":  # dates, complex numbers
        raise DataError(f"y: got values of type {values.dtype}, expected labels")
    if values.dtype.kind == "f" and np.isinf(values).any():
        raise DataError("y: holds infinite values, expected labels")
    return values


def _of_one_type(values: NDArray[Any]) -> NDArray[Any]:
    """Return labels of one type of Python as an array of this type.

    Raises
    ------
    DataError
        If there are several types, such as texts and numbers.
    """
    cells = values.tolist()
    kinds = sorted({"str" if isinstance(x, str) else type(x).__name__ for x in cells})
    if "str" in kinds and len(kinds) > 1:
        raise DataError(
            f"y: got labels of types {', '.join(kinds)}, expected one type; write all as"
            " numbers, or all as text"
        )
    return values if "str" in kinds else np.array(cells)
