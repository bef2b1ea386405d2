"""The minibatch order: every row once an epoch, a function of its address alone."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from largerdata import LAYERS

from syncpretrain.data.order import MIXED_BLOCKS, PassOrder, minibatches, steps_per_epoch
from syncpretrain.errors import SettingsError
from syncpretrain.settings import settings_from

SEEDS = st.integers(0, 2**63 - 1)


def rows_of(examples=50, batch_size=7, *, seed=0, layer=1, epoch=1):
    address = {"seed": seed, "layer": layer, "epoch": epoch}
    return np.concatenate(list(minibatches(examples, batch_size, **address)))


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 120), SEEDS, st.integers(0, 64), st.integers(1, 500))
def test_each_row_comes_once_an_epoch(examples, batch_size, seed, layer, epoch):
    batches = list(minibatches(examples, batch_size, seed=seed, layer=layer, epoch=epoch))
    assert len(batches) == steps_per_epoch(examples, batch_size)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= batch_size
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


class TestOrder:
    @pytest.mark.parametrize("block", [0, 1, 3, 10, 200, 1000])
    @pytest.mark.parametrize(("rows", "batch"), [(1, 1), (100, 7), (997, 100), (160, 160)])
    def test_every_row_comes_once_and_any_minibatch_can_be_asked_for(self, rows, batch, block):
        order = partial(PassOrder, rows, batch, seed=1, number=2, block=block)
        steps = range(-(-rows // batch))
        one = order()
        found = [one.minibatch(step) for step in steps]
        assert sorted(np.concatenate(found)) == list(range(rows))
        for step in reversed(steps):
            np.testing.assert_array_equal(order().minibatch(step), found[step])

    def test_without_blocks_it_is_that_of_whole_epochs(self):
        order = PassOrder(50, 7, seed=4, number=3)
        for step, rows in enumerate(minibatches(50, 7, seed=4, layer=1, epoch=3)):
            np.testing.assert_array_equal(order.minibatch(step), rows)

    def test_a_minibatch_is_of_few_blocks_which_lie_anywhere(self):
        block, rows = 20, 8000
        order = PassOrder(rows, 100, seed=0, number=1, block=block)
        found = np.concatenate([order.minibatch(step) for step in range(rows // 100)])
        window = MIXED_BLOCKS * block
        for start in range(0, rows, window):
            here = np.unique(found[start : start + window] // block)
            assert len(here) == MIXED_BLOCKS
            assert here.max() - here.min() > MIXED_BLOCKS * 4, "far from each other"
        other = PassOrder(rows, 100, seed=0, number=2, block=block)
        assert set(order.minibatch(0)) != set(other.minibatch(0))

    def test_the_blocks_of_a_group_are_named(self):
        order = PassOrder(95, 10, seed=0, number=1, block=3)
        groups = list(itertools.takewhile(bool, map(order.blocks, itertools.count())))
        assert len(groups) == 2
        rows = [row for group in groups for run in group for row in range(run.start, run.stop)]
        assert sorted(rows) == list(range(95))

    @pytest.mark.parametrize(
        "text", ["blocks", "blocks:0", "blocks:-1", "blocks:1.5", "rows:3", "x"]
    )
    def test_another_word_is_refused(self, text):
        with pytest.raises(SettingsError, match=r"^shuffle: got .* expected rows, or blocks:N"):
            settings_from(LAYERS, handoff="minibatch", shuffle=text)

    def test_whole_epochs_have_no_blocks(self):
        with pytest.raises(SettingsError, match="shuffle: got blocks:5 with handoff epoch"):
            settings_from(LAYERS, shuffle="blocks:5")
