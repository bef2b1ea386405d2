"""The estimators pass scikit-learn's own checks."""

import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="the checks are scikit-learn's")

from sklearn.utils.estimator_checks import parametrize_with_checks

from syncpretrain.sklearn import (
    DBNClassifier,
    DBNRegressor,
    StackAnomalyDetector,
    StackedAutoencoder,
    StackedRBM,
)

TINY = {"hidden": (8, 4), "epochs": 1, "batch_size": 20, "workers": 1}
ESTIMATORS = [
    StackedRBM(**TINY),
    StackedAutoencoder(**TINY, finetune_epochs=1),
    StackAnomalyDetector(**TINY, finetune_epochs=1),
    StackAnomalyDetector(**TINY, by="free-energy"),
    DBNClassifier(hidden=20, epochs=1, finetune_epochs=40, batch_size=10, workers=1),
    DBNRegressor(hidden=20, epochs=1, finetune_epochs=40, batch_size=10, workers=1),
]
EQUIVALENCE = "minibatches follow from the number of rows, and pretraining reads all rows alike"
EXPECTED = {  # by class: the check that fails, and the reason
    name: {
        f"check_sample_weight_equivalence_on_{kind}_data": EQUIVALENCE
        for kind in ("dense", "sparse")
    }
    for name in ("DBNClassifier", "DBNRegressor")
}


@parametrize_with_checks(
    ESTIMATORS, expected_failed_checks=lambda one: EXPECTED.get(type(one).__name__, {})
)
def test_checks(estimator, check):
    check(estimator)
