"""Normal draws and states with the same bits on every processor.

Uniform draws and the states of binary units have them anyway. NumPy's normal draws end in the
logarithm of the C library, and the sigmoid of rectified units is NumPy's exponential: both differ
in the last bit between processors or versions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from syncpretrain.kernels.activations import means
from syncpretrain.kernels.arrays import Array
from syncpretrain.kernels.contrastive_divergence import draw_noise, sample, sample_states
from syncpretrain.kernels.dispatch import accelerated
from syncpretrain.rng import Address
from syncpretrain.units.kinds import kind_of, sample_rectified


@accelerated
def fill_normal(out: Array, address: Address) -> None:
    """Fill a float32 array with the first normal draws at an address, row by row.

    The compiled form has the same bits everywhere; one in a million draws, far from 0, differs in
    the last bit from NumPy's, which this form takes.
    """
    address.generator().standard_normal(out=out, dtype=np.float32)


class FixedDraws:
    """The draws at an address, under the names that NumPy's generators have.

    Parameters
    ----------
    address : Address
        One array of draws is taken from it.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self.random = address.generator().random

    def standard_normal(self, size: Any = None, dtype: Any = None, out: Any = None) -> Array:
        """Return normal draws of float32 in a shape, in ``out`` if it is given."""
        drawn: Array = np.empty(size, dtype=np.float32) if out is None else out
        fill_normal(drawn, self._address)
        return drawn


def sample_fixed(
    x: Array, bias: Array, units: str, address: Address, *, noise: Array, out: Array
) -> Array:
    """Do what :func:`sample_states` does, with normal draws and a sigmoid of the same bits.

    States in blocks are drawn by :func:`sample_states`.
    """
    kind = kind_of(units)
    if kind.noise != "normal" or kind.blocks is not None:
        return sample_states(x, bias, units, address, noise=noise, out=out)
    x += bias
    draw_noise(FixedDraws(address), units, out=noise)
    if kind.name != "relu":
        return sample(x, units, noise, out=out)
    sample_rectified(np, x, noise, out, lambda np, x: means(x, np.zeros_like(bias), "bernoulli"))
    return out
