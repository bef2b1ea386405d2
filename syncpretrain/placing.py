"""Resolve the backend setting on this machine and register the backend's kernels."""

from __future__ import annotations

from syncpretrain.backends.base import Backend
from syncpretrain.backends.choice import select
from syncpretrain.kernels.dispatch import register

__all__ = ["backend_for", "resolve_backend"]


def backend_for(name: str) -> Backend:
    """Return the backend of a name, its forms of the equations registered.

    Raises
    ------
    SettingsError
        If something is missing for it; see :func:`syncpretrain.backends.choice.select`.
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
