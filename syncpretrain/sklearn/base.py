"""Common part of the estimators: parameters, checked inputs, seeds, pretraining and fine-tuning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from joblib.parallel import get_active_backend
from msgspec import to_builtins
from numpy.typing import NDArray
from rich.console import Console
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from syncpretrain import Stack, finetune, pretrain
from syncpretrain.data.columns import Column, Columns
from syncpretrain.data.examples import as_examples, check_columns, has_missing
from syncpretrain.data.frames import is_frame
from syncpretrain.data.meaning import Meaning, origin_of
from syncpretrain.data.table import check_distinct_names, is_null
from syncpretrain.errors import DataError, PoorResultWarning, SettingsError
from syncpretrain.events import Observer
from syncpretrain.finetuning.options import TUNING_ARGUMENTS, TuningOptions, tuning_options
from syncpretrain.models.inputs import warn_of_novel
from syncpretrain.observers.progress import PlainProgress
from syncpretrain.settings.convert import check_names
from syncpretrain.sklearn.passes import Matrix, as_meant

TUNING = "finetune_"  # prefix of the settings of fine-tuning
# Keywords of finetune() that stop and resume it; TUNING_ARGUMENTS are its other keywords.
CONTROL_ARGUMENTS = ("stop", "save", "resume", "stall_seconds")
DECIDED = {"layers", "seed", "finetune_seed", "observers"}  # parameters of other names set these
FIXED = {"finetune_objective", "warn"}  # the estimator sets these, whatever its parameters
# Ends of error messages.
ENCODE_HINT = "encode it as numbers before, such as with OneHotEncoder, or drop the column"
DATES_HINT = "take numbers made of it before, such as years or days, or drop the column"


class StackEstimator(BaseEstimator):
    """Base of the estimators; subclasses define the parameters.

    Attributes
    ----------
    stack_ : Stack
        The trained stack.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of a DataFrame's columns.
    """

    _model: ClassVar[str] = "rbm"
    hidden: Any
    epochs: Any
    batch_size: int | None
    learning_rate: Any
    visible_units: str
    workers: int | None
    random_state: Any
    verbose: int
    settings: dict[str, Any] | None
    stack_: Stack

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        if tags.transformer_tags is not None:
            tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _rows(self, X: Any, *, reset: bool) -> Matrix:
        """Return :func:`rows_for` this estimator, checked.

        Rows for a fitted stack (without ``reset``) may have new values in columns that never varied
        in training: warn of these.
        """
        rows: Matrix = rows_for(self, X, reset=reset)
        scaling = None if reset else self.stack_.scaling
        if scaling is not None and scaling.constant.any():
            names = partial(getattr, self, "feature_names_in_", ())
            warn_of_novel(as_examples(as_meant(self.stack_, rows), "X"), scaling, "X", names)
        return rows

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _pretrained_on(self, X: Matrix, seed: int, **suited: Any) -> Stack:
        """Return a stack pretrained on examples; if ``epochs`` is 0, its weights stay random.

        ``suited`` are settings that the estimator chose for the data: they replace the settings
        that its parameters give.
        """
        options = {"observers": self._observers()} | self._pretraining(X, seed) | suited
        if not self._trains(self.epochs):
            # pretrain() refuses 0 epochs: the schedule is what leaves the training out.
            options |= {"epochs": None, "schedule": "none"}
        return self._named(of_numbers(pretrain(training_rows(X), warn=False, **options)))

    def _named(self, stack: Stack) -> Stack:
        """Return a stack that finds the columns of data frames by the names that fit has seen."""
        features = tuple(Column(name, "number") for name in getattr(self, "feature_names_in_", ()))
        if not features or "columns" in stack.info:
            return stack
        return replace(stack, info=stack.info | {"columns": to_builtins(Columns(features))})

    def _pretraining(self, X: Matrix, seed: int) -> dict[str, Any]:
        """Return the settings of pretraining on examples; None lets the data decide."""
        cores = core_limit(self.workers)
        return {
            "layers": [X.shape[1], *self._widths(X.shape[1])],
            "model": self._model,
            "visible_units": None if self.visible_units == "auto" else self.visible_units,
            "epochs": self.epochs,
            "batch_size": self._batch_size_for(X),
            "learning_rate": self.learning_rate,
            "seed": seed,
            "workers": cores,
            "blas_threads": cores,
            **self._extra_settings(tuning=False),
        }

    def _batch_size_for(self, X: Matrix) -> int | None:
        """Return the examples of a minibatch, at most the rows of X; None for the default."""
        return None if self.batch_size is None else min(self.batch_size, X.shape[0])

    def _finetuned(
        self,
        stack: Stack,
        X: Matrix,
        y: Matrix | None,
        seed: int,
        epochs: Any = None,
        **options: Any,
    ) -> Stack:
        """Return a stack fine-tuned on examples, for targets or else for reconstruction.

        A missing value cannot be a target of a reconstruction: the stack fills it in before.
        ``options`` replace the settings that the parameters give, except for the parameter
        ``settings``.
        """
        if y is None and has_missing(X):
            X = stack.impute(X)
        wanted = {
            "batch_size": self._batch_size_for(X),
            "epochs": epochs,
            "blas_threads": core_limit(self.workers),  # finetune() has no workers
        }
        own = {name: value for name, value in wanted.items() if value is not None}
        options.setdefault("observers", self._observers())
        tuning = own | options | self._extra_settings(tuning=True)
        return finetune(stack, training_rows(X, stack), y, seed=seed, **tuning)

    def _widths(self, columns: int) -> list[int]:
        """Return the units of each layer of a stack for a number of columns."""
        hidden: list[Any] = [self.hidden] if np.ndim(self.hidden) == 0 else list(self.hidden)
        for units in hidden:
            if not isinstance(units, (int, np.integer)) or isinstance(units, bool) or units < 1:
                raise SettingsError(
                    f"hidden: got {self.hidden!r}, expected the units of each layer, such as"
                    " (256, 64)"
                )
        if not hidden:
            raise SettingsError("hidden: got no layer, expected one or more, such as (256, 64)")
        return [int(units) for units in hidden]

    def _extra_settings(self, *, tuning: bool) -> dict[str, Any]:
        """Return what the parameter ``settings`` holds for fine-tuning, or else for pretraining.

        Settings of fine-tuning are returned without their prefix.
        """
        given = {} if self.settings is None else self.settings
        if not isinstance(given, Mapping):
            raise SettingsError(
                f"settings: got {given!r}, expected names and values, such as {{'cd_steps': 5}}"
            )
        parameters = self.get_params(deep=False).keys() | DECIDED
        if taken := sorted(name for name in given if name in parameters):
            raise SettingsError(
                f"settings: got {taken[0]}, which a parameter decides; set hidden for layers,"
                " random_state for seed, verbose for observers, or the parameter of that name"
            )
        if odd := [name for name in given if not isinstance(name, str)]:
            raise SettingsError(f"settings: got the name {odd[0]!r}, expected text")
        if fixed := sorted(given.keys() & FIXED):
            raise SettingsError(
                f"settings: got {fixed[0]}, which {type(self).__name__} decides; leave it out"
            )
        if tuning:
            prefixed = {name: given[name] for name in given if name.startswith(TUNING)}
            return {name.removeprefix(TUNING): value for name, value in prefixed.items()}
        return {name: value for name, value in given.items() if not name.startswith(TUNING)}

    def _check_tuning(self, objective: str, epochs: int | None) -> None:
        """Refuse wrong settings of fine-tuning before anything is trained."""
        given = self._extra_settings(tuning=True)
        options = TuningOptions.__struct_fields__
        check_names(given, (*options, *TUNING_ARGUMENTS, *CONTROL_ARGUMENTS))
        wanted = {"epochs": epochs, "batch_size": self.batch_size}
        wanted |= {name: value for name, value in given.items() if name in options}
        own = {name: value for name, value in wanted.items() if value is not None}
        # For its errors alone: finetune() makes the options again, with those of each training.
        try:
            tuning_options({"objective": objective} | own)
        except SettingsError as error:
            is_named_so = str(error).partition(":")[0] in {"epochs", *given}
            raise SettingsError(f"finetune_{error}" if is_named_so else str(error)) from None

    def _warn(self) -> None:
        """Warn of a poor result, at the line that called fit; only what fit calls may call this."""
        for sentence in self.stack_.info.get("verdict", ()):
            warnings.warn(sentence, PoorResultWarning, stacklevel=4)

    def _observers(self) -> list[Observer]:
        return [PlainProgress(Console(), thinned=self.verbose == 1)] if self.verbose else []

    @staticmethod
    def _trains(epochs: Any) -> bool:
        """Return whether a number of epochs, or one a layer, trains; None is the default number.

        Raises
        ------
        SettingsError
            If some layers have 0 epochs, and others more.
        """
        are_zero = np.atleast_1d(np.asarray(epochs, dtype=object) == 0)
        if are_zero.any() and not are_zero.all():
            raise SettingsError(
                f"epochs: got {epochs!r}, expected 0 for all layers, which leaves out pretraining,"
                " or at least 1 for each; give 1 to a layer that should stay nearly as it was"
            )
        return not are_zero.all()


def keep(estimator: StackEstimator, given: dict[str, Any]) -> None:
    """Keep the arguments of a constructor, its ``locals()``, as attributes of the same names.

    scikit-learn reads the names of parameters from each class's own signature.
    """
    for name, value in given.items():
        if name != "self":
            setattr(estimator, name, value)


def of_numbers(stack: Stack) -> Stack:
    """Return a stack that takes bytes as plain numbers, as scikit-learn's estimators do.

    The stack keeps its origin, the numbers that are subtracted from its columns.
    """
    origin = () if stack.meaning is None else stack.meaning.origin
    return replace(stack, info=stack.info | {"meaning": to_builtins(Meaning("numbers", origin))})


def training_rows(X: Matrix, stack: Stack | None = None) -> NDArray[Any]:
    """Return examples in the type to train on: float32, unless it would lose differences.

    Examples keep their type if they or the stack have an origin, which is subtracted before they
    become float32 (:mod:`syncpretrain.data.meaning`). Sparse examples stay sparse.
    """
    if hasattr(X, "toarray"):
        return as_examples(X, "X")
    if origin_of(X) or (stack is not None and stack.meaning is not None and stack.meaning.origin):
        return X
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(X, dtype=np.float32)
    return X if np.isinf(rows).any() else rows  # X is refused later, with the number and its place


def core_limit(workers: int | None) -> int | None:
    """Return the most workers, and the most threads of BLAS; None for all usable cores.

    Without a limit from the user, a job of joblib takes one core, since the other jobs use the
    other cores. Jobs in threads share the BLAS of their process, so the limit counts for it too.
    """
    backend, _ = get_active_backend()
    return 1 if workers is None and backend.nesting_level else workers


def rows_for(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Return examples as an array, with NaN for missing values, or as a matrix in CSR format.

    Parameters
    ----------
    estimator : BaseEstimator
        Estimator that keeps the number and the names of the columns that it was fitted on.
    X : {array-like, sparse matrix, DataFrame} of shape (n_examples, n_features)
    reset : bool
        True to keep the number and the names of the columns of X; False to compare them with the
        kept ones.

    Raises
    ------
    DataError
        If a column of a data frame holds no numbers, or no value at all, or has the name of
        another column (the message names it); if an array holds dates, times or durations, or a
        sparse matrix NaN.
    ValueError
        If X has another shape or type.
    """
    is_named = is_frame(X)
    if is_named:
        check_distinct_names("X", [str(name) for name in X.columns])
        _check_no_times(X)
    elif isinstance(X, np.ndarray) and X.dtype.kind in "mM":
        raise DataError(f"X: got values of type {X.dtype}, expected numbers; {DATES_HINT}")
    try:
        rows = validate_data(
            estimator,
            X,
            reset=reset,
            accept_sparse="csr",
            dtype=(np.float64, np.float32),
            ensure_all_finite="allow-nan",
        )
    except (TypeError, ValueError) as error:
        if is_named:
            _check_cells(X, error)
        raise
    if hasattr(rows, "toarray"):
        _check_sparse(rows)
        return rows
    array = np.asarray(rows)
    if is_named and reset:
        check_columns(array, list(X.columns))
    return array


