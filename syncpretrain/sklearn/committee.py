"""Few labels: a committee learns from the labels, and one network learns from the committee.

With few labels no classifier is the best of all: which one is depends on the table. So several
learn side by side: a network on the labels alone, the same with guessed classes, RBMs if all values
are 0 or 1, and linear logistic regression, logistic regression on a Gaussian kernel, extra trees
and gradient boosting of scikit-learn. Their product, with a weight each, gives the classes'
probabilities

    p(class | x) ~ product over members m of p_m(class | x) ** w_m

(a logarithmic opinion pool, Heskes 1998). The labels are left out in turn, in three parts. The
weights, none below 0, are those that make these labels most likely (stacking, Wolpert 1992), and
are drawn towards equal ones, which is felt with a few dozen labels. An overconfident member gets a
small weight: the weights also calibrate.

The network then learns the probabilities on the rows with and without a label (model compression,
Bucila et al. 2006): one small stack is kept, which is saved, exported and examined like any other.
Where it has not come to the committee's classes, as with many classes on a grid, it learns longer.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.extmath import softmax

from syncpretrain import Stack
from syncpretrain.data.blocks import chunks
from syncpretrain.parallel.blas import blas_limit, openmp_limit
from syncpretrain.settings.by_data import GUESS_BATCH, OF_UNLABELLED, UNLABELLED_STEPS
from syncpretrain.settings.finetuning import labelled_of, steps_with_unlabelled
from syncpretrain.sklearn.fit_choices import MOST_ITERATIONS, Targets, standardizer
from syncpretrain.sklearn.passes import Matrix, outputs_of

Judge = Callable[[Any], Matrix]  # logarithms of the probabilities of classes, (n_rows, classes)
Member = Callable[[Any, Targets, int], Judge]  # learns from examples, classes and in some steps

PARTS = 3  # of the labels, each left out once
TRIAL_STEPS = 500  # of the networks that learn without some labels
MOST_ROWS = TRIAL_STEPS * GUESS_BATCH  # more rows are not seen in so few steps
NARROW = 3  # of two columns one is half of what is known of a row
WIDE, FEWEST = 512, 32  # more columns take smaller minibatches: a step costs no more
LEAST = 1e-4  # of a probability: trees say 0 of classes that they have not met in a leaf
PULL = 0.3  # towards equal weights: as strong as a few labels
LEARNED = 0.95  # of the rows get the committee's class; where fewer do, the network learns longer
LONGER: dict[str, Any] = {"steps": 4 * UNLABELLED_STEPS, "learning_rate": 0.004}
LANDMARKS, KERNEL_PENALTY = 300, 0.1  # of the regression on a kernel


def network_settings(
    shape: tuple[int, ...],
    labels: int,
    steps: int = UNLABELLED_STEPS,
    batch_size: int | None = None,
    *,
    guess: bool = True,
) -> dict[str, Any]:
    """Return settings of fine-tuning on few labels, and on other rows for guessed classes.

    Parameters
    ----------
    shape : (int, int)
        Number of rows, and of columns.
    labels : int
        Number of rows with a label.
    steps : int
        Fewest steps; the last epoch is finished.
    batch_size : int, optional
        Minibatch of rows with and without a label.
    guess : bool
        False for the labels alone, in the minibatches that stand beside rows without a label.
    """
    rows, columns = shape
    batch = _batch(shape, batch_size)
    noise = {"input_noise": 0.1, "input_dropout": 0.0 if columns < NARROW else 0.1}
    if guess:
        own = {"unlabelled": "pseudo", "dropout": 0.2}
        each = steps_with_unlabelled(batch, labels, rows - labels)
    else:
        own = {"unlabelled": "none", "dropout": 0.5}
        each = math.ceil(labels / max(labelled_of(batch, labels), 2))
        batch = max(math.ceil(labels / each), 2)
    return _settings(batch, math.ceil(steps / each)) | noise | own


def student_settings(
    shape: tuple[int, ...], batch: int | None, steps: int = UNLABELLED_STEPS, **changed: float
) -> dict[str, Any]:
    """Return settings of fine-tuning on the committee's probabilities of rows.

    Nothing is left out and no noise added: the committee's classes are to be learned by heart.
    """
    rows = _batch(shape, batch)
    return _settings(rows, math.ceil(steps / math.ceil(shape[0] / rows))) | changed


def learned(finetuned: Callable[..., Stack], X: Any, shares: Matrix, batch: int | None) -> Stack:
    """Return the network that has learned the committee's probabilities of the classes of rows.

    Parameters
    ----------
    finetuned : callable
        Called with examples, probabilities and settings; returns a stack.
    X : array or sparse matrix of shape (n_examples, n_features)
    shares : ndarray of shape (n_examples, classes)
    batch : int, optional
        Rows of a minibatch.
    """
    student = finetuned(X, shares, **student_settings(X.shape, batch), warn=False)
    if (outputs_of(student, X).argmax(axis=1) == shares.argmax(axis=1)).mean() >= LEARNED:
        return student
    return finetuned(X, shares, **student_settings(X.shape, batch, **LONGER), warn=False)


def _batch(shape: tuple[int, ...], asked: int | None) -> int:
    rows, columns = shape
    usual = max(GUESS_BATCH * WIDE // max(columns, WIDE), FEWEST)
    return max(min(asked or usual, rows), 2)  # normalization takes two rows at least


def _settings(batch: int, epochs: int) -> dict[str, Any]:
    # So small a network is no faster by more threads, which would give other bits.
    own = {"normalization": "batch", "blas_threads": 1, "batch_size": batch, "epochs": epochs}
    return OF_UNLABELLED | own


def rows_to_learn(X: Any, targets: Targets, seed: int) -> tuple[Any, Targets]:
    """Return the rows with a label and as many others as the committee learns on."""
    others = np.setdiff1d(np.arange(X.shape[0]), targets.rows)
    if len(others) <= MOST_ROWS:
        return X, targets
    drawn = np.random.default_rng(seed).choice(others, MOST_ROWS, replace=False)
    kept = np.sort(np.concatenate([targets.rows, drawn]))
    return X[kept], targets._replace(rows=np.searchsorted(kept, targets.rows))


def stack_member(
    stack: Stack,
    finetuned: Callable[..., Stack],
    settings: Callable[..., dict[str, Any]] | None = None,
) -> Member:
    """Return a member that fine-tunes a stack.

    Parameters
    ----------
    stack : Stack
    finetuned : callable
        Called with a stack, examples, targets and settings; returns a stack.
    settings : callable
        From the shape of the examples, the number of labels and the fewest steps; by default the
        data decide.
    """

    def learn(X: Any, some: Targets, steps: int) -> Judge:
        y, weights = some.spread_out(X.shape[0])
        own = {} if settings is None else settings(X.shape, len(some.rows), steps)
        trained = finetuned(stack, X, y, **own, weights=weights, warn=False, observers=())
        return lambda rows: _logarithms(softmax(outputs_of(trained, rows).astype(np.float64)))

    return learn


def classifiers(X: Any, classes: int, seed: int) -> dict[str, Member]:
    """Return the members that are scikit-learn's, for the columns of X."""
    columns = standardizer(X)
    kernel = Nystroem(gamma=1 / X.shape[1], n_components=LANDMARKS, random_state=seed)
    on_kernel = LogisticRegression(C=1 / KERNEL_PENALTY, max_iter=MOST_ITERATIONS)
    linear = LogisticRegression(max_iter=MOST_ITERATIONS)
    found = {
        "linear": (make_pipeline(linear), columns.transform),
        "kernel": (make_pipeline(kernel, on_kernel), columns.transform),
        "trees": (make_pipeline(ExtraTreesClassifier(random_state=seed)), np.asarray),
        "boosting": (make_pipeline(HistGradientBoostingClassifier(random_state=seed)), np.asarray),
    }
    return {name: _classifier(*own, classes) for name, own in found.items()}


