"""A generator whose numbers are functions of its address, and whose arrays are on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from syncpretrain.rng import Address

__all__ = ["DeviceDraws"]


class DeviceDraws:
    """The numbers at an address, in float32 arrays on a device.

    Uniform ones are those of NumPy's generator. Normal ones are the device's own: each pair is made
    of one word of the generator (Box and Muller 1958), where NumPy's ziggurat takes a varying
    number of words, one after another. See :class:`syncpretrain.backends.base.Draws`.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    address : Address
    fill : callable
        Fills an array with the "uniform" or "normal" numbers of an address from a given one on.
    """

    def __init__(
        self, cupy: Any, address: Address, fill: Callable[[str, Any, Address, int], None]
    ) -> None:
        self._cupy, self._address, self._fill = cupy, address, fill
        self._drawn = 0  # numbers so far

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Return or fill an array of uniform draws in [0, 1).

        Raises
        ------
        TypeError
            If they are not to be float32.
        """
        return self._filled("uniform", size, dtype, out)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Return or fill an array of standard normal draws.

        Raises
        ------
        TypeError
            If they are not to be float32.
        """
        self._drawn += self._drawn % 2  # a pair is of one word, of which no uniform number was made
        return self._filled("normal", size, dtype, out)

    def _filled(self, kind: str, size: Any, dtype: Any, out: Any) -> Any:
        given = np.dtype(dtype) if out is None else out.dtype
        if np.dtype(dtype) != np.float32 or given != np.float32:
            raise TypeError(f"dtype: got {given}, expected float32: the draws of a device are that")
        if out is None:
            out = self._cupy.empty(() if size is None else size, dtype=np.float32)
        self._fill(kind, out, self._address, self._drawn)
        self._drawn += out.size
        return out
