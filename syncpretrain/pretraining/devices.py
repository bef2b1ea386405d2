"""The devices of a run's layers: dealt by the multiplications that each layer takes."""

from __future__ import annotations

from syncpretrain.backends.base import Backend
from syncpretrain.backends.choice import backend_for
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["backend_of_layers", "layer_costs", "placement_text"]

AUTOENCODER_PRODUCTS = 5  # of a step: as many as of CD-1


def layer_costs(settings: PretrainSettings) -> tuple[float, ...]:
    """Return the multiplications of each layer's own epochs, an example each."""
    return tuple(
        float(shape.products * epochs * _products(settings, cd_steps))
        for shape, epochs, cd_steps in zip(
            settings.shapes, settings.epochs, settings.cd_steps, strict=True
        )
    )


def backend_of_layers(settings: PretrainSettings) -> Backend:
    """Return the backend of the settings, its layers dealt to the devices that it has.

    Raises
    ------
    SettingsError
        If something is missing for it.
    """
    return backend_for(settings.backend).dealt(layer_costs(settings), settings.replicas)


def placement_text(backend: Backend, depth: int) -> str | None:
    """Return in words which layers are on which GPUs; None where all are on the first."""
    devices = backend.devices()
    groups = [backend.for_layer(layer).group() for layer in range(1, depth + 1)]
    if all(group == devices[:1] for group in groups):
        return None
    named = [
        f"{layer} on {' and '.join(map(str, devices))}" for layer, devices in enumerate(groups, 1)
    ]
    return f"layers on GPUs: {', '.join(named)}"


def _products(settings: PretrainSettings, cd_steps: int) -> int:
    return 2 * cd_steps + 3 if settings.model == "rbm" else AUTOENCODER_PRODUCTS
