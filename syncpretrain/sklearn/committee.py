"""A committee learns from the targets, and one network learns from the committee.

No classifier is the best of all: which one is depends on the table. So several learn side by side:
a network on the labels alone; if labels are few, the same with guessed classes, else one without
noise; RBMs if all values are 0 or 1; and linear logistic regression, logistic regression on a
Gaussian kernel, extra trees and gradient boosting of scikit-learn. Their product, with a weight
each, gives the classes' probabilities

    p(class | x) ~ product over members m of p_m(class | x) ** w_m

(a logarithmic opinion pool, Heskes 1998). The labels are left out in turn, in three parts, of many
labels one part alone. The weights, none below 0, are those that make these labels most likely
(stacking, Wolpert 1992), and are drawn towards equal ones, which is felt with a few dozen labels.
An overconfident member gets a small weight: the weights also calibrate.

Numbers are predicted by the sum of the members' predictions, with weights that give the least
squared error of the numbers left out (stacked regressions, Breiman 1996). The members are a network
on the numbers alone, RBMs if all values are 0 or 1, ridge regression, the same on a Gaussian
kernel, extra trees, and gradient boosting, unless numbers are few.

The network then learns what the committee says of the rows with and without a target (model
compression, Bucila et al. 2006): one small stack is kept, which is saved, exported and examined
like any other. Where it has not come to the committee's answers, as with many classes on a grid, it
learns longer, and so it does from 3,000 labels on. The committee repeats the targets of rows that
have one; so if more than a few have one, the network learns on other rows too, each mixed from two
rows near to each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.extmath import softmax

from syncpretrain import Stack
from syncpretrain.data.blocks import chunks
from syncpretrain.parallel.blas import blas_limit, openmp_limit
from syncpretrain.settings.by_data import GUESS_BATCH, OF_UNLABELLED, UNLABELLED_STEPS
from syncpretrain.settings.finetuning import labelled_of, steps_with_unlabelled
from syncpretrain.sklearn.fit_choices import MOST_ITERATIONS, Targets, standardizer
from syncpretrain.sklearn.passes import Matrix, outputs_of

Judge = Callable[[Any], Matrix]  # opinions on rows, of shape (n_rows, classes or numbers)
Member = Callable[[Any, Targets, int], Judge]  # learns from examples, targets and in some steps
Loss = Callable[[Matrix], tuple[float, Matrix]]  # of members' weights, with its slopes

PARTS = 3  # of the labels, each left out once
MANY_TRIED = 3000  # targets and more: one part tells the weights, and a network learns longer
TRIAL_STEPS = 500  # of the networks that learn without some labels
TRIAL_TREES = 33  # of 100, as of the steps a third, where rows are many: few take no time
MOST_ROWS = TRIAL_STEPS * GUESS_BATCH  # more rows are not seen in so few steps
NARROW = 3  # of two columns one is half of what is known of a row
WIDE, FEWEST = 512, 32  # more columns take smaller minibatches: a step costs no more
LEAST = 1e-4  # of a probability: trees say 0 of classes that they have not met in a leaf
LEARNED = 0.95  # of the answers; where the network has learned fewer, it learns longer
MOST_STEPS, FAST = 3 * UNLABELLED_STEPS, 0.004  # rate, twice the usual one
# Of the network that tells classes apart which change from one value of a column to the next.
EXACT = {"normalization": "none", "dropout": 0.2, "input_noise": 0.0, "input_dropout": 0.0}
LEAST_SQUARES = 1e-12  # of standardized numbers: errors of rounding
NEAR, MIXED, MIXED_CELLS = 5, 8000, 1 << 24  # near rows, fewest rows, and most values of all
LANDMARKS, KERNEL_PENALTY = 300, 0.1  # of the regression on a kernel
ROUNDS, MOST_BOOSTED = 100, 2000  # of boosting; and its trees, one of each class in each round
TREES = (ExtraTreesClassifier, ExtraTreesRegressor)
MOST_BINS, FEW_BINS = 255, 63  # of a column; many trees of few rows are grown in half the time
ON_VALUES = ("trees", "boosting")  # which standardized columns would only cost time


class ForClasses:
    """The committee tells classes; opinions are logarithms of the probabilities of classes.

    Parameters
    ----------
    classes : int
        Number of classes.
    """

    pull = 0.3  # towards equal weights: as strong as a few labels
    normalization = "batch"

    def __init__(self, classes: int) -> None:
        self.width = classes

    def units(self, layers: int) -> list[str]:
        """Return the hidden units of the networks."""
        return ["relu"] * layers

    def models(self, kernel: Nystroem, seed: int, cores: int) -> dict[str, Pipeline]:
        """Return the members that are scikit-learn's, before they have learned."""
        linear = LogisticRegression(max_iter=MOST_ITERATIONS)
        on_kernel = LogisticRegression(C=1 / KERNEL_PENALTY, max_iter=MOST_ITERATIONS)
        rounds = max(min(ROUNDS, MOST_BOOSTED // self.width), 1)
        bins = MOST_BINS if rounds == ROUNDS else FEW_BINS
        boosting = HistGradientBoostingClassifier(max_iter=rounds, max_bins=bins, random_state=seed)
        return {
            "linear": make_pipeline(linear),
            "kernel": make_pipeline(kernel, on_kernel),
            "trees": make_pipeline(ExtraTreesClassifier(n_jobs=cores, random_state=seed)),
            "boosting": make_pipeline(boosting),
        }

    def opinions_of(self, model: Pipeline, rows: Matrix) -> Matrix:
        """Return the opinions of a model that has learned."""
        shares = np.zeros((len(rows), self.width))
        shares[:, model.classes_] = model.predict_proba(rows)  # others were not met
        return _logarithms(shares)

    def opinions(self, outputs: Matrix) -> Matrix:
        """Return the opinions of a network with given outputs."""
        return _logarithms(softmax(outputs.astype(np.float64)))

    def parts(self, y: NDArray[Any], seed: int) -> list[tuple[Matrix, Matrix]]:
        """Return, for each part of the targets, the others and the part; none if they are few."""
        if np.bincount(y, minlength=self.width).min() < PARTS:
            return []
        return list(StratifiedKFold(PARTS, shuffle=True, random_state=seed).split(y, y))

    def loss(self, opinions: Matrix, y: NDArray[Any], counts: Matrix) -> Loss:
        """Return the function of the members' weights that is to be small, with its slopes.

        Minus the sum of the logarithms of the probabilities of given classes in the pool, each
        times its count; convex in the weights.
        """
        labels = np.arange(len(y))

        def of_weights(weights: Matrix) -> tuple[float, Matrix]:
            wrong = softmax(np.tensordot(weights, opinions, 1))
            likely = np.log(np.maximum(wrong[labels, y], np.finfo(float).tiny))
            wrong[labels, y] -= 1
            wrong *= counts[:, None]
            return float(-counts @ likely), np.tensordot(opinions, wrong, 2)

        return of_weights

    def answers(self, pooled: Matrix) -> Matrix:
        """Return what the network is to learn from pooled opinions: probabilities of classes."""
        shares: Matrix = softmax(pooled)
        return shares

    def learned(self, outputs: Matrix, answers: Matrix) -> float:
        """Return the share of the rows on which a network agrees with the committee."""
        return float((outputs.argmax(axis=1) == answers.argmax(axis=1)).mean())


def _logarithms(shares: Matrix) -> Matrix:
    return np.log(np.maximum(shares, LEAST))


class ForNumbers:
    """The committee tells standardized numbers, and opinions are such numbers.

    Parameters
    ----------
    outputs : int
        How many numbers a row has.
    are_few : bool
        Whether numbers are too few for gradient boosting.
    """

    pull = 10.0
    normalization = "none"  # else rows far from all others would get numbers far from all others

    def __init__(self, outputs: int, *, are_few: bool = True) -> None:
        self.width, self.are_few = outputs, are_few

    def units(self, layers: int) -> list[str]:
        """Return the hidden units of the networks."""
        return bounded_units(layers)

    def models(self, kernel: Nystroem, seed: int, cores: int) -> dict[str, Pipeline]:
        """Return the members that are scikit-learn's, before they have learned."""
        found = {
            "linear": make_pipeline(Ridge()),
            "kernel": make_pipeline(kernel, Ridge(KERNEL_PENALTY)),
            "trees": make_pipeline(ExtraTreesRegressor(n_jobs=cores, random_state=seed)),
        }
        if not self.are_few:
            boosting = HistGradientBoostingRegressor(random_state=seed)
            found["boosting"] = make_pipeline(MultiOutputRegressor(boosting))
        return found

    def opinions_of(self, model: Pipeline, rows: Matrix) -> Matrix:
        """Return the opinions of a model that has learned."""
        return np.reshape(model.predict(rows), (len(rows), self.width))

    def opinions(self, outputs: Matrix) -> Matrix:
        """Return the opinions of a network with given outputs."""
        return outputs.astype(np.float64)

    def parts(self, y: NDArray[Any], seed: int) -> list[tuple[Matrix, Matrix]]:
        """Return, for each part of the targets, the others and the part; none if they are few."""
        if len(y) < 2 * PARTS:
            return []
        return list(KFold(PARTS, shuffle=True, random_state=seed).split(y))

    def loss(self, opinions: Matrix, y: NDArray[Any], counts: Matrix) -> Loss:
        """Return the function of the members' weights that is to be small, with its slopes.

        Minus the logarithm of the likelihood of given numbers, each times its count, with normal
        noise around the pool and the variance that is likeliest: half of the count of the numbers
        times the logarithm of the sum of squared errors.
        """

        def of_weights(weights: Matrix) -> tuple[float, Matrix]:
            error = np.tensordot(weights, opinions, 1) - y
            counted = counts[:, None] * error
            squares = float((counted * error).sum()) + LEAST_SQUARES
            slopes = np.tensordot(opinions, counted, 2) * (y.size / squares)
            return y.size / 2 * math.log(squares), slopes

        return of_weights

    def answers(self, pooled: Matrix) -> Matrix:
        """Return what the network is to learn from pooled opinions: they themselves."""
        # Rounded here, since fine-tuning refuses a user's numbers that rounding would make alike.
        return pooled.astype(np.float32)

    def learned(self, outputs: Matrix, answers: Matrix) -> float:
        """Return the share of the variance of the committee's numbers that a network explains."""
        rest = np.square(outputs - answers).sum()
        return float(1 - rest / max(np.square(answers - answers.mean(axis=0)).sum(), LEAST))


Asked = ForClasses | ForNumbers


def bounded_units(layers: int) -> list[str]:
    """Return hidden units of a network without normalization: binary ones keep it within limits."""
    return ["relu"] + ["bernoulli"] * (layers - 1)


def network_settings(
    kind: Asked,
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
    kind : ForClasses or ForNumbers
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
    return _settings(kind, batch, math.ceil(steps / each)) | noise | own


def student_settings(
    kind: Asked,
    shape: tuple[int, ...],
    batch: int | None,
    steps: int = UNLABELLED_STEPS,
    **changed: float,
) -> dict[str, Any]:
    """Return settings of fine-tuning on the committee's answers on rows.

    Nothing is left out and no noise added: the committee's answers are to be learned by heart.
    """
    rows = _batch(shape, batch)
    return _settings(kind, rows, math.ceil(steps / math.ceil(shape[0] / rows))) | changed


def learned(
    kind: Asked,
    finetuned: Callable[..., Stack],
    X: Any,
    answers: Matrix,
    batch: int | None,
    *,
    steps: int | None = None,
) -> Stack:
    """Return the network that has learned the committee's answers on rows.

    Parameters
    ----------
    kind : ForClasses or ForNumbers
    finetuned : callable
        Called with examples, answers and settings; returns a stack.
    X : array or sparse matrix of shape (n_examples, n_features)
    answers : ndarray of shape (n_examples, classes or numbers)
    batch : int, optional
        Rows of a minibatch.
    steps : int, optional
        Fewest steps at the greater rate. None takes the smaller one, and if the network then has
        not come to the answers, the greater one in the most steps.
    """
    if steps is None:
        student = finetuned(X, answers, **student_settings(kind, X.shape, batch), warn=False)
        if kind.learned(outputs_of(student, X), answers) >= LEARNED:
            return student
    most = student_settings(kind, X.shape, batch, steps or MOST_STEPS, learning_rate=FAST)
    return finetuned(X, answers, **most, warn=False)


def steps_for(kind: Asked, targets: int) -> int:
    """Return the steps in which the network learns from a committee with so many targets."""
    is_short = isinstance(kind, ForClasses) and targets < MANY_TRIED
    return UNLABELLED_STEPS if is_short else MOST_STEPS


def _batch(shape: tuple[int, ...], asked: int | None) -> int:
    rows, columns = shape
    usual = max(GUESS_BATCH * WIDE // max(columns, WIDE), FEWEST)
    return max(min(asked or usual, rows), 2)  # normalization takes two rows at least


def _settings(kind: Asked, batch: int, epochs: int) -> dict[str, Any]:
    own = {"normalization": kind.normalization, "batch_size": batch, "epochs": epochs}
    # So small a network is no faster by more threads, which would give other bits.
    return OF_UNLABELLED | own | {"blas_threads": 1}


def rows_to_learn(X: Any, targets: Targets, seed: int) -> tuple[Any, Targets]:
    """Return the rows with a label and as many others as the committee learns on."""
    others = np.setdiff1d(np.arange(X.shape[0]), targets.rows)
    if len(others) <= MOST_ROWS:
        return X, targets
    drawn = np.random.default_rng(seed).choice(others, MOST_ROWS, replace=False)
    kept = np.sort(np.concatenate([targets.rows, drawn]))
    return X[kept], targets._replace(rows=np.searchsorted(kept, targets.rows))


def with_mixed_rows(X: Any, seed: int) -> Matrix:
    """Return rows, and below them others: each column is of a row, or of one near to it.

    This is the way of Bucila et al. 2006, but for a neighbour of its own for each mixed row.
    """
    rows: Matrix = X.toarray() if hasattr(X, "toarray") else X
    n, draws = len(rows), np.random.default_rng(seed)
    if n <= NEAR:
        return rows
    near = NearestNeighbors(n_neighbors=NEAR).fit(standardizer(rows).transform(rows))
    others = near.kneighbors(return_distance=False)  # of each row the others nearest to it
    parts = [rows]
    for _ in range(max(min(MIXED, MIXED_CELLS // rows.shape[1]) // n, 1)):
        other = rows[others[np.arange(n), draws.integers(NEAR, size=n)]]
        parts.append(np.where(draws.random(rows.shape) < 0.5, rows, other))
    return np.concatenate(parts)


def stack_member(
    kind: Asked,
    stack: Stack,
    finetuned: Callable[..., Stack],
    settings: Callable[..., dict[str, Any]] | None = None,
) -> Member:
    """Return a member that fine-tunes a stack.

    Parameters
    ----------
    kind : ForClasses or ForNumbers
    stack : Stack
    finetuned : callable
        Called with a stack, examples, targets and settings; returns a stack.
    settings : callable
        From the shape of the examples, the number of labels and the fewest steps; by default the
        data decide.
    """

    def learn(X: Any, some: Targets, steps: int) -> Judge:
        y, weights = some.spread_out(X.shape[0])
        # Without a number far away, left out here, the others may be alike: see ForNumbers.answers.
        y = y.astype(np.float32)
        own = {} if settings is None else settings(X.shape, len(some.rows), steps)
        trained = finetuned(stack, X, y, **own, weights=weights, warn=False, observers=())
        return lambda rows: kind.opinions(outputs_of(trained, rows))

    return learn


def models(kind: Asked, X: Any, seed: int, cores: int = 1) -> dict[str, Member]:
    """Return the members that are scikit-learn's, for the columns of X.

    Parameters
    ----------
    kind : ForClasses or ForNumbers
    X : array or sparse matrix of shape (n_examples, n_features)
    seed : int
    cores : int
        Trees grow in so many threads; their bits do not depend on these.
    """
    columns = standardizer(X)
    kernel = Nystroem(gamma=1 / X.shape[1], n_components=LANDMARKS, random_state=seed)
    return {
        name: _model_member(kind, model, np.asarray if name in ON_VALUES else columns.transform)
        for name, model in kind.models(kernel, seed, cores).items()
    }


def _model_member(kind: Asked, model: Pipeline, scaled: Callable[[Matrix], Matrix]) -> Member:
    """Return a member that learns from the targets alone, on columns that are scaled or not."""

    def read(rows: Any) -> Matrix:
        return scaled(rows.toarray() if hasattr(rows, "toarray") else rows)

    def learn(X: Any, some: Targets, steps: int) -> Judge:
        own, last = clone(model), model.steps[-1][0]
        # One thread gives the same bits on any cores; only trees, which do so anyway, take more.
        # Passing weights on would be refused where the user has made routing of metadata strict.
        with blas_limit(1), openmp_limit(1), config_context(enable_metadata_routing=False):
            known = read(X[some.rows])
            known[:, np.isnan(known).all(axis=0)] = 0  # trees cannot split what has no value
            if steps == TRIAL_STEPS:
                _make_shorter(own[-1], len(known))
            # Penalties and priors count against the mean weight, so only ratios may matter.
            weights = None if some.weights is None else some.weights / some.weights.mean()
            own.fit(known, some.y, **{f"{last}__sample_weight": weights})
            if isinstance(own[-1], TREES):
                own[-1].n_jobs = 1  # predictions in several threads would be added in any order

        def judge(rows: Any) -> Matrix:
            with blas_limit(1), openmp_limit(1):
                return kind.opinions_of(own, read(rows))

        return judge

    return learn


def _make_shorter(model: Any, rows: int) -> None:
    """Let a model that is to be judged on other rows learn in less time, if it takes long."""
    if isinstance(model, TREES) and rows >= MANY_TRIED:
        model.n_estimators = TRIAL_TREES
    if isinstance(model, HistGradientBoostingClassifier) and model.max_iter < ROUNDS:
        model.max_iter = math.ceil(model.max_iter / 3)


def asked(
    kind: Asked,
    members: Mapping[str, Member],
    X: Any,
    targets: Targets,
    seed: int,
    at_once: Callable[[list[Any]], list[Any]],
    tell: Callable[[str], None] = lambda message: None,
) -> tuple[Matrix, dict[str, float]]:
    """Return the committee's answers on all rows, and the members' weights.

    Weights are equal where targets are too few for some to be left out: fewer than three labels of
    a class, or than six numbers.

    Parameters
    ----------
    kind : ForClasses or ForNumbers
    members : mapping of str to Member
    X : array or sparse matrix of shape (n_examples, n_features)
    targets : Targets
        Each class has a label at least; a target with the weight 0 is not left out.
    seed : int
        Seed of the parts.
    at_once : callable
        Takes functions, the slowest last, calls them in any order, and returns what they return.
    tell : callable
        Takes a message on what comes next.
    """
    rows, y, own = counted = targets.weighted()
    weights = np.full(len(members), 1 / len(members))
    parts = kind.parts(y, seed)

    def opinions(learn: Member, trained: Matrix, others: Matrix) -> Matrix:
        return learn(X, counted.part(trained), TRIAL_STEPS)(X[rows[others]])

    if len(members) > 1 and parts:
        tried = parts[:1] if len(y) >= MANY_TRIED else parts
        about = f"from two thirds of {len(y)} targets, judged on the others, {len(tried)} times"
        tell(f"{', '.join(members)}: learn {about}")
        found = at_once([partial(opinions, x, *part) for x in members.values() for part in tried])
        left_out = np.concatenate([others for _, others in tried])
        order, shape = np.argsort(left_out), (len(members), len(left_out), kind.width)
        by_member, left_out = np.reshape(np.concatenate(found), shape)[:, order], left_out[order]
        weights = best_weights(kind, by_member, y[left_out], None if own is None else own[left_out])
    shares = dict(zip(members, weights.tolist(), strict=True))
    taught = {name: weight for name, weight in shares.items() if weight > 0}
    tell(f"{', '.join(taught)}: learn from all {len(targets.rows)} targets")
    judges = at_once([partial(members[name], X, targets, UNLABELLED_STEPS) for name in taught])
    pooled = np.zeros((X.shape[0], kind.width))
    for part in chunks(X.shape):  # not all rows at once, whose opinions may be larger than they are
        found = at_once([partial(judge, X[part]) for judge in judges])
        for weight, said in zip(taught.values(), found, strict=True):
            pooled[part] += weight * said
    return kind.answers(pooled), shares


def best_weights(kind: Asked, opinions: Matrix, y: Matrix, own: Matrix | None = None) -> Matrix:
    """Return the weights of members, none below 0, with the least loss, drawn to equal ones.

    Parameters
    ----------
    kind : ForClasses or ForNumbers
    opinions : ndarray of shape (members, n_targets, classes or numbers)
    y : ndarray
        The targets: classes, counted from 0, or numbers of shape (n_targets, numbers).
    own : ndarray of shape (n_targets,), optional
        Weight of each target.
    """
    equal = np.full(len(opinions), 1 / len(opinions))
    loss = kind.loss(opinions, y, np.ones(len(y)) if own is None else own / own.mean())

    def pulled(weights: Matrix) -> tuple[float, Matrix]:
        value, slopes = loss(weights)
        apart = weights - equal
        return value + kind.pull * float(apart @ apart), slopes + 2 * kind.pull * apart

    bounds = [(0, None)] * len(equal)
    found: Matrix = minimize(pulled, equal, jac=True, method="L-BFGS-B", bounds=bounds).x
    return found
