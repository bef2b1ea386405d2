"""The backend that a name stands for on this machine, its kernels registered."""

from __future__ import annotations

import os
import re

from syncpretrain.backends.base import Backend
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.dispatch import register

USUAL_BACKEND = "SYNCPRETRAIN_BACKEND"  # environment variable: what "auto" stands for


def select(name: str = "auto") -> Backend:
    """Return the backend of a name.

    ``auto`` is what ``SYNCPRETRAIN_BACKEND`` names, else CuPy where it can compute on a GPU, else
    NumPy; ``numpy`` and ``cupy`` are these, the latter with the layers dealt to all GPUs;
    ``cupy:1`` is the GPU of that number alone.

    Raises
    ------
    SettingsError
        If there is no such backend, or CuPy was asked for and something is missing; the message
        says what, and how to get it.
    """
    wanted = _usual() if name == "auto" else name
    source = "backend" if wanted == name else USUAL_BACKEND
    if wanted == "numpy":
        return Backend()
    named = re.fullmatch(r"cupy(?::(\d+))?", wanted)
    if named is None and wanted != "auto":
        raise SettingsError(f"{source}: got {wanted!r}, expected auto, numpy, cupy or cupy:NUMBER")
    from syncpretrain.backends.gpu_check import import_cupy, missing

    device = int(named[1]) if named and named[1] else None
    lacks = missing(device)
    if lacks is not None:
        if wanted == "auto":
            # Without a notice: several callers select a backend, and why_no_gpu gives the reason.
            return Backend()
        raise SettingsError(f"{source}: got {wanted}, but {lacks}. Or take --backend numpy")
    # Imported on use: a run on NumPy loads none of the CUDA modules.
    from syncpretrain.backends.cupy_backend import CupyBackend

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
        The setting ``backend`` of :class:`syncpretrain.settings.PretrainSettings`.
    unless : str, optional
        Reason why a GPU is not supported, as :mod:`syncpretrain.settings.devices` says; ``auto`` is
        NumPy then, and "numpy" or "cupy" by what is found otherwise.

    Raises
    ------
    SettingsError
        If something is missing for the one that was named.
    """
    if name == "auto" and unless is not None:
        return "numpy"
    backend = select(name)
    if name != "auto":
        return name
    if not backend.devices():
        return "numpy"
    # Not the backend's name, cupy:0, which would keep all layers on one GPU.
    return "cupy" if _usual() == "auto" else _usual()


def why_no_gpu(name: str, unless: str | None = None) -> str | None:
    """Return a notice that a machine has a GPU which ``auto`` does not take, and why; else None.

    The parameters have the meaning that they have in :func:`resolve_backend`.
    """
    if name != "auto" or _usual() == "numpy":
        return None
    from syncpretrain.backends.gpu_check import has_gpu, missing

    lacks = unless or missing()
    if lacks is None or not has_gpu():
        return None
    return f"there is a GPU, but backend auto is numpy: {lacks}"


def why_no_fused_steps(name: str, precision: str, *, tunes: bool = False) -> str | None:
    """Return a notice that GPUs of a backend cannot make whole steps as they should; else None.

    A fine-tuning (``tunes``) has steps of its own, on one GPU.
    """
    if name == "numpy":
        return None
    from syncpretrain.backends.cuda_fused import why_not_fused

    backend = select(name)
    devices = backend.devices()[:1] if tunes else backend.devices()
    found = (why_not_fused(backend.xp, device, precision, tunes=tunes) for device in devices)
    return next(filter(None, found), None)


def _usual() -> str:
    """Return what stands for "auto"."""
    return os.environ.get(USUAL_BACKEND) or "auto"
