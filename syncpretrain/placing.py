"""Where a run computes: the settings' backend as it is on this machine, ready for the equations."""

from __future__ import annotations

from syncpretrain.backends.base import Backend
from syncpretrain.backends.choice import select

# The equations, which a backend's faster forms stand in for, are known once these are imported.
from syncpretrain.kernels import activations, contrastive_divergence, errors, optimizers
from syncpretrain.kernels.dispatch import register
from syncpretrain.settings import FinetuneSettings, PretrainSettings
from syncpretrain.settings.devices import why_not_on_a_device, why_not_tuned_on_a_device

__all__ = ["EQUATIONS", "backend_for", "resolved_backend", "resolved_tuning"]

EQUATIONS = (activations, contrastive_divergence, errors, optimizers)


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


def resolved_backend(pretrain: PretrainSettings, finetune: FinetuneSettings | None = None) -> str:
    """Return what ``auto`` stands for here, or the backend that was named.

    That is "numpy" or "cupy": NumPy where there is no GPU to compute on, or where something was
    asked for that is done on the CPU alone.

    Raises
    ------
    SettingsError
        If something is missing for the one that was named.
    """
    if pretrain.backend != "auto":
        select(pretrain.backend)
        return pretrain.backend
    lacks = why_not_on_a_device(pretrain)
    if finetune is not None:
        lacks = lacks or why_not_tuned_on_a_device(finetune)
    return "numpy" if lacks else _auto()


def resolved_tuning(name: str, finetune: FinetuneSettings) -> str:
    """Return what ``auto`` stands for in a fine-tuning alone, or the backend that was named."""
    if name != "auto":
        return name
    return "numpy" if why_not_tuned_on_a_device(finetune) else _auto()


def _auto() -> str:
    return "numpy" if select("auto").name == "numpy" else "cupy"
