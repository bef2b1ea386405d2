"""However a run is executed, it ends in the same bits."""

from itertools import pairwise

import numpy as np
import pytest
from onelayer import layer_settings

from syncpretrain import Stack, pretrain
from syncpretrain.errors import SettingsError
from syncpretrain.events import EpochFinished
from syncpretrain.learners.epoch import train_epoch
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import WholeStep
from syncpretrain.models.layer import DenseLayer
from syncpretrain.observers.history import History
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.settings import MomentumSchedule, settings_from

LAYERS = (16, 12, 8, 5)


def train(bits, **settings):
    return pretrain(bits, **{"layers": LAYERS, "batch_size": 15, "epochs": 3} | settings)


def test_another_seed_makes_another_stack(bits):
    assert train(bits, seed=0).parameters_sha256 != train(bits, seed=1).parameters_sha256


READ = ((0,), (1,), (1,))
REPLAYS = [
    (((0, 0), (1,)), "the recorded run has 2 layers, this one 3"),
    (((0, 0), (1, 0), (1,)), "replay: layer 2 reads the versions 1, 0"),
    (((0, 0), (1, 3), (1,)), "replay: layer 2 reads the versions 1, 3.*of 1 to 2"),
    (((), (), ()), "replay: layer 1 has 0 recorded epochs, expected 1 to 3"),
    (((0,) * 7, (1,), (1,)), "replay: layer 1 has 7 recorded epochs, expected 1 to 3"),
    (((0, 1), (1, 1), (1,)), "replay: layer 1 reads the versions 0, 1.*of 0 to 0"),
]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(({"replay": replay}, message) for replay, message in REPLAYS),
        ({"handoff": "minibatch", "replay": READ}, "^replay: got one with handoff minibatch"),
        ({"schedule": "none", "replay": READ}, "^replay: got one with schedule none"),
        ({"observers": None}, "observers: got None, expected a list of functions"),
        ({"observers": [print, "log"]}, "observers: got 'log', expected functions of an event"),
        ({"resume": 3}, "resume: got 3, expected the path of a folder"),
    ],
)
def test_a_wrong_argument_is_refused(bits, wrong, message):
    with pytest.raises(SettingsError, match=message):
        train(bits, **wrong)


def test_validation_data_changes_no_parameter(bits):
    history, held_out = History(), np.random.default_rng(0).random((37, 16))
    with_it = train(bits, validation=held_out, observers=[history])
    assert with_it.parameters_sha256 == train(bits).parameters_sha256
    errors = [e.validation_error for e in history.events if isinstance(e, EpochFinished)]
    assert len(errors) == 9
    assert all(0 < error < 16 for error in errors)


def test_greedy_equals_training_layer_by_layer_by_hand(bits):
    stack = train(bits, schedule="greedy", blas_threads=1, seed=7, epochs=(3, 2, 4))
    settings = {"batch_size": 15, "learning_rate": 0.1, "weight_decay": 0.0002, "cd_steps": 1}
    settings |= {"momentum": MomentumSchedule("0.5:5,0.9"), "seed": 7}
    alone = {"stop": lambda: False, "progress": lambda _: None}
    X, layers = bits, []
    with blas_limit(1):
        for number, (visible, hidden) in enumerate(pairwise(LAYERS), start=1):
            rbm = RBM(number, visible, hidden, layer_settings(**settings))
            training = WholeStep(rbm)
            for epoch in range(1, (3, 2, 4)[number - 1] + 1):
                train_epoch(rbm, training, X, epoch=epoch, **alone)
            layers.append(DenseLayer(rbm.weight, rbm.hidden_bias, rbm.visible_bias))
            X = rbm.snapshot().up(X)
    assert Stack(tuple(layers)).parameters_sha256 == stack.parameters_sha256


def test_only_the_validation_rows_that_are_looked_at_go_through_the_layers(bits):
    many = np.tile(bits, (20, 1))[:3000]
    some = many[np.arange(1000) * 3]
    runs = []
    for validation in (many, some):
        history = History()
        settings = settings_from(LAYERS, batch_size=15, epochs=2).pretrain
        run = Pretraining(settings, bits, validation, observers=[history])
        assert len(run.inputs.validation) == 1000
        run.run()
        finished = [event for event in history.events if isinstance(event, EpochFinished)]
        runs.append(sorted((e.layer, e.epoch, e.validation_error) for e in finished))
    assert runs[0] == runs[1]
