"""Predictors: a deep belief network with a head for classes or for numbers.

A predictor pretrains on all rows, then fine-tunes on the rows with a target.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.extmath import softmax

from syncpretrain import Stack
from syncpretrain.data.facts import facts_of
from syncpretrain.data.labels import Classes
from syncpretrain.data.scaling import Scaling
from syncpretrain.data.visible import has_missing
from syncpretrain.errors import PoorResultWarning, SettingsError
from syncpretrain.events import Notice
from syncpretrain.models.stack import Head
from syncpretrain.settings.by_data import UNLABELLED_STEPS
from syncpretrain.sklearn.base import StackEstimator, training_rows
from syncpretrain.sklearn.fit_choices import (
    Start,
    Targets,
    Way,
    are_bits,
    are_curved,
    are_few,
    are_measurements,
    chooses_decay,
    chosen_decay,
    codes_are_better,
    enough_to_try,
    few_labels_settings,
    in_shared_range,
    likeliest,
    rectified_settings,
    settings_for_bits,
    shared_range,
    with_head,
)
from syncpretrain.sklearn.passes import Matrix, outputs_of
from syncpretrain.sklearn.targets import (
    classes_of,
    mean_and_spread,
    numbers_of_rows,
    relative,
    weights_of,
)

ClassifierT = TypeVar("ClassifierT", bound="DBNClassifier")
RegressorT = TypeVar("RegressorT", bound="DBNRegressor")
MANY_UNITS, FEW_UNITS = 256, 64
FEW_CLASSES = 20
GUESSING_UNITS = 128  # of two rectified layers with few labels, from random weights


class StackPredictor(StackEstimator):
    """Base of the predictors: pretraining on all rows, fine-tuning on the rows with a target."""

    pretrained: Any
    n_unlabelled_: int

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
        self._check_width(stack, X, "pretrained")
        return stack

    def _pretrained_for(self, X: Matrix, targets: int, seed: int, **suited: Any) -> Stack:
        """Return a stack pretrained on examples; ``targets`` of them have a target."""
        return self._pretrained_on(X, seed, **suited)

    def _for_curves(self, X: Matrix, targets: Targets, seed: int, objective: str) -> dict[str, Any]:
        """Return settings of pretraining for targets that no linear model predicts.

        Return none for other targets, and none if the user gave settings: these may not go together
        with the settings chosen here.
        """
        targets = targets.weighted()
        is_free = self.learning_rate is None and not (self.settings or self._given_tuning())
        if not is_free or not chooses_decay(X.shape[0], len(targets.rows), {}):
            return {}
        if (
            not are_measurements(training_rows(X), self.visible_units)
            or self._scaling(X) is not None
        ):
            return {}
        layers = len(self._widths(X.shape[1]))
        suited = rectified_settings(layers, X.shape[0], self.batch_size)
        untrained = {"epochs": None, "schedule": "none", "observers": ()}
        stack = self._pretrained_on(X, seed, **suited, **untrained)
        finetuned = partial(self._finetuned, stack, seed=seed, objective=objective)
        are_classes = objective == "classification"
        found = are_curved(finetuned, X, targets, seed, are_classes=are_classes)
        return suited if found else {}

    def _scaling(self, X: Matrix) -> Scaling | None:
        """Return the scaling of columns to [0, 1] for binary units, if there is one."""
        return None

    def _train(
        self, X: Matrix, targets: Targets, objective: str, to_train: Callable[[Stack], Stack]
    ) -> None:
        """Train on examples and the targets of some of them.

        ``to_train`` converts the head of a stack, if any, to the targets.
        """
        self._check_tuning(objective, self.finetune_epochs)
        rows, y, weights = targets
        seed, self.n_unlabelled_ = self._seed(), X.shape[0] - len(rows)
        suited = {}
        if self.pretrained is None:
            suited = self._for_curves(X, targets, seed, objective)
        stack = to_train(self._start(X, len(rows), seed, **suited))
        stack, options = self._chosen(stack, X, targets, seed)
        options["objective"] = objective
        if self.batch_size is not None:
            options.setdefault("batch_size", min(self.batch_size, len(rows)))
        if len(rows) < X.shape[0]:  # settings for few targets depend on the number of all rows
            y, weights = targets.spread_out(X.shape[0])
        options |= {"weights": weights, "warn": False}
        epochs = options.pop("epochs", self.finetune_epochs)
        self.stack_ = self._finetuned(stack, X, y, seed, epochs, **options)
        for sentence in self.stack_.info.get("verdict", ()):
            warnings.warn(sentence, PoorResultWarning, stacklevel=3)

    def _chosen(self, stack: Stack, X: Matrix, targets: Targets, seed: int) -> Start:
        """Return the stack to fine-tune, and settings of fine-tuning; data as for ``_train``."""
        return stack, {}

    def _given_tuning(self) -> dict[str, Any]:
        """Return the settings of fine-tuning that the user gave."""
        epochs = {} if self.finetune_epochs is None else {"epochs": self.finetune_epochs}
        return self._extra_settings(tuning=True) | epochs


@dataclass(eq=False, repr=False)
class DBNClassifier(ClassifierMixin, StackPredictor):
    """Classifier: a stack of RBMs, pretrained on all rows and fine-tuned on the labelled rows.

    With few labels it is a rectified network, trained on the rows without a label too: for the
    class that it takes them for (Lee 2013), unless labels that are left out become less likely so.
    Then RBMs are taken for zeros and ones, and for other columns the network learns labels alone.

    Parameters
    ----------
    hidden : sequence of int, optional
        Units of each layer. None takes (256, 64), and (256, 256) for more than 20 classes, and with
        few labels (128, 128).
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
    pseudo_labels_ : bool
        True if these rows were trained for the classes that the network took them for.
    stack_ : Stack
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if X has any.
    """

    hidden: Sequence[int] | None = None
    _: KW_ONLY
    finetune_epochs: int | None = None
    pretrained: Any = None
    class_weight: Any = None

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
        classes = classes_of(y, rows)
        self.classes_ = classes.labels
        seen, _ = self._seen(rows)
        self._tries_guesses = self._is_to_try(seen, len(classes.rows))
        # RBMs learn what zeros and ones have in common, and little of a few measurements.
        known = np.nan_to_num(seen) if has_missing(seen) else seen
        self._starts_random = self._tries_guesses and not are_bits(known)
        weights = weights_of(sample_weight, rows, classes.rows)
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, classes.labels[classes.places])
            weights = relative(by_class, "class_weight") * (1 if weights is None else weights)
            weights = relative(weights, "sample_weight")
        targets = Targets(classes.rows, classes.places, weights)
        to_train = partial(for_places, labels=classes.labels)
        self._train(rows, targets, "classification", to_train)
        self.stack_ = for_labels(self.stack_, classes.labels)
        self.pseudo_labels_ = self.stack_.info["finetune"][-1]["unlabelled"] != "none"
        return self

    def _is_to_try(self, X: Matrix, labels: int) -> bool:
        """Return whether to try a training on rows without a label, for classes that are guessed.

        It is tried where labels are few, unless the user has asked for a training of another kind
        or X, as it is scaled, has counts of words, which RBMs alone read.
        """
        asked = (self.pretrained, self.epochs, self.learning_rate, self.finetune_epochs)
        is_free = not self.settings and all(value is None for value in asked)
        if not is_free or not are_few(X.shape[0], labels) or "counts" in self.visible_units:
            return False
        return self.visible_units != "auto" or not facts_of(training_rows(X)).are_counts

    def _widths(self, columns: int) -> list[int]:
        """Return the units of each layer: codes of few units do not separate many classes."""
        if self.hidden is not None:
            return super()._widths(columns)
        few = len(self.classes_) <= FEW_CLASSES
        return [MANY_UNITS, FEW_UNITS if few else MANY_UNITS]

    def _scaling(self, X: Matrix) -> Scaling | None:
        return shared_range(X) if self.visible_units == "auto" else None

    def _seen(self, X: Matrix) -> tuple[Matrix, Scaling | None]:
        """Return examples scaled to [0, 1] if their columns share a range, and the scaling."""
        scaling = self._scaling(X)
        return (X, None) if scaling is None else (in_shared_range(X, scaling), scaling)

    def _pretrained_for(self, X: Matrix, targets: int, seed: int, **suited: Any) -> Stack:
        if self._starts_random:
            return self._rectified(X, seed)
        # The user's settings may not go together with the settings for zeros and ones.
        is_free = self.learning_rate is None and not self._extra_settings(tuning=False)
        is_binary = self.visible_units in ("auto", "bernoulli")
        if is_free and is_binary and are_few(X.shape[0], targets) and are_bits(self._seen(X)[0]):
            suited |= settings_for_bits(len(self._widths(X.shape[1])))
        return self._scaled(X, seed, **suited)

    def _rectified(self, X: Matrix, seed: int) -> Stack:
        """Return a stack of rectified units with random weights."""
        hidden = [GUESSING_UNITS] * 2 if self.hidden is None else self._widths(X.shape[1])
        network = {"layers": [X.shape[1], *hidden], "hidden_units": ["relu"] * len(hidden)}
        return self._scaled(X, seed, **network, epochs=None, schedule="none", observers=())

    def _scaled(self, X: Matrix, seed: int, **options: Any) -> Stack:
        """Return a stack pretrained on examples as it sees them."""
        seen, scaling = self._seen(X)
        stack = self._pretrained_on(seen, seed, **options)
        return stack if scaling is None else replace(stack, scaling=scaling)

    def _chosen(self, stack: Stack, X: Matrix, targets: Targets, seed: int) -> Start:
        if self._tries_guesses:
            return self._tried(stack, X, targets, seed)
        is_trained = self.pretrained is not None or self._trains(self.epochs)
        if self._given_tuning() or not is_trained or not are_few(X.shape[0], len(targets.rows)):
            return stack, {}
        counted = targets.weighted()
        if self._takes_head(stack, X, counted, seed):
            return with_head(stack, X, counted)
        return stack, {}

    def _takes_head(self, stack: Stack, X: Matrix, counted: Targets, seed: int) -> bool:
        """Return whether a head for the codes comes first; it needs a label of each class."""
        has_all = len(np.unique(counted.y)) == len(self.classes_)
        return has_all and codes_are_better(stack, X, counted, seed)

    def _tried(self, stack: Stack, X: Matrix, targets: Targets, seed: int) -> Start:
        """Return the stack to fine-tune, and settings, after a trial on labels left out."""
        plain = stack if self._starts_random else self._rectified(X, seed)
        counted, classes = targets.weighted(), len(self.classes_)
        # Decided once: in each part of the trial it would take as long as the training.
        headed = not self._starts_random and self._takes_head(stack, X, counted, seed)

        def network(X: Matrix, some: Targets, steps: int, *, guess: bool) -> Start:
            labels = len(some.rows)
            return plain, few_labels_settings(X.shape, labels, self.batch_size, steps, guess=guess)

        def codes(X: Matrix, some: Targets, steps: int) -> Start:
            return with_head(stack, X, some.weighted()) if headed else (stack, {})

        guesses = partial(network, guess=True)
        # As for the head, codes of zeros and ones stay unless the other way is clearly better.
        ways: dict[str, Way] = {"codes": codes, "guesses": guesses}
        if self._starts_random:
            ways = {"guesses": guesses, "labels": partial(network, guess=False)}
        margin = 0.0 if self._starts_random else 1.0
        finetuned = partial(self._finetuned, seed=seed, objective="classification")
        way = likeliest(ways, finetuned, X, counted, seed, classes=classes, margin=margin)
        if way != "guesses":
            why = "a class has fewer than three labels, too few for a trial"
            if enough_to_try(counted.y, classes):
                why = "labels that were left out were not more likely with guesses, in a trial"
            text = f"classes of rows without a label are not guessed: {why}"
            for observer in self._observers():
                observer(Notice(time.monotonic(), text))
        return ways[way](X, targets, UNLABELLED_STEPS)

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
        rows = self._rows(X, reset=False)
        return outputs_of(self.stack_, rows)


@dataclass(eq=False, repr=False)
class DBNRegressor(RegressorMixin, StackPredictor):
    """Regressor: a stack of RBMs, pretrained on all rows and fine-tuned on rows with numbers.

    Targets are standardized for training, and predictions are in the units of the targets.

    Parameters
    ----------
    hidden : sequence of int
        Units of each layer.
    epochs, finetune_epochs, batch_size, learning_rate, visible_units, pretrained
        As for :class:`DBNClassifier`.
    workers, random_state, verbose, settings
        As for :class:`DBNClassifier`.

    Attributes
    ----------
    stack_ : Stack
    target_mean_, target_scale_ : ndarray of shape (outputs,)
    n_unlabelled_ : int
        Number of rows without numbers.
    weight_decay_ : float, optional
        Weight decay, if it was chosen by cross-validation: with 50 to 10,000 rows with numbers, at
        least a fifth of all rows, and neither ``finetune_epochs`` nor a setting that decides it.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if X has any.
    """

    hidden: Sequence[int] = (256, 64)
    _: KW_ONLY
    finetune_epochs: int | None = None
    pretrained: Any = None

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
        targets = numbers_of_rows(y, rows)
        weights = weights_of(sample_weight, rows, targets.rows)
        mean, scale = mean_and_spread(targets.values, weights)
        self.target_mean_, self.target_scale_ = mean, scale
        self._one_dimensional = targets.dimensions == 1
        scaled = Targets(targets.rows, (targets.values - mean) / scale, weights)
        to_train = partial(for_standardized, mean=mean, scale=scale)
        self._train(rows, scaled, "regression", to_train)
        self._head = self.stack_.head
        self.stack_ = for_numbers(self.stack_, mean, scale)
        return self

    def _chosen(self, stack: Stack, X: Matrix, targets: Targets, seed: int) -> Start:
        targets = targets.weighted()
        if not chooses_decay(X.shape[0], len(targets.rows), self._given_tuning()):
            self.weight_decay_ = None
            return stack, {}
        finetuned = partial(self._finetuned, stack, seed=seed, objective="regression")
        self.weight_decay_ = chosen_decay(finetuned, X, targets, seed)
        return stack, {"weight_decay": self.weight_decay_}

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the numbers of each row, of the shape of y."""
        rows = self._rows(X, reset=False)  # outputs get the precision of these rows
        outputs = outputs_of(replace(self.stack_, head=self._head), rows)
        numbers: NDArray[np.float64] = outputs * self.target_scale_ + self.target_mean_
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
    values: Any = labels.tolist()
    names: tuple[Any, ...] = tuple(x if isinstance(x, str) else int(x) for x in values)
    return names
