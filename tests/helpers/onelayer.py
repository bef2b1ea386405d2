"""The settings of one layer, for a learner without a stack."""

from __future__ import annotations

from syncpretrain.settings import settings_from
from syncpretrain.settings.fields import LayerSettings

__all__ = ["layer_settings"]

USUAL = settings_from([2, 2], model="autoencoder", loss="squared", weight_decay=0.0).pretrain


def layer_settings(**given: object) -> LayerSettings:
    """Return the usual settings, but without decay and with the squared loss, or the given ones."""
    return LayerSettings(**{**vars(USUAL.of_layer(1)), **given})
