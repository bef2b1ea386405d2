"""The default layers of a classifier, by the number of its classes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="the estimators are scikit-learn's")

from sklearn.datasets import make_blobs

from syncpretrain.sklearn import DBNClassifier

SHORT = {"epochs": 1, "finetune_epochs": 1, "workers": 1, "random_state": 0}


def fitted(classes, labels, **settings):
    """Return a classifier fitted on so many classes with so many labels each."""
    y = np.arange(classes * labels) % classes
    X = np.random.default_rng(0).normal(size=(len(y), 3))
    return DBNClassifier(**(SHORT | settings)).fit(X, y)


@pytest.mark.parametrize(("classes", "widths"), [(20, [3, 256, 64]), (21, [3, 256, 256])])
def test_many_classes_get_a_wider_code(classes, widths):
    assert list(fitted(classes, 2).stack_.widths) == widths


def test_few_classes_keep_their_bits():
    stacks = [fitted(5, 10, **given).stack_ for given in ({}, {"hidden": (256, 64)})]
    assert stacks[0].parameters_sha256 == stacks[1].parameters_sha256


def test_layers_that_are_given_stay():
    assert list(fitted(21, 2, hidden=(7, 5)).stack_.widths) == [3, 7, 5]


def test_many_classes_of_few_rows_are_told_apart():
    X, y = make_blobs(60 * 11, 20, centers=60, cluster_std=4.5, random_state=3)
    seen = np.zeros(len(y), dtype=bool)
    for label in range(60):
        seen[np.flatnonzero(y == label)[:5]] = True
    model = DBNClassifier(random_state=0, workers=1).fit(X[seen], y[seen])
    assert model.score(X[~seen], y[~seen]) > 0.84  # 0.79 with a code of 64 units
