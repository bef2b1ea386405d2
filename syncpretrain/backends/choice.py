"""The backend that a name stands for on this machine, its kernels registered."""

from __future__ import annotations

import re

from syncpretrain.backends.base import Backend
from syncpretrain.backends.numpy_backend import NumpyBackend
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.dispatch import register

__all__ = ["backend_for", "resolve_backend", "select"]


def select(name: str = "auto") -> Backend:
    """Return the backend of a name.

    ``auto`` is CuPy where it can compute on a GPU, else NumPy; ``numpy`` and ``cupy`` are these,
    the latter with the layers dealt to all GPUs; ``cupy:1`` is the GPU of that number alone.

    Raises
    ------
    SettingsError
        If there is no such backend, or CuPy was asked for and something is missing; the message
        says what, and how to get it.
    """
    if name == "numpy":
        return NumpyBackend()
    named = re.fullmatch(r"cupy(?::(\d+))?", name)
    if named is None and name != "auto":
        raise SettingsError(f"backend: got {name!r}, expected auto, numpy, cupy or cupy:NUMBER")
    from syncpretrain.backends.cupy_backend import CupyBackend, import_cupy, missing

    device = int(named[1]) if named and named[1] else None
    lacks = missing(device)
    if lacks is not None:
        if name == "auto":
            return NumpyBackend()
        raise SettingsError(f"backend: got {name}, but {lacks}. Or take --backend numpy")
    return CupyBackend(import_cupy(), device or 0, None if device is None else (device,))


def backend_for(name: str) -> Backend:
    """Return the backend of a name, its forms of the equations registered.

    Raises
    ------
    SettingsError
        If something is missing for it; see :func:`select`.
    """
    backend = select(name)
    register(backend.array_type, dict(backend.forms))
    return backend


def resolve_backend(name: str, unless: str | None = None) -> str:
    """Return the backend that ``auto`` stands for here, or the one that was named.

    Parameters
    ----------
    name : str
        As of :class:`syncpretrain.settings.PretrainSettings`.
    unless : str, optional
        Why a GPU is not supported, as :mod:`syncpretrain.settings.devices` says; ``auto`` is NumPy
        then, and "numpy" or "cupy" by what is found otherwise.

    Raises
    ------
    SettingsError
        If something is missing for the one that was named.
    """
    if name != "auto":
        select(name)
        return name
    if unless is not None:
        return "numpy"
    return "numpy" if select("auto").name == "numpy" else "cupy"
