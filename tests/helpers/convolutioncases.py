"""Shapes of convolutions: a list, drawn ones, and arrays for each."""

import math

import numpy as np
from hypothesis import strategies as st

from syncpretrain.kernels.convolution import scratch_size
from syncpretrain.kernels.dispatch import registered
from syncpretrain.shapes import ConvolutionShape

SHAPES = [
    ConvolutionShape(1, 6, 6, 3, 3, pool=2, channels_first=True),
    ConvolutionShape(2, 5, 7, 4, 2, pool=2),
    ConvolutionShape(3, 4, 5, 2, 3, pad=1, channels_first=True),
    ConvolutionShape(2, 7, 7, 5, 5, pad=2, pool=7),
    ConvolutionShape(4, 6, 8, 3, 3, pad=1, pool=2, pooling="mean"),
    ConvolutionShape(4, 6, 6, 6, 3, pool=2, groups=2),
    ConvolutionShape(3, 5, 4, 6, 2, pad=1, pooling="mean", channels_first=True, groups=3),
]


FORMS = registered(np.ndarray)
ASIDE = 77.0  # what lies beside the arrays


@st.composite
def shapes(draw):
    """Draw a shape whose blocks fill its maps; blocks, images and runs of many sizes."""
    size, pool = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    lengths = [pool * draw(st.integers(1, 4)) + size - 1 for _ in range(2)]  # with their pads
    pad = draw(st.integers(0, (min(lengths) - 1) // 2))
    channels, filters = (
        draw(st.sampled_from(of)) for of in ([1, 2, 3, 6, 16, 17], [1, 2, 7, 16, 20])
    )
    common = math.gcd(channels, filters)
    return ConvolutionShape(
        *(channels, *(length - 2 * pad for length in lengths), filters, size, pad, pool),
        pooling=draw(st.sampled_from(["max", "mean"])),
        channels_first=draw(st.booleans()),
        groups=draw(st.sampled_from([n for n in range(1, common + 1) if common % n == 0])),
    )


def part_of(draw, length):
    first = draw(st.integers(0, length))
    return slice(first, draw(st.integers(first, length)))


class Case:
    """Arrays of a shape, inside wider ones, of whole numbers: so that all sums are exact."""

    def __init__(self, shape, examples=3, *, seed=0, places=True):
        self.shape, self.draws = shape, np.random.default_rng(seed)
        self.x = self.whole_numbers(examples, shape.visible)
        self.weight = self.whole_numbers(shape.fan_in, shape.filters)
        self.bias = self.whole_numbers(1, shape.filters)[0]
        self.delta = self.whole_numbers(examples, shape.hidden)
        self.has_places = places
        self.places = self.unplaced()
        self.places[...] = self.draws.integers(0, shape.pool**2, self.places.shape)

    def filled(self, *shape):
        wide = np.full((shape[0], shape[1] + 9), ASIDE, dtype=np.float32)
        wide[:, 4:-5] = -7
        return wide[:, 4:-5]

    def unplaced(self):
        return self.filled(*self.delta.shape) if self.has_places else self.filled(1, 0)[0]

    def whole_numbers(self, *shape):
        array = self.filled(*shape)
        array[...] = self.draws.integers(-4, 5, shape)
        return array

    def scratch(self):
        """Return a scratch between walls, full of what no result may depend on."""
        wide = np.full(scratch_size(self.shape) + 64, np.nan, dtype=np.float32)
        wide[:32] = wide[-32:] = ASIDE
        return wide[32:-32]

    def up(self, form, units="gaussian", filters=slice(None)):
        written = self.filled(*self.delta.shape), self.unplaced()
        given = self.x, self.weight, self.bias, *written
        self.call(form, *given, units, filters, written=written)
        return written

    def gradient(self, form, filters=slice(None)):
        out = self.filled(*self.weight.shape)
        self.call(form, self.x, self.delta, self.places, out, filters, written=(out,))
        return out

    def back(self, form, channels=slice(None)):
        out = self.filled(*self.x.shape)
        self.call(form, self.delta, self.places, self.weight, out, channels, written=(out,))
        return out

    def call(self, form, *arguments, written):
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        scratch = self.scratch()
        result = form(*arrays, scratch, self.shape, *arguments[len(arrays) :])
        assert result is not NotImplemented
        for array in written:
            assert (array.base[:, :4] == ASIDE).all()
            assert (array.base[:, -5:] == ASIDE).all()
        assert (scratch.base[:32] == ASIDE).all()
        assert (scratch.base[-32:] == ASIDE).all()


class Drawn(Case):
    """A case of numbers whose digits are lost by rounding."""

    def whole_numbers(self, *shape):
        array = self.filled(*shape)
        array[...] = self.draws.normal(size=shape)
        return array
