"""Stacks with convolutions end in the same bits, however their pretraining is executed."""

from __future__ import annotations

import numpy as np
import pytest
from convolutionalruns import BASE, LAYERS, MODELS, driver, train
from disturbedsteps import before_steps
from trialruns import notices_of

from syncpretrain.data.order import minibatches
from syncpretrain.errors import CheckpointError, DivergedError
from syncpretrain.pretraining.build import build_learners
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.settings import settings_from

pytestmark = pytest.mark.usefixtures("forked_layers")
SCHEDULES = {
    "synchronized": {"epochs": (3, 2, 2), "refresh_epochs": (0, 2, 1)},
    "greedy": {"schedule": "greedy", "blas_threads": 1},
    "rounds": {"schedule": "rounds"},
    "first-layer": {"epochs": (4, 2, 1), "finish": "first-layer"},
    "drift": {"epochs": (5, 1, 1), "refresh_epochs": (0, 2, 1), "refresh_when": "drift:0.05"},
    "stream": {"handoff": "minibatch", "delay": 0.4},
}


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
@pytest.mark.parametrize("schedule", ["rounds", "stream"])
def test_a_layer_that_diverges_goes_on_from_its_last_epoch_with_half_the_rate(
    images, model, schedule, monkeypatch
):
    def overflow(learner, epoch, step):
        if learner.layer == 1 and (epoch, step) >= (2, 3) and learner.learning_rate > 0.03:
            learner.weight.fill(np.inf)

    before_steps(monkeypatch, overflow)
    found = []
    for runtime in ("serial", "threads"):
        events = []
        options = {"model": model, "runtime": runtime, "observers": [events.append]}
        stack = train(images, **(SCHEDULES[schedule] | options))
        assert all(np.isfinite(a).all() for layer in stack.layers for _, a in layer.parameters())
        told = notices_of(events)
        assert [notice.split()[-1] for notice in told] == ["0.05", "0.025"]
        assert all("layer 1 diverged in epoch 2" in notice for notice in told)
        found.append(stack.parameters_sha256)
    assert len(set(found)) == 1


@pytest.mark.parametrize("model", ["rbm", "denoising"])
def test_a_rate_that_is_far_too_high_is_told(images, model):
    options = {"model": model, "hidden_units": "relu", "learning_rate": 1e6}
    with pytest.raises(DivergedError, match=r"layer 1 diverged in epoch 1: .*relu units"):
        train(images, **options)
