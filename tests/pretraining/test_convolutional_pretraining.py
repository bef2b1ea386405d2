"""Stacks with convolutions end in the same bits, however their pretraining is executed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from convolutionalruns import BASE, LAYERS, MODELS, driver, train
from disturbedsteps import before_steps
from trialruns import notices_of, stop_after

from syncpretrain.data.order import minibatches
from syncpretrain.errors import CheckpointError, DivergedError, RunInterrupted
from syncpretrain.events import EpochFinished
from syncpretrain.observers.history import History
from syncpretrain.pretraining.build import build_learners
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.settings import settings_from
from syncpretrain.workers.state import EPOCHS_STATE, STREAM_STATE

pytestmark = pytest.mark.usefixtures("forked_layers")
SCHEDULES = {
    "synchronized": {"epochs": (3, 2, 2), "refresh_epochs": (0, 2, 1)},
    "greedy": {"schedule": "greedy", "blas_threads": 1},
    "rounds": {"schedule": "rounds"},
    "first-layer": {"epochs": (4, 2, 1), "finish": "first-layer"},
    "drift": {"epochs": (5, 1, 1), "refresh_epochs": (0, 2, 1), "refresh_when": "drift:0.05"},
    "stream": {"handoff": "minibatch", "delay": 0.4},
}
PLACES = [("serial", 1), ("threads", 1), ("threads", 2), ("threads", 4), ("processes", 2)]


@pytest.mark.parametrize(
    ("model", "schedule"),
    [(model, schedule) for model in MODELS for schedule in ("synchronized", "stream")]
    + [("rbm", "greedy"), ("denoising", "rounds"), ("gaussian", "first-layer")]
    + [("rbm", "drift"), ("autoencoder", "drift")],
)
def test_every_runtime_and_number_of_workers_ends_in_the_same_bits(images, model, schedule):
    options = MODELS[model] | SCHEDULES[schedule]
    places = [p for p in PLACES if schedule != "greedy" or p[0] != "processes"]
    found = [train(images, **options, runtime=name, workers=n) for name, n in places]
    assert len({stack.parameters_sha256 for stack in found}) == 1
    assert all(np.isfinite(a).all() for layer in found[0].layers for _, a in layer.parameters())
    first = [learner.weight for learner in build_learners(settings_of(options))]
    for layer, weight in zip(found[0].layers, first, strict=True):
        assert (layer.weight != weight).any(), "each was trained"


def settings_of(options):
    return settings_from(LAYERS, **(BASE | options)).pretrain


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
def test_a_fixed_number_of_shards_gives_the_same_bits_to_any_replicas(images, model, handoff):
    options = MODELS[model] | {"handoff": handoff, "split": "examples", "shards": 3}
    found = [
        train(images, **options, replicas=replicas, runtime=runtime, workers=workers)
        for replicas, runtime, workers in [
            (1, "serial", 1),
            (2, "threads", 2),
            (3, "threads", 4),
            ((3, 1, 2), "processes", 2),
        ]
    ]
    assert len({stack.parameters_sha256 for stack in found}) == 1
    whole = train(images, **(options | {"shards": 1}))
    assert whole.parameters_sha256 != found[0].parameters_sha256, "draws or sums differ"


def test_a_free_run_repeats_under_replay(images):
    history, options = History(), MODELS["denoising"] | {"pace": "free"}
    free = train(images, **options, workers=3, observers=[history])
    again = train(images, **options, runtime="serial", replay=history.reads)
    assert again.parameters_sha256 == free.parameters_sha256


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


def stopped_after(images, minibatches, monkeypatch, **options):
    """Return the state of a run that was stopped so early, None if it was over before."""
    states = []

    def save(state, *, done, final):
        if final:
            states.append(state())

    with monkeypatch.context() as patch:
        stop_after(patch, minibatches)
        try:
            driver(images, save=save, **options).run()
        except RunInterrupted:
            return states[-1]
    return None


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("schedule", ["synchronized", "greedy", "drift"])
def test_a_run_stopped_anywhere_goes_on_to_the_same_bits(
    images, model, schedule, monkeypatch, tmp_path
):
    options = MODELS[model] | SCHEDULES[schedule]
    whole = driver(images, **options, runtime="serial").run().parameters_sha256
    path, stops = tmp_path / "state.safetensors", 0
    for count in itertools.count(2, 11):
        state = stopped_after(images, count, monkeypatch, **options, runtime="serial")
        if state is None:
            break
        EPOCHS_STATE.write(path, state, {})
        again = EPOCHS_STATE.read(path)
        resumed = driver(images, resume=again, **options, workers=1 + stops % 3)
        assert resumed.run().parameters_sha256 == whole, f"stopped after {count}"
        stops += 1
    assert stops >= 3


@pytest.mark.parametrize(
    ("model", "runtime"),
    [(model, "serial") for model in MODELS]
    + [("rbm", "threads"), ("denoising", "threads"), ("autoencoder", "processes")],
)
def test_every_state_of_a_stream_goes_on_to_the_same_bits(images, model, runtime, tmp_path):
    # Else it outlasts the wait of the driver.
    epochs, most = ((4, 2, 3), 4) if runtime == "serial" else ((80, 40, 60), 2)
    states, options = [], MODELS[model] | SCHEDULES["stream"] | {"epochs": epochs}

    def save(state, *, done, final):
        states.append(state())

    whole = driver(images, save=save, **options, runtime=runtime, workers=2).run()
    assert states
    for number, state in enumerate(states[:: -(-len(states) // most)]):
        STREAM_STATE.write(tmp_path / f"{number}.safetensors", state, {})
        again = STREAM_STATE.read(tmp_path / f"{number}.safetensors")
        resumed = driver(images, resume=again, **options, workers=2)
        assert resumed.run().parameters_sha256 == whole.parameters_sha256


def test_the_state_of_another_convolution_is_refused(images, monkeypatch):
    state = stopped_after(images, 3, monkeypatch, runtime="serial", schedule="rounds")
    for layers in ("1x8x8,conv:4x3,pool:2,conv:4x2,5", "1x8x8,conv:3x3,conv:4x2,5"):
        settings = settings_from(layers, **BASE, runtime="serial").pretrain
        with pytest.raises(CheckpointError, match="of another layer"):
            Pretraining(settings, images[:100], resume=state).run()


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_autoencoders_stop_early_by_their_own_reconstruction(images, runtime):
    events = []
    stack = train(
        images,
        model="denoising",
        early_stopping="validation-error",
        patience=1,
        epochs=40,
        learning_rate=0.5,
        runtime=runtime,
        observers=[events.append],
    )
    epochs = stack.info["epochs"]
    assert min(epochs) < 40
    for layer, ran in enumerate(epochs, start=1):
        finished = [e for e in events if isinstance(e, EpochFinished) and e.layer == layer]
        errors = [e.validation_error for e in finished if e.epoch <= ran]
        if ran < 40 and layer == 1:  # what the layers above read goes on changing
            assert errors[-1] >= min(errors[:-1])
            assert all(b < a for a, b in itertools.pairwise(errors[:-1]))
    assert stack.layers[0].model == "autoencoder"


@pytest.mark.parametrize("runtime", ["serial", "threads"])
@pytest.mark.parametrize("model", ["rbm", "denoising"])
def test_settled_layers_end_the_same_everywhere(images, model, runtime):
    options = {"epochs": "auto:12", "settle": 0.05, "model": model, "momentum": "0.5"}
    stack = train(images, runtime=runtime, **options)
    assert min(stack.info["epochs"]) < 12
    planned = train(images, model=model, momentum="0.5", epochs=stack.info["epochs"])
    assert len(planned.layers) == 3


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
