"""Pretraining of convolutions: a stream by its definition, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from convolutionalruns import BASE, LAYERS, MODELS, driver, train

from syncpretrain.data.order import minibatches
from syncpretrain.errors import CheckpointError, DivergedError
from syncpretrain.pretraining.build import build_learners
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.settings import settings_from


def settings_of(options):
    return settings_from(LAYERS, **(BASE | options)).pretrain


@pytest.mark.parametrize("delay", [0.0, 1.5])
@pytest.mark.parametrize("model", ["rbm", "autoencoder"])
def test_a_stream_computes_what_is_defined(images, model, delay):
    """One minibatch after another, each layer on the code that the one below had before it."""
    options = MODELS[model]
    found = driver(images, handoff="minibatch", delay=delay, runtime="serial", **options).run()
    learners, data, number = build_learners(settings_of(options)), images[:100], 0
    delays = [round(i * delay * 5) for i in range(3)]
    for number_of_pass in range(1, 7):
        for rows in minibatches(100, 20, seed=3, layer=1, epoch=number_of_pass):
            number, x = number + 1, data[rows]
            for i, learner in enumerate(learners):
                own = number - delays[i]
                code = learner.current().up(x.copy())
                if 1 <= own <= 10:
                    if own == 1:
                        learner.start(data if i == 0 else x)
                    address = {"epoch": (own - 1) // 5 + 1, "step": (own - 1) % 5}
                    learner.gradient(x, np.arange(20), **address)
                    learner.update(epoch=address["epoch"])
                x = code
    for layer, learner in zip(found.layers, learners, strict=True):
        np.testing.assert_allclose(layer.weight, learner.weight, rtol=2e-3, atol=2e-5)


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
