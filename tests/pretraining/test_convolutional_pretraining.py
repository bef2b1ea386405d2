"""Pretraining of convolutions: what is refused, and what is told."""

from __future__ import annotations

import pytest
from convolutionalruns import BASE, driver, train

from syncpretrain.errors import CheckpointError, DivergedError
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.settings import settings_from


def test_the_state_of_another_convolution_is_refused(images):
    states = []
    driver(images, save=lambda state, **_: states.append(state()), runtime="serial").run()
    for layers in ("1x8x8,conv:4x3,pool:2,conv:4x2,5", "1x8x8,conv:3x3,conv:4x2,5"):
        settings = settings_from(layers, **BASE, runtime="serial").pretrain
        with pytest.raises(CheckpointError, match="of another layer"):
            Pretraining(settings, images[:100], resume=states[0]).run()


@pytest.mark.parametrize("model", ["rbm", "denoising"])
def test_a_rate_that_is_far_too_high_is_told(images, model):
    options = {"model": model, "hidden_units": "relu", "learning_rate": 1e6}
    with pytest.raises(DivergedError, match=r"layer 1 diverged in epoch 1: .*relu units"):
        train(images, **options)
