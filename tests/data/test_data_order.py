"""The minibatch order: every row once an epoch, a function of its address alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncpretrain.data.order import minibatches, steps_per_epoch

SEEDS = st.integers(0, 2**63 - 1)


def rows_of(examples=50, batch_size=7, *, seed=0, layer=1, epoch=1):
    return np.concatenate(
        list(minibatches(examples, batch_size, seed=seed, layer=layer, epoch=epoch))
    )


@pytest.mark.parametrize(
    ("examples", "batch_size", "steps"),
    [(100, 100, 1), (100, 101, 1), (101, 100, 2), (50_000, 100, 500), (1, 1, 1), (7, 3, 3)],
)
def test_an_epoch_has_this_many_steps(examples, batch_size, steps):
    assert steps_per_epoch(examples, batch_size) == steps


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 120), SEEDS, st.integers(0, 64), st.integers(1, 500))
def test_each_row_comes_once_an_epoch(examples, batch_size, seed, layer, epoch):
    batches = list(minibatches(examples, batch_size, seed=seed, layer=layer, epoch=epoch))
    assert len(batches) == steps_per_epoch(examples, batch_size)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(examples))


@settings(deadline=None)
@given(SEEDS, st.integers(0, 64), st.integers(1, 500))
def test_the_order_depends_on_its_address_alone(seed, layer, epoch):
    first = rows_of(seed=seed, layer=layer, epoch=epoch)
    rows_of(seed=seed, layer=layer, epoch=epoch + 1)  # drawing another in between changes nothing
    np.random.default_rng(0).random()
    assert np.array_equal(first, rows_of(seed=seed, layer=layer, epoch=epoch))


@pytest.mark.parametrize("other", [{"seed": 1}, {"layer": 2}, {"epoch": 2}])
def test_another_address_has_another_order(other):
    assert not np.array_equal(rows_of(), rows_of(**other))


def test_the_batch_size_only_cuts_the_order():
    assert np.array_equal(rows_of(batch_size=7), rows_of(batch_size=50))