def _check_no_times(frame: Any) -> None:
    """Refuse dates, times, durations and periods; NumPy makes nanoseconds of a frame of dates."""
    for name in frame.columns:
        kind = str(frame[name].dtype)
        if kind.lower().startswith(("date", "time", "duration", "period")):
            raise DataError(f"X: column {str(name)!r} holds {kind}, expected numbers; {DATES_HINT}")


def _check_cells(frame: Any, cause: Exception) -> None:
    """Refuse the first cell that is no finite number and not missing, if there is one.

    ``cause`` is the error of the conversion, which does not name the cell.
    """
    for name in frame.columns:
        for row, cell in enumerate(np.asarray(frame[name]).tolist()):
            if wrong := _wrong_cell(cell):
                found, expected = wrong
                raise DataError(
                    f"X: column {str(name)!r} holds {found} at row {row} (counted from 0), expected"
                    f" {expected}"
                ) from cause


def _wrong_cell(cell: Any) -> tuple[str, str] | None:
    """Return a wrong cell in words, and the values expected; None for a number or no value."""
    if is_null(cell):
        return None
    try:
        is_infinite = np.isinf(float(cell))
    except (TypeError, ValueError):
        return repr(cell)[:40], f"numbers; {ENCODE_HINT}"
    return ("infinity", "finite numbers; drop such rows") if is_infinite else None


def _check_sparse(rows: Any) -> None:
    missing = np.isnan(rows.data)
    if missing.any():
        cells, first = rows.tocoo(), missing.argmax()
        row, column = cells.row[first], cells.col[first]
        raise DataError(
            f"X: got NaN at row {row}, column {column} (counted from 0) of a sparse matrix,"
            " expected numbers; fill it in, or pass X.toarray(), in which NaN is a missing value"
        )
