from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncpretrain.kernels import averaging as tree
from syncpretrain.kernels.averaging import add_tree
from syncpretrain.parallel import tree_mean


def parts_of(seed: int, shards: int, size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-4, 5, (shards, 1))
    return list((rng.standard_normal((shards, size)) * scales).astype(np.float32))


def mean_of(parts, weights=None):
    return tree_mean(parts, out=np.full_like(parts[0], np.nan), weights=weights)


def bound(parts, weights=None):
    """Half a unit in the last place an operation, of the sum of what is added."""
    shares = np.ones(len(parts)) if weights is None else np.asarray(weights, np.float64)
    shares = shares / shares.sum()
    exact = sum(w * p.astype(np.float64) for w, p in zip(shares, parts, strict=True))
    size = sum(w * np.abs(p.astype(np.float64)) for w, p in zip(shares, parts, strict=True))
    roundings = (len(parts) - 1).bit_length() + 2
    return exact, roundings * 2.0**-24 * 1.001 * size + 1e-40


@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(0, 300), st.data())
def test_the_mean_is_exact_within_rounding_and_any_slice_of_it_has_its_bits(
    seed, shards, size, data
):
    parts = parts_of(seed, shards, size)
    before = [part.copy() for part in parts]
    whole = mean_of(parts)
    exact, error = bound(parts)
    assert (np.abs(whole - exact) <= error).all()
    assert all(np.array_equal(a, b) for a, b in zip(parts, before, strict=True)), "left as they are"
    start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    np.testing.assert_array_equal(mean_of([part[start:stop] for part in parts]), whole[start:stop])


@given(
    st.integers(0, 2**32),
    st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=12).filter(
        lambda weights: sum(weights) > 1e-3
    ),
)
def test_weights_count_as_their_share(seed, weights):
    parts = parts_of(seed, len(weights), 40)
    exact, error = bound(parts, weights)
    assert (np.abs(mean_of(parts, weights) - exact) <= error).all()


@pytest.mark.parametrize("shards", range(1, 18))
def test_the_tree_is_that_of_the_learners(shards):
    parts = parts_of(shards, shards, 33)
    expected = add_tree([part.copy() for part in parts]) / np.float32(shards)
    np.testing.assert_array_equal(mean_of(parts), expected)


@pytest.mark.parametrize("size", [tree.BLOCK - 1, tree.BLOCK, 2 * tree.BLOCK + 5])
@pytest.mark.parametrize("weights", [None, [1, 2, 0, 4, 5, 6]])
def test_blocks_do_not_show(size, weights):
    parts = parts_of(3, 6, size)
    short = tree.BLOCK // 3  # each of one block
    pieces = [slice(start, start + short) for start in range(0, size, short)]
    expected = [mean_of([part[piece] for part in parts], weights) for piece in pieces]
    np.testing.assert_array_equal(mean_of(parts, weights), np.concatenate(expected))


def test_equal_weights_have_the_bits_of_none():
    parts = parts_of(1, 5, 50)
    np.testing.assert_array_equal(mean_of(parts, [0.3] * 5), mean_of(parts))


@pytest.mark.parametrize("weights", [None, [0.1]])
def test_the_mean_of_one_part_is_a_copy(weights):
    (part,) = parts_of(1, 1, 50)
    np.testing.assert_array_equal(mean_of([part], weights), part)


@pytest.mark.parametrize("left_out", [(0,), (1,), (0, 1), (0, 1, 2), (2, 3), (4,), (0, 2, 4)])
def test_a_part_of_weight_0_is_not_read(left_out):
    parts = parts_of(2, 5, 30)
    weights = [0.0 if i in left_out else float(i + 1) for i in range(5)]
    expected = mean_of(
        [np.zeros_like(p) if i in left_out else p for i, p in enumerate(parts)], weights
    )
    for i in left_out:
        parts[i].fill(np.nan)
    np.testing.assert_array_equal(mean_of(parts, weights), expected)
    assert np.isfinite(expected).all()
    assert expected.any()


@pytest.mark.parametrize(
    "weights", [[1, 2], [1, 2, 3, 4], [1, -1, 2], [0, 0, 0], [1, np.nan, 1], [1, np.inf, 1]]
)
def test_weights_that_make_no_mean_are_refused(weights):
    with pytest.raises(ValueError, match=r"^weights: got"):
        mean_of(parts_of(0, 3, 4), weights)


def test_parts_that_do_not_fit_are_refused():
    good, out = np.zeros(4, np.float32), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="parts: got none"):
        tree_mean([], out=out)
    for bad in (np.zeros(5, np.float32), np.zeros(4), np.zeros((2, 2), np.float32)):
        with pytest.raises(ValueError, match=r"part 1: got .* expected float32 of shape \(4,\)"):
            tree_mean([good, bad], out=out)
    with pytest.raises(ValueError, match="out: got float64"):
        tree_mean([good], out=np.zeros(4))