def _classifier(model: Pipeline, scaled: Callable[[Matrix], Matrix], classes: int) -> Member:
    """Return a member that learns from the labels alone, on columns that are scaled or not."""

    def read(rows: Any) -> Matrix:
        return scaled(rows.toarray() if hasattr(rows, "toarray") else rows)

    def learn(X: Any, some: Targets, steps: int) -> Judge:
        own, last = clone(model), model.steps[-1][0]
        # One thread gives the same bits on any cores; more would wait for cores that others use.
        # Passing weights on would be refused where the user has made routing of metadata strict.
        routing = config_context(enable_metadata_routing=False)
        with blas_limit(1), openmp_limit(1), routing, warnings.catch_warnings():
            # A regression that has not converged is good enough, and so are fewer landmarks.
            warnings.simplefilter("ignore", UserWarning)
            known = read(X[some.rows])
            known[:, np.isnan(known).all(axis=0)] = 0  # trees cannot split what has no value
            own.fit(known, some.y, **{f"{last}__sample_weight": some.weights})

        def judge(rows: Any) -> Matrix:
            shares = np.zeros((rows.shape[0], classes))
            with blas_limit(1), openmp_limit(1):
                for part in chunks(rows.shape):  # a class that was not met has no probability
                    shares[part, own.classes_] = own.predict_proba(read(rows[part]))
            return _logarithms(shares)

        return judge

    return learn


