"""A layer that diverges goes back to its last epoch, with half its learning rate, three times."""

import numpy as np
import pytest
from disturbedsteps import before_steps
from moments import told_by
from onelayer import layer_settings

from syncpretrain import pretrain
from syncpretrain.errors import DivergedError
from syncpretrain.learners.autoencoder import Autoencoder
from syncpretrain.learners.epoch import train_epoch
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import WholeStep
from syncpretrain.schedule.schedule import Train
from syncpretrain.settings import MomentumSchedule
from syncpretrain.workers.activations import Split
from syncpretrain.workers.epochs import Failed, Finished
from syncpretrain.workers.versions import Versions
from syncpretrain.workers.worker import LayerInTraining, LayerWorker

RUN = {"layers": (16, 12, 8), "epochs": 3, "batch_size": 20}
RUNTIMES = ["serial", "threads"]
BOTH = pytest.mark.parametrize("runtime", RUNTIMES)


def too_fast(monkeypatch, limit):
    """Have any learning rate above a limit make layer 2 diverge, from epoch 2 on."""

    def overflow(rbm, epoch, step):
        if rbm.layer == 2 and (epoch, step) >= (2, 3) and rbm.learning_rate > limit:
            rbm.weight.fill(np.inf)

    before_steps(monkeypatch, overflow)


def run(bits, runtime):
    return told_by(pretrain, bits, **RUN, runtime=runtime)


@pytest.mark.parametrize(("limit", "told"), [(0.06, ["0.05"]), (0.02, ["0.05", "0.025", "0.0125"])])
def test_it_recovers_with_a_lower_rate_and_a_warning_each(bits, monkeypatch, limit, told):
    undisturbed, silence = run(bits, "serial")
    assert silence == []
    too_fast(monkeypatch, limit)
    found = [run(bits, runtime) for runtime in RUNTIMES]
    for stack, notices in found:
        assert len(notices) == len(told)
        for text, rate in zip(notices, told, strict=True):
            assert text.startswith("warning: layer 2 diverged in epoch 2: ")
            assert text.endswith(f"Back to the end of epoch 1, with half the learning rate, {rate}")
        assert all(np.isfinite(a).all() for layer in stack.layers for _, a in layer.parameters())
        assert stack.info["epochs"] == [3, 3]
        np.testing.assert_array_equal(stack.layers[0].weight, undisturbed.layers[0].weight)
        assert (stack.layers[1].weight != undisturbed.layers[1].weight).any()
    assert len({stack.parameters_sha256 for stack, _ in found}) == 1, "serial and threads agree"


@BOTH
def test_the_fourth_time_is_the_last(bits, monkeypatch, runtime):
    once = pretrain(bits, **RUN | {"epochs": [3, 1]}, refresh_epochs=0)
    too_fast(monkeypatch, 0.01)
    with pytest.raises(DivergedError, match=r"layer 2 diverged in epoch 2.*rate of 0\.0125") as e:
        run(bits, runtime)
    stack = e.value.stack
    assert all(np.isfinite(a).all() for layer in stack.layers for _, a in layer.parameters())
    assert stack.info["epochs"][1] == 1
    np.testing.assert_array_equal(stack.layers[1].weight, once.layers[1].weight)


@BOTH
def test_a_layer_that_diverges_in_its_first_epoch_starts_anew(bits, monkeypatch, runtime):
    fallen = []

    def overflow(rbm, epoch, step):
        if rbm.layer == 1 and (epoch, step) == (1, 5) and not fallen:
            fallen.append(True)
            rbm.weight.fill(np.nan)

    halved = pretrain(bits, **RUN, learning_rate=[0.05, 0.1]).parameters_sha256
    before_steps(monkeypatch, overflow)
    stack, notices = run(bits, runtime)
    assert stack.parameters_sha256 == halved, "as if the rate had been that from the start"
    assert len(notices) == 1


@pytest.mark.parametrize("model", ["rbm", "denoising"])
def test_a_rate_that_is_far_too_high_for_convolutions_is_told(images, model):
    options = {"model": model, "hidden_units": "relu", "learning_rate": 1e6, "batch_size": 20}
    with pytest.raises(DivergedError, match=r"layer 1 diverged in epoch 1: .*relu units"):
        pretrain(images[:100], layers="1x8x8,conv:3x3,pool:2,conv:4x2,5", epochs=2, **options)


USUAL = {"batch_size": 20, "learning_rate": 0.1, "momentum": MomentumSchedule("0.9")}


def rbm():
    return RBM(1, 16, 8, layer_settings(**USUAL, persistent=True))


def autoencoder():
    return Autoencoder(1, 16, 8, layer_settings(**USUAL, tied=False, loss="cross-entropy"))


def epoch(learner, X, number):
    return train_epoch(
        learner, WholeStep(learner), X, epoch=number, stop=lambda: False, progress=lambda _: None
    )


def layer_worker(learner, X):
    own = LayerInTraining(learner, WholeStep(learner))
    return LayerWorker(own, Versions(Split(X, X[:0]), (8,)))


@pytest.mark.parametrize("make", [rbm, autoencoder])
def test_a_worker_goes_on_exactly_from_its_last_epoch(bits, make):
    worker = layer_worker(make(), bits)
    assert isinstance(worker.execute(Train(1, 1, 0, 0), lambda: False), Finished)
    worker.learner.visible_bias.fill(np.nan)  # what was left over from the epoch is broken
    message = worker.execute(Train(1, 2, 0, 0), lambda: False)

    expected = make()
    epoch(expected, bits, 1)
    expected.restart()  # momentum and chains start anew
    expected.learning_rate = 0.05
    error = epoch(expected, bits, 2)
    assert isinstance(message, Finished)
    assert message.event.train_error == error
    assert len(message.warnings) == 1
    parts = zip(worker.learner.current().parameters(), expected.current().parameters(), strict=True)
    for (_, have), (_, want) in parts:
        np.testing.assert_array_equal(have, want)


def test_three_times_are_for_all_epochs_together(bits):
    worker = layer_worker(rbm(), bits)
    for number in (1, 2, 3):
        worker.learner.weight.fill(np.nan)
        message = worker.execute(Train(1, number, 0, 0), lambda: False)
        assert isinstance(message, Finished)
        assert worker.learner.learning_rate == 0.1 / 2**number
    worker.learner.weight.fill(np.nan)
    message = worker.execute(Train(1, 4, 0, 0), lambda: False)
    assert isinstance(message, Failed)
    assert isinstance(message.error, DivergedError)
    assert worker.learner.is_finite()
