"""The data as it is sent to ranks: fewer bytes, and every bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from syncpretrain.data import blocks
from syncpretrain.data.blocks import ByteRows
from syncpretrain.workers.ranks.worker import received, to_send


def same_bits(one, other):
    return one.dtype == other.dtype and np.array_equal(one.view(np.int32), other.view(np.int32))


def test_images_travel_as_bytes():
    pixels = np.arange(3 * 2**19, dtype=np.uint32).astype(np.uint8).reshape(-1, 512)
    train = pixels / np.float32(255)
    sent, small = to_send((train, train[:10]))
    assert isinstance(sent, ByteRows)
    assert sent.numbers.nbytes == train.nbytes // 4
    assert small.base is train, "what is small stays as it is"
    again, few = received((sent, small))
    assert same_bits(again, train)
    assert same_bits(few, train[:10])


@pytest.mark.parametrize("odd", [0.1, -1e-6, 1.0001, 300.0, -0.0, np.nan, np.inf, 1e-30])
@pytest.mark.parametrize("place", [0, -1])
def test_one_value_that_is_no_byte_keeps_all_as_they_are(odd, place):
    train = np.ones((2**10, 2**10), dtype=np.float32)
    train.flat[place] = odd
    assert to_send((train,))[0] is train


@given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements=st.one_of(
            st.floats(width=32),
            st.integers(0, 255).map(lambda n: float(np.float32(n) / np.float32(255))),
        ),
    )
)
def test_whatever_is_sent_arrives(rows):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "LEAST_BYTES", 0)
        patched.setattr(blocks, "BLOCK_VALUES", 4)  # some blocks of rows
        again, none = received(to_send((rows, rows[:0])))
    assert same_bits(again, rows)
    assert none.shape == (0, rows.shape[1])


def test_what_is_no_array_is_sent_as_it_is():
    class Sparse:
        pass

    own = Sparse()
    assert to_send((own,)) == (own,)