def _logarithms(shares: Matrix) -> Matrix:
    logarithms: Matrix = np.log(np.maximum(shares, LEAST))
    return logarithms


def asked(
    members: Mapping[str, Member], X: Any, targets: Targets, seed: int, *, classes: int
) -> tuple[Matrix, dict[str, float]]:
    """Return the committee's probabilities of the classes of each row, and the members' weights.

    Weights are equal if a class has fewer than three labels: then nothing can be left out.

    Parameters
    ----------
    members : mapping of str to Member
    X : array or sparse matrix of shape (n_examples, n_features)
    targets : Targets
        Each class has a label at least; a label with the weight 0 is not left out.
    seed : int
        Seed of the parts.
    classes : int
        Number of classes.
    """
    rows, y, own = counted = targets.weighted()
    weights = np.full(len(members), 1 / len(members))
    if len(members) > 1 and np.bincount(y, minlength=classes).min() >= PARTS:
        logs = np.zeros((len(members), len(y), classes))
        parts = StratifiedKFold(PARTS, shuffle=True, random_state=seed).split(rows, y)
        for trained, others in parts:
            for log, learn in zip(logs, members.values(), strict=True):
                log[others] = learn(X, counted.part(trained), TRIAL_STEPS)(X[rows[others]])
        weights = likeliest_weights(logs, y, own)
    pooled = np.zeros((X.shape[0], classes))
    for weight, learn in zip(weights, members.values(), strict=True):
        if weight > 0:
            pooled += weight * learn(X, targets, UNLABELLED_STEPS)(X)
    return softmax(pooled), dict(zip(members, weights.tolist(), strict=True))


def likeliest_weights(
    logs: Matrix, y: NDArray[Any], own: Matrix | None = None
) -> NDArray[np.float64]:
    """Return the weights of members, none below 0, that make classes most likely in their pool.

    Parameters
    ----------
    logs : ndarray of shape (members, n_labels, classes)
        Logarithms of each member's probabilities.
    y : ndarray of int of shape (n_labels,)
        The classes, counted from 0.
    own : ndarray of shape (n_labels,), optional
        Weight of each label.
    """
    equal, labels = 1 / len(logs), np.arange(len(y))
    counts = np.ones(len(y)) if own is None else own / own.mean()

    def loss(weights: Matrix) -> tuple[float, Matrix]:
        # Convex in the weights: minus a sum of logarithms of a softmax.
        wrong = softmax(np.tensordot(weights, logs, 1))
        likely = np.log(np.maximum(wrong[labels, y], np.finfo(float).tiny))
        wrong[labels, y] -= 1
        wrong *= counts[:, None]
        apart = weights - equal
        slopes = np.tensordot(logs, wrong, 2) + 2 * PULL * apart
        return float(PULL * np.square(apart).sum() - counts @ likely), slopes

    start, bounds = np.full(len(logs), equal), [(0, None)] * len(logs)
    found: NDArray[np.float64] = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return found
