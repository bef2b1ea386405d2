"""The estimators; where scikit-learn is missing, a test module that imports this is skipped."""

import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="the estimators are scikit-learn's")

from syncpretrain.sklearn import (
    DBNClassifier,
    DBNRegressor,
    StackAnomalyDetector,
    StackedAutoencoder,
    StackedRBM,
)

ESTIMATORS = [DBNClassifier, DBNRegressor, StackAnomalyDetector, StackedAutoencoder, StackedRBM]
