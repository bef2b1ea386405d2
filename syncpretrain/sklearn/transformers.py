"""Transformers: a stack of RBMs, and a stack of autoencoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from syncpretrain.errors import DataError, SettingsError
from syncpretrain.kernels.activations import activate
from syncpretrain.models.layer import check_have_odds
from syncpretrain.pretraining.online import OnlineStack
from syncpretrain.sklearn.base import StackEstimator, keep, of_numbers, rows_for, training_rows
from syncpretrain.sklearn.passes import Matrix, codes_of, decoded, energies, reconstruction_errors
from syncpretrain.units.kinds import UNITS

TransformerT = TypeVar("TransformerT", bound="StackTransformer")


class StackTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, StackEstimator):
    """Base of the transformers: codes of the top layer, and their decoding."""

    log_odds: bool
    _online: OnlineStack | None

    def fit(self: TransformerT, X: Any, y: Any = None) -> TransformerT:
        """Pretrain a stack on the rows of X.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_examples, n_features)
            NaN stands for a missing value, which is left out.
        y : ignored
        """
        self._check_odds()
        self._fit(self._rows(X, reset=True), self._seed())
        self._online = None
        return self

    def partial_fit(self: TransformerT, X: Any, y: Any = None) -> TransformerT:
        """Train the stack of the last call, or of :meth:`fit`, once more on rows.

        Each minibatch trains all layers, one above the other. The first rows decide the visible
        units and the standardization of columns; a column that was constant in them is standardized
        by the first rows in which it varies. A fine-tuned stack becomes a pretrained one. Each call
        warns of columns that lie far from the first rows, and, after 100 rows or more, of layers
        that diverged or have learned nothing yet.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_examples, n_features)
        y : ignored
        """
        begun = hasattr(self, "stack_")
        self._check_odds()
        rows: Matrix = rows_for(self, X, reset=not begun)
        if getattr(self, "_online", None) is None:
            options = self._pretraining(rows, self._seed())
            before = self.stack_ if begun else None
            self._online = OnlineStack(training_rows(rows), before, **options)
        assert self._online is not None
        names = getattr(self, "feature_names_in_", ())
        trained = self._online.train(training_rows(rows, self._online.stack), names)
        self.stack_ = self._named(of_numbers(trained))
        self._warn()
        return self

    def _fit(self, X: Matrix, seed: int) -> None:
        self.stack_ = self._pretrained_on(X, seed)
        self._warn()

    def _check_odds(self) -> None:
        """Refuse log-odds of units that have none, before anything is trained."""
        units = self._extra_settings(tuning=False).get("hidden_units") or "bernoulli"
        top = units if isinstance(units, str) else units[-1]
        if self.log_odds and top in UNITS:  # unknown units are refused as a setting
            check_have_odds(top)

    def transform(self, X: Any) -> Matrix:
        """Return the codes of the top layer.

        Returns
        -------
        ndarray of shape (n_examples, top units)
            Codes in the type of X, float32 or float64. With ``log_odds`` they are the log-odds of
            binary units, not their probabilities.
        """
        check_is_fitted(self)
        return codes_of(self.stack_, self._rows(X, reset=False), log_odds=self.log_odds)

    def inverse_transform(self, X: Any) -> Matrix:
        """Decode codes of shape (n_examples, top units) to examples."""
        check_is_fitted(self)
        codes = check_array(X, dtype=(np.float64, np.float32))
        width = self.stack_.widths[-1]
        if codes.shape[1] != width:
            raise DataError(f"X: got {codes.shape[1]} columns, expected codes of {width} units")
        if self.log_odds:
            codes = activate(codes.copy(), self.stack_.units[-1])
        return decoded(self.stack_, codes)

    def impute(self, X: Any) -> Matrix:
        """Return X with its missing values, NaN, filled in as :meth:`syncpretrain.Stack.impute`."""
        check_is_fitted(self)
        rows = self._rows(X, reset=False)
        return self.stack_.impute(rows).astype(rows.dtype, copy=False)

    @property
    def _n_features_out(self) -> int:
        return self.stack_.widths[-1]


class StackedRBM(StackTransformer):
    """Stack of RBMs, pretrained layer by layer in parallel.

    Parameters
    ----------
    hidden : sequence of int
        Units of each layer.
    epochs : int or sequence of int, optional
        Epochs of each layer, or 0 for no pretraining; None takes a number that suits the number of
        rows.
    batch_size : int, optional
        Rows of a minibatch, at most all; None takes a number that suits the number of rows.
    learning_rate : float or sequence of float, optional
        Rate of each layer; None takes a rate that suits its units.
    visible_units : str
        ``auto`` takes ``bernoulli`` if all values are in [0, 1] and have at least a fifth of the
        deviations of zeros and ones, else ``gaussian``, for which columns are standardized.
    workers : int, optional
        Layers trained at the same time; None takes all usable cores, and one inside a parallel job
        of joblib. The result does not depend on it.
    random_state : int, RandomState instance or None
    verbose : int
        1 prints a line after each epoch, or 50 to 100 lines for a layer's hundreds; 2 prints all.
    log_odds : bool
        True makes codes the log-odds of binary units instead of their probabilities.
    settings : dict, optional
        Any other setting of :func:`syncpretrain.pretrain`, such as ``{"cd_steps": 5}``.

    Attributes
    ----------
    stack_ : Stack
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if X has any.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from syncpretrain.sklearn import StackedRBM
    >>> X = load_digits().data / 16
    >>> StackedRBM(hidden=(50, 10), epochs=2, random_state=0).fit_transform(X).shape
    (1797, 10)
    """

    def __init__(
        self,
        hidden: Sequence[int] = (256, 64),
        *,
        epochs: int | Sequence[int] | None = None,
        batch_size: int | None = None,
        learning_rate: float | Sequence[float] | None = None,
        visible_units: str = "auto",
        workers: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        log_odds: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> None:
        keep(self, locals())

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return minus the free energy of each row under layer 1, in nats.

        It is the log-likelihood except for a constant; the layers above have no part in it.
        """
        check_is_fitted(self)
        return -energies(self.stack_, self._rows(X, reset=False))


