"""The split: a partition, the same share of every class, a function of the seed."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from syncpretrain.data.dataset import Rows, from_rows, hold_out, stratified_split
from syncpretrain.errors import DataError


@st.composite
def splits(draw):
    labels = np.array(draw(st.lists(st.integers(-2, 5), min_size=1, max_size=80)))
    return labels, draw(st.integers(0, len(labels) - 1)), draw(st.integers(0, 2**63 - 1))


def is_partition(kept, held, n, held_out):
    whole = np.concatenate([kept, held])
    ascending = all(np.array_equal(rows, np.sort(rows)) for rows in (kept, held))
    return ascending and len(held) == held_out and np.array_equal(np.sort(whole), np.arange(n))


class TestSplit:
    @settings(deadline=None)
    @given(splits(), st.sampled_from(["none", "proportional", "equal"]))
    @example((np.array([1, 2, 1]), 0, 0), "proportional")
    def test_a_split_is_a_partition_that_the_seed_repeats(self, case, kind):
        labels, held_out, seed = case
        given_labels = None if kind == "none" else labels
        options = {"held_out": held_out, "seed": seed, "equal_classes": kind == "equal"}
        kept, held = stratified_split(given_labels, len(labels), **options)
        assert is_partition(kept, held, len(labels), held_out)
        again = stratified_split(given_labels, len(labels), **options)
        assert np.array_equal(kept, again[0])
        assert np.array_equal(held, again[1])

    @settings(deadline=None)
    @given(splits())
    def test_each_class_gives_its_proportion_to_within_one_row(self, case):
        labels, held_out, seed = case
        _, held = stratified_split(labels, len(labels), held_out=held_out, seed=seed)
        for label in np.unique(labels):
            exact = held_out * np.mean(labels == label)
            assert abs(np.sum(labels[held] == label) - exact) < 1 - 1e-9

    @settings(deadline=None)
    @given(splits())
    def test_equal_shares_differ_by_one_at_most_unless_a_class_is_used_up(self, case):
        labels, held_out, seed = case
        options = {"held_out": held_out, "seed": seed, "equal_classes": True}
        kept, held = stratified_split(labels, len(labels), **options)
        counts = {label: np.sum(labels[held] == label) for label in np.unique(labels)}
        most = max(counts.values())
        assert all(n >= most - 1 or label not in labels[kept] for label, n in counts.items())

    def test_ties_do_not_always_fall_to_the_low_labels(self):
        labels = np.arange(20)
        held = [stratified_split(labels, 20, held_out=5, seed=i)[1].mean() for i in range(200)]
        assert abs(np.mean(held) - 9.5) < 1

    def test_rows_are_drawn_uniformly_without_labels(self):
        counts = np.zeros(10)
        for seed in range(400):
            counts[stratified_split(None, 10, held_out=3, seed=seed)[1]] += 1
        assert np.all(np.abs(counts - 120) < 50)  # five standard deviations

    @pytest.mark.parametrize("other", [{"seed": 1}, {"step": 1}])
    def test_another_seed_or_step_has_another_split(self, other):
        first = stratified_split(None, 1000, held_out=100, seed=0)[1]
        second = stratified_split(None, 1000, held_out=100, **{"seed": 0, **other})[1]
        assert not np.array_equal(first, second)

    @pytest.mark.parametrize(("n", "held_out"), [(5, 5), (5, 6), (5, -1), (1, 1)])
    def test_what_leaves_nothing_is_refused(self, n, held_out):
        with pytest.raises(DataError, match=f"got {held_out} of {n} examples"):
            stratified_split(None, n, held_out=held_out, seed=0)

    def test_labels_must_be_one_an_example(self):
        with pytest.raises(DataError, match=r"got shape \(2,\), expected \(3,\)"):
            stratified_split(np.array([0, 1]), 3, held_out=1, seed=0)


class TestFractions:
    @pytest.mark.parametrize("validation", [1.0, -0.1, 2, float("nan")])
    def test_a_fraction_outside_its_range_is_refused(self, validation):
        with pytest.raises(DataError, match="validation: got"):
            hold_out(np.arange(10), None, validation=validation, default=1, seed=0)

    @pytest.mark.parametrize(
        ("validation", "held"), [(None, 2), (0, 0), (0.0, 0), (0.25, 5), (0.001, 1), (0.5, 10)]
    )
    def test_a_fraction_becomes_a_number_of_rows(self, validation, held):
        train, validate = hold_out(np.arange(20), None, validation=validation, default=2, seed=0)
        assert is_partition(train, validate, 20, held)

    def test_rows_and_labels_stay_together(self):
        X, labels = np.repeat(np.arange(10.0)[:, None] / 10, 3, axis=1), np.arange(10)
        train, held = hold_out(np.arange(10), labels, validation=0.3, default=0, seed=0)
        data = from_rows("n", Rows(X, labels), source="s", parts=(train, held, np.arange(0)))
        assert np.allclose(data.train[:, 0] * 10, data.train_labels)
        assert np.allclose(data.validation[:, 2] * 10, data.validation_labels)
        assert (data.test.shape, data.width) == ((0, 3), 3)
        assert data.train.dtype == data.test.dtype == np.float32
