"""A generator whose numbers are NumPy's, and whose arrays are on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from syncpretrain.rng import Address

__all__ = ["DeviceDraws"]


class DeviceDraws:
    """The numbers of NumPy's generator at an address, in float32 arrays on a device.

    Uniform ones are made there; normal ones, whose ziggurat takes a varying number of draws one
    after another, on the host, and copied. See :class:`syncpretrain.backends.base.Draws`.

    Parameters
    ----------
    cupy : module
        CuPy, or what stands in for it in a test.
    address : Address
    fill_uniform : callable
        Fills an array with the numbers of an address from a given one on.
    refuse : callable
        Refuses to be recorded, with the reason, where numbers are made on the host: a recorded copy
        would be of the same numbers each time.
    """

    def __init__(
        self,
        cupy: Any,
        address: Address,
        fill_uniform: Callable[[Any, Address, int], None],
        refuse: Callable[[str], None],
    ) -> None:
        self._cupy, self._address = cupy, address
        self._fill, self._refuse = fill_uniform, refuse
        self._drawn = 0  # uniform numbers so far
        self._host: np.random.Generator | None = None  # once it has drawn, it goes on

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Return or fill an array of uniform draws in [0, 1).

        Raises
        ------
        TypeError
            If they are not to be float32.
        """
        out = self._array(size, dtype, out)
        if self._host is not None:
            return self._copy(self._host.random(out.shape, dtype=np.float32), out)
        self._fill(out, self._address, self._drawn)
        self._drawn += out.size
        return out

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Return or fill an array of standard normal draws.

        Raises
        ------
        TypeError
            If they are not to be float32.
        """
        out = self._array(size, dtype, out)
        if self._host is None:
            self._host = self._address.generator()
            self._host.random(self._drawn, dtype=np.float32)  # which were made on the device
        return self._copy(self._host.standard_normal(out.shape, dtype=np.float32), out)

    def _array(self, size: Any, dtype: Any, out: Any) -> Any:
        kind = np.dtype(dtype) if out is None else out.dtype
        if np.dtype(dtype) != np.float32 or kind != np.float32:
            raise TypeError(f"dtype: got {kind}, expected float32: the draws of a device are that")
        if out is None:
            return self._cupy.empty(() if size is None else size, dtype=np.float32)
        return out

    def _copy(self, host: Any, out: Any) -> Any:
        self._refuse("normal numbers are drawn on the host")
        out[...] = self._cupy.asarray(host)
        return out
