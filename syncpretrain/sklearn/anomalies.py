"""Detector of outliers by reconstruction errors or free energies of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted

from syncpretrain.errors import SettingsError
from syncpretrain.sklearn.base import StackEstimator, keep
from syncpretrain.sklearn.passes import Matrix, Usual, energies

WIDER, WIDEST = 4, 512  # units of the wide layer: this many times the columns, and at most
NARROWER, SMALLEST_CODE, LARGEST_CODE = 4, 2, 64
MODEL_OF_SCORE = {"reconstruction": "denoising", "free-energy": "rbm"}


class StackAnomalyDetector(OutlierMixin, StackEstimator):
    """Detector of outliers: rows that a stack reconstructs badly, or finds improbable.

    Parameters
    ----------
    hidden : sequence of int, optional
        Units of each layer. None takes a wide layer and, for ``reconstruction``, a code of linear
        units, a quarter as many as the columns: it holds only the common structure of the rows.
    epochs, batch_size, learning_rate, visible_units, workers, random_state, verbose
        As for :class:`StackedRBM`.
    by : str
        ``reconstruction``: a stack of denoising autoencoders, fine-tuned as a whole. The score
        combines the squared errors of the columns, each as a multiple of its usual error, and the
        Mahalanobis distance of the code from the usual codes: a row far from all others in the
        directions of the code is reconstructed well. ``free-energy``: the free energy under layer 1
        of a stack of RBMs.
    contamination : float
        Share of outliers among the rows to fit, above 0 and at most 0.5.
    finetune_epochs : int, optional
        As for :class:`StackedAutoencoder`.
    settings : dict, optional
        As for :class:`StackedAutoencoder`.

    Attributes
    ----------
    stack_ : Stack
    offset_ : float
        Score below which a row is an outlier.
    decision_scores_ : ndarray of shape (n_examples,)
        Minus the scores of the rows to fit: outliers have larger ones, as in PyOD.
    threshold_ : float
        Minus ``offset_``, as in PyOD.
    labels_ : ndarray of shape (n_examples,)
        1 for the outliers among the rows to fit, else 0, as in PyOD.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if X has any.
    """

    by: str
    contamination: float

    def __init__(
        self,
        hidden: Sequence[int] | None = None,
        *,
        by: str = "reconstruction",
        contamination: float = 0.1,
        epochs: int | Sequence[int] | None = None,
        finetune_epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | Sequence[float] | None = None,
        visible_units: str = "auto",
        workers: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        keep(self, locals())

    @property
    def _model(self) -> str:  # type: ignore[override]
        return MODEL_OF_SCORE[self.by]

    def _widths(self, columns: int) -> list[int]:
        """Return the units of each layer; a free energy needs only layer 1."""
        if self.hidden is None:
            wide, code = min(WIDER * columns, WIDEST), max(SMALLEST_CODE, columns // NARROWER)
            widths = [wide, min(code, LARGEST_CODE)]
        else:
            widths = super()._widths(columns)
        return widths[:1] if self.by == "free-energy" else widths

    def _pretraining(self, X: Matrix, seed: int) -> dict[str, Any]:
        """Return the settings of pretraining, with a linear code if the user gave no layers."""
        options = super()._pretraining(X, seed)
        if self.hidden is None and len(options["layers"]) > 2:
            options.setdefault("hidden_units", ["bernoulli", "gaussian"])
        return options

    def fit(self, X: Any, y: Any = None) -> StackAnomalyDetector:
        """Train a stack on the rows of X, which may contain outliers, and find the threshold.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_examples, n_features)
        y : ignored
        """
        if self.by not in MODEL_OF_SCORE:
            raise SettingsError(f"by: got {self.by!r}, expected {' or '.join(MODEL_OF_SCORE)}")
        is_number = isinstance(self.contamination, (int, float, np.number))
        if not is_number or not 0 < self.contamination <= 0.5:
            raise SettingsError(
                f"contamination: got {self.contamination!r}, expected a share above 0 and of at"
                " most 0.5"
            )
        if self.by == "free-energy" and not self._trains(self.epochs):
            raise SettingsError(
                f"epochs: got {self.epochs!r} with by free-energy, expected one or more, since"
                " random weights find no row improbable; or take by reconstruction"
            )
        is_tuned = self.by == "reconstruction" and self._trains(self.finetune_epochs)
        if is_tuned:
            self._check_tuning("reconstruction", self.finetune_epochs)
        rows, seed = self._rows(X, reset=True), self._seed()
        self.stack_ = self._pretrained_on(rows, seed)
        if is_tuned:
            self.stack_ = self._finetuned(self.stack_, rows, None, seed, self.finetune_epochs)
        if self.by == "reconstruction":
            self._usual = Usual.of(self.stack_, rows)
        scores = self._scores(rows)
        self.offset_ = float(np.percentile(scores, 100 * self.contamination))
        self.decision_scores_, self.threshold_ = -scores, -self.offset_
        self.labels_ = (scores < self.offset_).astype(int)
        return self

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return the score of each row: outliers have lower scores."""
        check_is_fitted(self)
        return self._scores(self._rows(X, reset=False))

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the scores minus ``offset_``: below 0 for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Return -1 for outliers and 1 for the others."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def _scores(self, X: Matrix) -> NDArray[np.float64]:
        if self.by == "free-energy":
            return -energies(self.stack_, X)
        return -self._usual.strangeness(self.stack_, X)
