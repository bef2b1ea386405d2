"""A step in shards: the same whoever works them, and the whole step's up to rounding."""

import builtins
import math

import numpy as np
import pytest
from densechains import make_chain, make_examples
from learnersteps import assert_close, assert_same_bits
from linkedchains import backwards, interpreted
from minibatches import train
from onelayer import layer_settings, set_parameters
from unitkinds import INPUT_UNITS, KINDS, RBM_UNITS

from syncpretrain.finetuning.chain import Affine, Dropout
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import adam, gradient_descent
from syncpretrain.kernels.averaging import add_tree, sum_in_order
from syncpretrain.kernels.program import in_turn
from syncpretrain.learners.autoencoder import Autoencoder
from syncpretrain.learners.base import Learner
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import ByUnits, InPieces, Step, WholeStep
from syncpretrain.pretraining.build import step_for
from syncpretrain.settings import MomentumSchedule

VISIBLE, HIDDEN, BATCH = 13, 9, 12
COMMON = {
    "batch_size": BATCH,
    "learning_rate": 0.1,
    "momentum": MomentumSchedule("0.9"),
    "weight_decay": 0.01,
    "l1": 0.001,
    "seed": 5,
}


def make(model: str, **changed) -> Learner:
    kind = {"rbm": RBM, "autoencoder": Autoencoder, "certain": Certain}[model]
    return kind(2, VISIBLE, HIDDEN, layer_settings(**(COMMON | changed)))


def examples(rows: int = 40) -> np.ndarray:
    return np.random.default_rng(3).random((rows, VISIBLE), dtype=np.float32)


def trained(training: Step, run=in_turn, *, steps=range(6), rows: int = BATCH) -> list[float]:
    X = examples()
    return [
        training.train_step(X, np.arange(step, step + rows), epoch=1, step=step, run=run)
        for step in steps
    ]


def test_the_tree_adds_pairs_first():
    parts = [np.array([x], dtype=np.float32) for x in (1e8, 1, -1e8, 1)]
    assert add_tree(parts)[0] == (np.float32(1e8) + 1) + (np.float32(-1e8) + 1)


def test_errors_of_shards_are_added_in_their_order_by_every_python(monkeypatch):
    errors = [1e16, 1.0, -1e16]
    step = step_for(make("rbm"), 3, "examples")
    network = Network(chain(), loss="squared", batch_size=BATCH, shards=3)
    # From Python 3.12 on the built-in sum compensates for rounding; an exact one stands in for it.
    monkeypatch.setattr(builtins, "sum", lambda numbers, start=0: math.fsum([start, *numbers]))
    step.errors[:] = errors
    found = step.train_step(examples(), np.arange(6), epoch=1, step=0, run=lambda *_: None)
    assert found == network._error_of([*errors, 0, 0, 0]) == sum_in_order(np.array(errors)) == 0.0


@pytest.mark.parametrize("shards", [2, 3, 5])
@pytest.mark.parametrize("split", ["units", "examples"])
@pytest.mark.parametrize("cd_steps", [1, 3])
@pytest.mark.parametrize("hidden_units", RBM_UNITS)
def test_the_order_of_the_shards_changes_no_bit(shards, split, cd_steps, hidden_units):
    one, other = (
        make("rbm", cd_steps=cd_steps, hidden_units=hidden_units, learning_rate=0.001)
        for _ in range(2)
    )
    steps = [step_for(learner, shards, split) for learner in (one, other)]
    assert trained(steps[0], interpreted) == trained(steps[1], backwards)
    assert_same_bits(one, other)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("visible_units", INPUT_UNITS)
def test_a_compiled_step_is_the_interpreted_one(shards, visible_units):
    one, other = (make("rbm", cd_steps=2, visible_units=visible_units) for _ in range(2))
    errors = trained(ByUnits(one, shards)), trained(ByUnits(other, shards), interpreted)
    np.testing.assert_allclose(*errors, rtol=1e-5)
    assert_close(one, other)


def test_one_shard_of_units_is_the_whole_step():
    whole, one = make("rbm"), make("rbm")
    np.testing.assert_allclose(trained(WholeStep(whole)), trained(ByUnits(one, 1)), rtol=1e-5)
    assert_close(whole, one)


