"""Training examples of which only some keep their labels."""

from dataclasses import replace

import numpy as np
import pytest

from syncpretrain.data.dataset import UNLABELLED, Dataset
from syncpretrain.errors import DataError


def make_data(sizes: tuple[int, ...] = (30, 30, 30), *, unlabelled: int = 0) -> Dataset:
    """Classes 3, 7, ... of these sizes, in random order."""
    labels = np.repeat(3 + 4 * np.arange(len(sizes)), sizes)
    labels = np.concatenate([labels, np.full(unlabelled, UNLABELLED)])
    labels = np.random.default_rng(0).permutation(labels)
    X = np.zeros((len(labels), 2), dtype=np.float32)
    return Dataset("made", "a test", X, X[:1], X[:1], labels, labels[:1], labels[:1])


def kept(data: Dataset, count: int, seed: int = 0) -> np.ndarray:
    return np.flatnonzero(data.with_labels(count, seed=seed).train_labels != UNLABELLED)


@pytest.mark.parametrize("sizes", [(30, 30, 30), (1, 7, 20), (4, 4, 5)])
@pytest.mark.parametrize("unlabelled", [0, 9])
@pytest.mark.parametrize("seed", [0, 1])
def test_all_classes_have_as_many_or_all_of_theirs_and_fewer_are_a_part_of_more(
    sizes, unlabelled, seed
):
    data = make_data(sizes, unlabelled=unlabelled)
    before: set[int] = set()
    for count in range(1, sum(sizes) + 1):
        now = set(kept(data, count, seed).tolist())
        assert len(now) == count
        assert before < now
        labels = data.train_labels[list(now)].tolist()
        numbers = [labels.count(3 + 4 * i) for i in range(len(sizes))]
        assert all(
            n >= max(numbers) - 1 or n == size for n, size in zip(numbers, sizes, strict=True)
        )
        before = now


@pytest.mark.parametrize("count", [12, 90])
def test_labels_that_stay_are_those_that_were(count):
    data = make_data(unlabelled=5)
    rows = kept(data, count)
    found = data.with_labels(count)
    np.testing.assert_array_equal(found.train_labels[rows], data.train_labels[rows])
    assert found.train is data.train
    assert found.test_labels is data.test_labels
    assert (data.train_labels == UNLABELLED).sum() == 5, "the data itself is as it was"


def test_the_seed_decides():
    data = make_data()
    np.testing.assert_array_equal(kept(data, 9), kept(data, 9))
    assert set(kept(data, 9)) != set(kept(data, 9, seed=1))


def test_few_labels_may_be_fewer_still():
    data = make_data()
    assert set(kept(data.with_labels(30), 6)) < set(kept(data, 30))


@pytest.mark.parametrize("count", [0, -1, 91])
def test_counts_that_there_are_not(count):
    with pytest.raises(DataError, match=rf"labels: got {count}, expected 1 to 90, those there are"):
        make_data(unlabelled=4).with_labels(count)


def test_data_without_labels():
    with pytest.raises(DataError, match="labels: got 3, but made has no labels"):
        replace(make_data(), train_labels=None).with_labels(3)
