"""Streamed pretraining: what each layer computes, whoever computes it and whenever."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest
from disturbedsteps import after_steps, before_steps
from trialruns import library_threads

from syncpretrain.data.order import minibatches
from syncpretrain.errors import DivergedError, RunInterrupted, WorkerError
from syncpretrain.events import EpochFinished, LayerFinished, RunFinished
from syncpretrain.pretraining.build import build_learners
from syncpretrain.pretraining.stream_driver import StreamedPretraining
from syncpretrain.settings import settings_from

LAYERS = (16, 12, 8, 5)
VARIANTS = {
    "rbm": {},
    "uneven": {"epochs": (3, 1, 2)},
    "gaussian": {"visible_units": "gaussian", "hidden_units": ("relu", "bernoulli", "gaussian")},
    "persistent": {"persistent": True, "sparsity_cost": 0.1},
    "dropout": {"hidden_dropout": 0.3, "cd_steps": 2},
    "examples": {"shards": 3},
    "units": {"shards": 2, "split": "units"},
    "autoencoder": {"model": "autoencoder", "hidden_units": "tanh"},
    "denoising": {"model": "denoising", "tied": False},
    "contractive": {"model": "contractive"},
    "log-odds": {"visible_bias": "log-odds"},
    "shards of noise": {"model": "denoising", "shards": 2},
}
DELAYS = (0.0, 0.4, 1.0, 2.5)


def streamed(bits, variant, *, delay=0.0, observers=(), **others) -> StreamedPretraining:
    options = {"epochs": 2, "batch_size": 30, "seed": 3, **VARIANTS[variant], **others}
    settings = settings_from(LAYERS, **options).pretrain
    return StreamedPretraining(settings, bits, bits[:50], delay=delay, observers=observers)


def transcribed(bits, variant, delay) -> list[np.ndarray]:
    """Return the weights after the definition: one minibatch after another, layer by layer.

    Each layer is trained by its learner's own gradient, whose tests are elsewhere.
    """
    options = {"epochs": 2, "batch_size": 30, "seed": 3, **VARIANTS[variant]}
    settings = settings_from(LAYERS, **options).pretrain
    learners = build_learners(settings)
    scaled = streamed(bits, variant)
    data = scaled._source.minibatch(1)[0]
    steps = -(-len(data) // 30)
    delays = [round(i * delay * steps) for i in range(len(learners))]
    own = [n * steps for n in settings.epochs]
    last = max(d + n for d, n in zip(delays, own, strict=True))
    number = 0
    for number_of_pass in range(1, -(-last // steps) + 1):
        for rows in minibatches(len(data), 30, seed=3, layer=1, epoch=number_of_pass):
            number += 1
            x = data[rows]
            for i, learner in enumerate(learners):
                if number <= delays[i]:
                    break
                means = learner.current().up(x.copy())
                if (n := number - delays[i]) <= own[i]:
                    if n == 1:
                        learner.start(data if i == 0 else x)
                    epoch, step = (n - 1) // steps + 1, (n - 1) % steps
                    learner.gradient(x, np.arange(len(x)), epoch=epoch, step=step)
                    learner.update(epoch=epoch)
                x = means
    return [learner.weight for learner in learners]


@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("variant", [v for v in VARIANTS if "shards" not in VARIANTS[v]])
def test_it_computes_what_is_defined(bits, variant, delay):
    found = streamed(bits, variant, delay=delay, runtime="serial").run()
    expected = transcribed(bits, variant, delay)
    for layer, weight in zip(found.layers, expected, strict=True):
        np.testing.assert_allclose(layer.weight, weight, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_weights_do_not_depend_on_the_workers(bits, variant, delay):
    runs = [streamed(bits, variant, delay=delay, runtime="serial")]
    runs += [streamed(bits, variant, delay=delay, workers=n) for n in (1, 2, 4)]
    assert len({run.run().parameters_sha256 for run in runs}) == 1


def test_every_epoch_is_reported_in_the_calling_thread(bits):
    events = []
    observers = [lambda event: events.append((event, threading.current_thread()))]
    streamed(bits, "uneven", workers=3, observers=observers).run()
    assert {thread for _, thread in events} == {threading.main_thread()}
    finished = [e for e, _ in events if isinstance(e, EpochFinished)]
    assert sorted((e.layer, e.epoch) for e in finished) == [
        (layer, epoch) for layer, last in ((1, 3), (2, 1), (3, 2)) for epoch in range(1, last + 1)
    ]
    assert all(np.isfinite([e.train_error, e.validation_error]).all() for e in finished)
    assert {e.layer for e, _ in events if isinstance(e, LayerFinished)} == {1, 2, 3}
    assert isinstance(events[-1][0], RunFinished)


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_errors_are_those_of_the_minibatches(bits, runtime):
    """With a rate of almost 0 an epoch's error is that of the first weights on all examples."""
    events = []
    run = streamed(bits, "rbm", runtime=runtime, learning_rate=1e-9, observers=[events.append])
    run.run()
    for layer in (1, 2, 3):
        first, second = (e for e in events if isinstance(e, EpochFinished) and e.layer == layer)
        assert first.train_error == pytest.approx(second.train_error, rel=0.05)
        if layer == 1:  # above, sampled states differ from means as much as examples do
            assert first.validation_error == pytest.approx(first.train_error, rel=0.1)


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_a_failure_of_any_layer_ends_the_run_with_its_name(bits, runtime, layer, monkeypatch):
    def before(learner, epoch, step):
        if (learner.layer, epoch, step) == (layer, 2, 1):
            raise ZeroDivisionError("staged")

    before_steps(monkeypatch, before)
    with pytest.raises(WorkerError, match=f"layer {layer} failed in epoch 2: Zero.*staged") as end:
        streamed(bits, "rbm", runtime=runtime, workers=3).run()
    assert end.value.stack is not None
    assert not library_threads()


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_a_signal_ends_it_with_what_was_learned(bits, runtime, monkeypatch):
    left = iter(range(1, 10_000))
    main = threading.main_thread().ident

    def interrupt():
        if next(left) == 9:
            signal.pthread_kill(main, signal.SIGINT)

    after_steps(monkeypatch, interrupt)
    with pytest.raises(RunInterrupted, match="epochs finished: layer 1: ") as end:
        streamed(bits, "rbm", runtime=runtime, workers=2, epochs=500).run()
    assert end.value.stack.widths == LAYERS
    assert not library_threads()


def test_a_layer_that_diverges_goes_on_with_half_the_rate_to_the_same_bits(bits):
    events = []
    options = {"visible_units": "gaussian", "learning_rate": (3.0, 0.01, 0.01), "epochs": 3}
    found = streamed(bits, "rbm", runtime="serial", observers=[events.append], **options)
    stack = found.run()
    warnings = [e.message for e in events if hasattr(e, "message")]
    assert any("Back to the end of epoch" in message for message in warnings)
    assert all(np.isfinite(layer.weight).all() for layer in stack.layers)
    again = streamed(bits, "rbm", workers=3, **options).run()
    assert again.parameters_sha256 == stack.parameters_sha256


def test_one_that_diverges_again_and_again_fails(bits):
    with pytest.raises(DivergedError, match="layer 1 diverged in epoch"):
        streamed(bits, "gaussian", runtime="serial", learning_rate=1e6).run()