class Certain(RBM):
    """An RBM whose hidden units are so certain that what is drawn does not matter."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        signs = np.random.default_rng(0).choice([-1, 1], self.hidden_bias.shape)
        self.hidden_bias[:] = 200 * signs


@pytest.mark.parametrize("pieces", [2, 3, 5, 20])
@pytest.mark.parametrize("cd_steps", [1, 3])
@pytest.mark.parametrize("rows", [BATCH, 7, 1])
@pytest.mark.parametrize("hidden", [HIDDEN, 16, 6])
@pytest.mark.parametrize("run", [in_turn, backwards, interpreted])
def test_pieces_have_the_bits_of_the_whole_step(pieces, cd_steps, rows, hidden, run):
    settings = layer_settings(**COMMON, cd_steps=cd_steps, products="own")
    whole, cut = (RBM(2, VISIBLE, hidden, settings) for _ in range(2))
    assert isinstance(step := step_for(cut, 1, "units", threads=pieces), InPieces)
    wanted = trained(WholeStep(whole), rows=rows)
    assert trained(step, run, rows=rows) == wanted
    assert_same_bits(whole, cut)


@pytest.mark.parametrize("shards", [2, 3, 4])
@pytest.mark.parametrize("split", ["units", "examples"])
@pytest.mark.parametrize("cd_steps", [1, 2])
@pytest.mark.parametrize("rows", [BATCH, 7, 2])
def test_shards_do_what_the_whole_step_does(shards, split, cd_steps, rows):
    sparsity = {"sparsity_cost": 0.5, "sparsity_target": 0.3} if split == "examples" else {}
    whole, cut = (make("certain", cd_steps=cd_steps, **sparsity) for _ in range(2))
    steps = WholeStep(whole), step_for(cut, shards, split)
    errors = [trained(training, rows=rows) for training in steps]
    np.testing.assert_allclose(*errors, rtol=1e-5)
    assert_close(whole, cut)


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("changed", [{}, {"contraction": 0.2}, {"loss": "cross-entropy"}])
def test_an_autoencoder_in_shards_of_examples(shards, tied, changed):
    whole, cut = (make("autoencoder", tied=tied, **changed) for _ in range(2))
    errors = trained(WholeStep(whole)), trained(step_for(cut, shards, "examples"))
    np.testing.assert_allclose(*errors, rtol=1e-5)
    assert_close(whole, cut)


def test_the_first_shard_of_units_draws_other_numbers_than_the_second():
    rbm = make("rbm")
    training = step_for(rbm, 2, "units")
    rbm.weight.fill(0)
    X = np.zeros((BATCH, VISIBLE), dtype=np.float32)
    training.train_step(X, np.arange(BATCH), epoch=1, step=1)
    states = training._states
    half = HIDDEN // 2
    assert 0.2 < states.mean() < 0.8
    assert (states[:, :half] != states[:, half : 2 * half]).any()


def test_an_autoencoder_is_not_split_by_units():
    with pytest.raises(ValueError, match="expected examples"):
        step_for(make("autoencoder"), 2, "units")


OTHERWISE = ["persistent", "sparsity_cost", "hidden_dropout", "sample_input", "centred"]


@pytest.mark.parametrize("option", OTHERWISE)
def test_a_whole_step_is_a_program_where_it_is_plain(option):
    assert isinstance(step_for(make("rbm"), 1, "examples"), ByUnits)
    assert isinstance(step_for(make("rbm", **{option: 0.5}), 1, "examples"), WholeStep)
    assert isinstance(step_for(make("autoencoder"), 1, "units"), WholeStep)


CHAINS = {"persistent": True, "chains": 15, "chain_start": "data", "centred": True}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("changed", [{}, {"persistent": True, "sparsity_cost": 0.1}, CHAINS])
def test_a_restart_starts_the_memory_anew(changed, shards):
    fresh, used = (make("rbm", **changed) for _ in range(2))
    for learner in (fresh, used):
        set_parameters(learner)
        learner.restart()  # offsets are not given, as parameters are
    start, training = used.snapshot(), step_for(used, shards, "examples")
    trained(training, steps=range(3))
    used.restore(start)
    training.restart()
    assert trained(training) == trained(step_for(fresh, shards, "examples"))
    assert_same_bits(fresh, used)


def chain(units: str = "bernoulli") -> list[Affine]:
    lowest = "bernoulli" if KINDS[units].is_exclusive else units
    return make_chain((lowest, "relu", units), dtype=np.float32)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("units", KINDS)
@pytest.mark.parametrize("dropout", [Dropout(), Dropout(input=0.2, hidden=0.4, seed=3)])
@pytest.mark.parametrize("follow", [adam, gradient_descent, "nesterov"])
def test_a_compiled_step_of_a_network_is_the_interpreted_one(shards, units, dropout, follow):
    loss = "cross-entropy" if units == "softmax" else "squared"
    x, t = make_examples(units, 10, np.float32)
    found = []
    for run in (in_turn, interpreted):
        network = Network(chain(units), loss=loss, batch_size=10, dropout=dropout, shards=shards)
        if follow == "nesterov":
            optimizer = gradient_descent(network, momentum=0.9, nesterov=True, weight_decay=0.01)
        else:
            optimizer = follow(network, weight_decay=0.1)
        reported = [
            train(optimizer, x, t, rate=0.01, epoch=1, step=step, run=run) for step in range(4)
        ]
        found.append((reported, network.parameters))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-5)
