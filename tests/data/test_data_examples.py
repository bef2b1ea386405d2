"""Arrays of examples passed from Python: what is taken, what is scaled, what is refused."""

import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from syncpretrain.data.blocks import CHUNK_VALUES
from syncpretrain.data.examples import visible_examples
from syncpretrain.errors import DataError

NOT_FINITE = (np.nan, np.inf, -np.inf)
X = (np.arange(24, dtype=np.float32) / 24).reshape(6, 4)


def check_examples(X, name="X"):
    return visible_examples(X, name, "bernoulli", missing=False)


def test_a_float32_array_is_not_copied():
    assert check_examples(X) is X


def test_masked_arrays_that_another_thread_is_importing(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy.ma", ModuleType("numpy.ma"))
    assert check_examples(X) is X


@settings(deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.dtype(">f4")]),
        hnp.array_shapes(min_dims=2, max_dims=2),
        elements=st.floats(0, 1, width=16),
    ),
    st.booleans(),
)
def test_numbers_in_range_keep_their_values(array, transposed):
    array = array.T if transposed else array
    checked = check_examples(array)
    assert checked.dtype == np.float32
    assert checked.flags.c_contiguous
    assert np.array_equal(checked, array)


def test_bytes_are_scaled_and_booleans_are_not():
    scaled = check_examples(np.arange(256, dtype=np.uint8).reshape(16, 16))
    assert (scaled[0, 0], scaled[15, 15]) == (0, 1)
    assert np.allclose(scaled.ravel() * 255, np.arange(256), rtol=1e-6)
    assert check_examples(np.array([[True, False]])).tolist() == [[1, 0]]
    assert check_examples([[0, 1], [1, 0]]).tolist() == [[0, 1], [1, 0]]


def test_a_rounding_error_above_one_is_one():
    assert check_examples(np.array([[1 + 1e-12]])) == 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *((x, "got {x} at row {row}, column 3 .*expected finite") for x in NOT_FINITE),
        (1.5, "got 1.5 at row {row}, column 3 .*visible_units=gaussian.*scale each column"),
        (-0.25, "got -0.25 at row {row}, column 3 .*visible_units=gaussian.*each column"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_first_bad_place_is_named(value, words, dtype):
    rows = CHUNK_VALUES // 8 + 5  # so that the place is in the second chunk
    array = np.zeros((rows, 8), dtype=dtype)
    array[-2, 3] = value
    array[-1, 0] = 7
    with pytest.raises(DataError, match=words.format(x=value, row=rows - 2)):
        check_examples(array)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(3), "shape \\(3,\\), expected \\(n_examples, width\\)"),
        (np.zeros((2, 2, 2)), "reshape"),
        (np.zeros((0, 3)), "no values"),
        (np.zeros((3, 0)), "no values"),
        (np.array([["a"]]), "type <U1, expected numbers"),
        (np.array([[None]]), "type object, expected numbers"),
        (np.array([[1j]]), "type complex128, expected numbers"),
        ([[0, 1], [0]], "no array of numbers"),
        ([np.zeros((2, 3)), np.zeros((1, 3))], "a list of 2 arrays, .* or take Minibatches"),
        ([np.zeros((2, 3))] * 2, "where each X\\[i\\] is an example; .* Minibatches\\(X\\)"),
        (np.array([[0, 2]]), "got 2 at row 0, column 1"),
        (np.array([[1e300]]), r"got 1e\+300 at row 0, column 0"),
    ],
)
def test_what_is_no_array_of_examples_is_refused(array, words):
    with pytest.raises(DataError, match=f"^Z: .*{words}"):
        check_examples(array, "Z")
