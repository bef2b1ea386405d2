"""The settings of one layer, for a learner without a stack."""

import numpy as np

from syncpretrain.learners.base import Learner
from syncpretrain.settings import settings_from
from syncpretrain.settings.fields import LayerSettings

USUAL = settings_from([2, 2], model="autoencoder", loss="squared", weight_decay=0.0).pretrain


def layer_settings(**given: object) -> LayerSettings:
    """Return the usual settings, but without decay and with the squared loss, or the given ones."""
    return LayerSettings(**{**vars(USUAL.of_layer(1)), **given})


def set_parameters(learner: Learner) -> list[np.ndarray]:
    """Give a learner parameters that matter; return them in float64."""
    rng = np.random.default_rng(0)
    for parameter in learner.parameters:
        parameter[:] = rng.normal(0, 0.6, parameter.shape)
    return [np.float64(parameter) for parameter in learner.parameters]