class StackedAutoencoder(StackTransformer):
    """Stack of autoencoders, pretrained layer by layer, then fine-tuned as a whole.

    Parameters
    ----------
    hidden, epochs, batch_size, learning_rate, visible_units, workers, random_state
        As for :class:`StackedRBM`.
    verbose, log_odds
        As for :class:`StackedRBM`.
    model : str
        ``denoising``, ``autoencoder`` or ``contractive``.
    finetune_epochs : int, optional
        Epochs of the unrolled stack; 0 leaves it as it was pretrained, None takes a number that
        suits the number of rows.
    settings : dict, optional
        Any other setting of :func:`syncpretrain.pretrain`, and with the prefix ``finetune_`` any
        other setting of :func:`syncpretrain.finetune`.

    Attributes
    ----------
    stack_ : Stack
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if X has any.
    """

    model: str
    _models: ClassVar[tuple[str, ...]] = ("denoising", "autoencoder", "contractive")

    def __init__(
        self,
        hidden: Sequence[int] = (256, 64),
        *,
        model: str = "denoising",
        epochs: int | Sequence[int] | None = None,
        finetune_epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | Sequence[float] | None = None,
        visible_units: str = "auto",
        workers: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        log_odds: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> None:
        keep(self, locals())

    @property
    def _model(self) -> str:  # type: ignore[override]
        if self.model not in self._models:
            raise SettingsError(
                f"model: got {self.model!r}, expected one of {', '.join(self._models)}"
            )
        return self.model

    def _fit(self, X: Matrix, seed: int) -> None:
        is_tuned = self._trains(self.finetune_epochs)
        if is_tuned:
            self._check_tuning("reconstruction", self.finetune_epochs)
        stack = self._pretrained_on(X, seed)
        if is_tuned:
            stack = self._finetuned(stack, X, None, seed, self.finetune_epochs)
        self.stack_ = stack

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return minus the reconstruction error of each row.

        It is squared, as layer 1 sees the row, and averaged over the values that are not missing.
        """
        check_is_fitted(self)
        return -reconstruction_errors(self.stack_, self._rows(X, reset=False))
