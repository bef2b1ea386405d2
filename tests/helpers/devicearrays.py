"""Arrays for the tests of devices, those within larger ones, and comparisons of them."""

from collections.abc import Callable
from typing import Any

import fakecuda
import numpy as np
import pytest
from backends import backend_of

from syncpretrain.backends.base import Backend


def one_of(names: list[str], make: Callable[..., Backend] = backend_of):
    """Return a fixture of these backends."""

    @pytest.fixture(params=names)
    def made(request, monkeypatch) -> Backend:
        return make(request.param, monkeypatch)

    return made


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def same_bits(ours, theirs) -> None:
    """Fail if one of several arrays of the host differs from its like."""
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def relative(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def framed(backend: Backend, host: np.ndarray, left: int = 2, right: int = 3) -> tuple[Any, Any]:
    """Return an array within a larger one of 7, and that one."""
    rows, columns = slice(1, -1), slice(left, left + host.shape[1])
    frame = np.full((len(host) + 2, columns.stop + right), 7, dtype=np.float32)
    frame[rows, columns] = host
    frame = backend.asarray(frame)
    return frame[rows, columns], frame


def unframed(backend: Backend, frame, left: int = 2, right: int = 3) -> np.ndarray:
    """Return what is within a larger array, whose rest must be 7 as before."""
    host = backend.tohost(frame).copy()
    within = host[1:-1, left : host.shape[1] - right]
    found = within.copy()
    within[...] = 7
    np.testing.assert_array_equal(host, 7)
    return found


def in_both_orders(source: str, work: Callable[[], Any]) -> list[Any]:
    """Return what work on the stand-in returns with its threads forwards and backwards."""
    library, found = fakecuda.compiled(source), []
    try:
        for backwards in (0, 1):
            library.shim_set_backwards(backwards)
            found.append(work())
    finally:
        library.shim_set_backwards(0)
    return found
