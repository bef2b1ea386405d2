"""The backends that a behavioural test runs on, and why one is left out."""

from __future__ import annotations

from typing import Any

import fakecuda
import fakecupy
import pytest

from syncpretrain.backends.base import Backend
from syncpretrain.backends.choice import USUAL_BACKEND
from syncpretrain.backends.cupy_backend import CupyBackend
from syncpretrain.backends.gpu_check import import_cupy, missing
from syncpretrain.backends.numpy_backend import NumpyBackend
from syncpretrain.kernels.dispatch import register

NO_GPU = missing()
BACKENDS = ["numpy", "double", "deferred", "cupy"]  # see fakecupy.py


def backend_of(name: str, monkeypatch: Any) -> Backend:
    """Return a backend whose forms are registered: NumPy, the stand-in for CuPy, or CuPy."""
    if name == "numpy":
        return NumpyBackend()
    monkeypatch.delenv(USUAL_BACKEND, raising=False)
    if name == "cupy" and NO_GPU is not None:
        pytest.skip(f"no CUDA GPU here: {NO_GPU}")
    if name in ("double", "deferred") and fakecuda.COMPILER is None:
        pytest.skip("no g++ here to compile the kernels' source for the CPU")
    cupy = (
        import_cupy()
        if name == "cupy"
        else fakecupy.install(monkeypatch, deferred=name == "deferred")
    )
    backend = CupyBackend(cupy)
    register(backend.array_type, dict(backend.forms))
    return backend
