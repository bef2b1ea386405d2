"""Estimators for scikit-learn: stacks as transformers, classifiers, regressors and detectors.

The estimators need scikit-learn 1.6 or newer, ``pip install "syncpretrain[sklearn]"``; no other
module of the library imports this one. They call :func:`syncpretrain.pretrain` and
:func:`syncpretrain.finetune`, and keep the resulting :class:`syncpretrain.Stack` as ``stack_``.
"""

from __future__ import annotations

try:
    from sklearn.utils.validation import validate_data as _needed  # noqa: F401 - new in 1.6
except ImportError as error:
    raise ImportError(
        f"syncpretrain.sklearn: scikit-learn 1.6 or newer cannot be imported ({error});"
        ' pip install "syncpretrain[sklearn]"'
    ) from error

from syncpretrain.sklearn.anomalies import StackAnomalyDetector
from syncpretrain.sklearn.predictors import DBNClassifier, DBNRegressor
from syncpretrain.sklearn.transformers import StackedAutoencoder, StackedRBM

__all__ = [
    "DBNClassifier",
    "DBNRegressor",
    "StackAnomalyDetector",
    "StackedAutoencoder",
    "StackedRBM",
]
