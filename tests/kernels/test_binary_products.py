"""Products of states that are 0 or 1."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncpretrain.kernels import native
from syncpretrain.kernels.activations import binary_product

VISIBLE = [1, 3, 31, 32, 33, 64, 96, 150]
ROWS = 24  # with fewer the compiled form leaves the work to NumPy's
needs_extension = pytest.mark.skipif(not native.available(), reason="of the compiled form")


def compiled(states, weight, out):
    return native.extension.binary_product(states, weight, out)


def drawn(rows, hidden, visible, seed=0):
    draws = np.random.default_rng(seed)
    states = (draws.random((rows, hidden)) < 0.4).astype(np.float32)
    return states, draws.normal(size=(visible, hidden)).astype(np.float32)


@given(st.integers(1, 60), st.integers(1, 120), st.sampled_from(VISIBLE), st.data())
@settings(max_examples=60, deadline=None)
def test_both_forms_agree(rows, hidden, visible, data):
    states, weight = drawn(rows, hidden, visible, data.draw(st.integers(0, 99)))
    expected = states.astype(float) @ weight.T
    for form in (binary_product, binary_product.__wrapped__):
        wide = np.full((rows + 2, visible + 2), 7, dtype=np.float32)
        out = wide[1:-1, 1:-1]
        form(states, weight, out=out)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-4)
        out[:] = 7
        assert (wide == 7).all(), "wrote beside the array"


@needs_extension
def test_a_sum_depends_on_its_own_row_alone():
    states, weight = drawn(90, 70, 77)
    whole, part = np.empty((90, 77), np.float32), np.empty((ROWS, 77), np.float32)
    assert compiled(states, weight, whole) is None
    assert compiled(states[31 : 31 + ROWS], weight, part) is None
    np.testing.assert_array_equal(part, whole[31 : 31 + ROWS])


@needs_extension
@pytest.mark.parametrize(
    ("rows", "state"), [(ROWS, 0.5), (ROWS, -1), (ROWS, 2), (ROWS, np.nan), (ROWS - 1, 1)]
)
def test_other_states_and_few_rows_are_left_to_the_dense_product(rows, state):
    states, weight = drawn(rows, 10, 40)
    states[-1, -1] = state
    out = np.full((rows, 40), 7, dtype=np.float32)
    assert compiled(states, weight, out) is NotImplemented
    assert (out == 7).all()
    binary_product(states, weight, out=out)
    np.testing.assert_array_equal(out, states @ weight.T)


@needs_extension
def test_arrays_that_do_not_fit_are_left_alone():
    states, weight = drawn(ROWS, 10, 40)
    out = np.empty((ROWS, 40), dtype=np.float32)
    for arguments in (
        (states[:, :9], weight, out),
        (states, weight, out[:, :39]),
        (states, weight, out[:-1]),
        (states.astype(float), weight, out),
        (states, out[:, :10], out),
    ):
        assert compiled(*arguments) is NotImplemented


@needs_extension
def test_a_number_that_is_not_finite_stays_where_it_counts():
    states, weight = drawn(ROWS, 10, 40)
    weight[3, 4] = np.nan
    out = np.empty((ROWS, 40), dtype=np.float32)
    assert compiled(states, weight, out) is None
    np.testing.assert_array_equal(np.isnan(out[:, 3]), states[:, 4] == 1)
    assert np.isfinite(np.delete(out, 3, axis=1)).all()
