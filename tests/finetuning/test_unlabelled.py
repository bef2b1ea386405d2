"""Normalization that goes into the weights, and rows without a label in the training."""

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from densechains import make_chain, make_examples
from trialruns import notices_of
from unitkinds import MEANS

from syncpretrain import finetune, pretrain
from syncpretrain.errors import DivergedError, SettingsError
from syncpretrain.finetuning.chain import Affine
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.normalization import normalized, settled
from syncpretrain.finetuning.options import tuning_options
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.finetuning.program import input_gradient_phases
from syncpretrain.finetuning.tasks import Examples, Form, Part
from syncpretrain.finetuning.unlabelled import PROBE, Passes, align, guess, scaled_rows
from syncpretrain.kernels.backprop import cross_entropy
from syncpretrain.kernels.program import Program, in_turn
from syncpretrain.rng import Purpose, generator
from syncpretrain.settings.by_data import Facts, finetune_by_data
from syncpretrain.settings.finetuning import FinetuneSettings, labelled_of
from syncpretrain.shapes import DenseShape

RELU = ("relu", "relu", "softmax")
SHARED = {"batch_size": 6, "shards": 4, "split": "examples"}


def outputs(pairs, X, units=RELU):
    """Return what plain links make of rows."""
    for (weight, bias), kind in zip(pairs, units, strict=True):
        X = MEANS[kind](X @ weight + bias)
    return X


def pairs_of(links):
    return [(link.weight, link.bias) for link in links]


class TestNormalization:
    def test_goes_in_and_out_without_changing_what_a_network_computes(self):
        chain, (x, _) = make_chain(RELU), make_examples("softmax", rows=50)
        inside = normalized(chain, x)
        assert [link.is_normalized for link in inside] == [True, True, False]
        found = settled(pairs_of(inside), x)
        np.testing.assert_allclose(outputs(found, x), outputs(pairs_of(chain), x), rtol=1e-9)

    def test_is_of_the_rows_that_it_is_settled_on(self):
        x, _ = make_examples("softmax", rows=40)
        weight = np.random.default_rng(1).normal(size=(5, 3))
        pairs = [(weight, np.array([0.1, 0.2, 0.3])), (np.eye(3), np.zeros(3))]
        (found, bias), _ = settled(pairs, x)
        inputs = x @ found + bias
        np.testing.assert_allclose(inputs.mean(axis=0), [0.1, 0.2, 0.3], atol=1e-9)
        np.testing.assert_allclose(inputs.std(axis=0), 1, rtol=1e-3)

    def test_a_unit_with_constant_inputs_stays_finite(self):
        chain = [Affine(np.zeros((5, 7)), np.ones(7), "relu"), *make_chain(RELU)[1:]]
        x, _ = make_examples("softmax")
        found = settled(pairs_of(normalized(chain, x)), x)
        assert all(np.isfinite(array).all() for pair in found for array in pair)

    @pytest.mark.parametrize(
        ("layers", "units", "own", "message"),
        [
            ((16, 8), "bernoulli", {}, "normalization: .*bernoulli units.*take none"),
            ("1x4x4,conv:3x3", "relu", {}, "normalization: .*convolutions.*take none"),
            ((16, 8), "relu", {"batch_size": 1}, r"batch_size: got \d in \d parts.*2 rows"),
            ((16, 8), "relu", SHARED, r"batch_size: got \d in \d parts.*2 rows"),
        ],
    )
    def test_of_other_layers_and_of_single_rows_is_refused(self, layers, units, own, message):
        X = np.random.default_rng(0).random((40, 16), dtype=np.float32)
        stack = pretrain(X, layers=layers, hidden_units=units, schedule="none", warn=False)
        with pytest.raises(SettingsError, match=f"finetune_{message}"):
            finetune(stack, X, np.arange(40) % 2, normalization="batch", **own)


def few(labelled=6, others=20, seed=3):
    """Return the minibatches of an examples with rows without a target behind the others."""
    inputs = np.zeros((labelled + others, 2), np.float32)
    numbers = np.random.default_rng(1).permutation(labelled + others)
    return Passes(Examples(inputs, np.eye(labelled, dtype=np.float32), None, numbers), 15, seed, 4)


class TestPasses:
    @pytest.mark.parametrize(("labelled", "others", "steps"), [(6, 20, 2), (30, 5, 10)])
    def test_rows_with_a_label_come_first_and_all_others_in_an_epoch(self, labelled, others, steps):
        passes = few(labelled, others)
        assert (passes.labelled, passes.steps, passes.counted) == (3, steps, 3 * steps)
        for epoch in (1, 2, 9):
            order = passes.order(epoch).reshape(steps, 15)
            assert set(order[:, 3:].ravel()) == set(range(labelled, labelled + others))
            assert (order[:, :3] < labelled).all()
            assert labelled == 6 or set(order[:, :3].ravel()) == set(range(30))

    def test_rows_with_a_label_come_equally_often_through_all_epochs(self):
        passes = few()
        taken = np.concatenate([passes.order(e).reshape(2, 15)[:, :3].ravel() for e in range(1, 8)])
        counts = np.bincount(taken, minlength=6)
        assert counts.sum() == 42 and (counts == 7).all()

    def test_each_epoch_has_an_order_of_its_own_that_the_seed_decides(self):
        orders = [few().order(1), few().order(2), few(seed=4).order(1)]
        assert not any(np.array_equal(a, b) for a, b in pairwise(orders))
        np.testing.assert_array_equal(few().order(2), orders[1])

    def test_fewer_labels_than_a_fifth_are_all_in_each_minibatch(self):
        passes = few(labelled=2)
        assert passes.labelled == 2
        assert all(set(row[:2]) == {0, 1} for row in passes.order(5).reshape(passes.steps, 15))

    def test_fewer_rows_without_a_label_than_a_minibatch_has_come_more_often(self):
        order = few(others=5).order(1).reshape(2, 15)
        assert all(set(row[3:]) == set(range(6, 11)) for row in order)

    def test_the_weight_rises_over_two_thirds_of_all_steps(self):
        passes = few(others=36)  # 3 steps an epoch, 12 in all
        found = [passes.rise(epoch, step) for epoch in range(1, 5) for step in range(3)]
        np.testing.assert_allclose(found, np.minimum(np.arange(12) / 8, 1))


def test_a_guess_is_the_most_probable_class_and_sure_from_a_limit_on():
    y = np.float32([[0.96, 0.04, 0], [0.5, 0.3, 0.2], [0, 0.02, 0.98], [0, 0, np.nan]])
    target = np.full((4, 3), 7, np.float32)
    assert guess(y, target).tolist() == [True, False, True, False]
    np.testing.assert_array_equal(target[:3].argmax(axis=1), [0, 0, 2])
    assert (target.sum(axis=1) == 1).all()


def test_aligned_probabilities_have_the_shares_of_the_labels():
    y = np.array([[0.9, 0.1, 0], [0.75, 0.25, 0], [0.6, 0.4, 0], [0.9, 0.1, 0]])
    align(y, np.array([0.5, 0.5, 0]))
    np.testing.assert_allclose(y.sum(axis=1), 1)
    assert y.argmax(axis=1).tolist() == [0, 1, 1, 0]
    np.testing.assert_allclose(y[0, 0] / y[0, 1], 9 * 0.2135 / 0.7885)
    assert np.isfinite(y).all()


@pytest.mark.parametrize(("shards", "split"), [(1, "units"), (2, "units"), (2, "examples")])
@pytest.mark.parametrize(("weighted", "aligned"), [(False, False), (True, False), (False, True)])
def test_the_loss_is_that_of_the_equation(shards, split, weighted, aligned):
    x, target = make_examples("softmax", rows=20)
    chain = make_chain(("relu", "bernoulli", "softmax"))
    chain[-1] = Affine(chain[-1].weight * 50, chain[-1].bias, "softmax")  # sure of some rows
    numbers = np.random.default_rng(2).permutation(20)
    known, rows, epoch, step = 3, np.r_[0, 2, 5, 8:20], 2, 1
    weights = np.random.default_rng(3).random((8, 1)) if weighted else None
    given = Examples(x, target[numbers][:8], weights, numbers)
    network = Network(
        *(chain, "cross-entropy"),
        **{"batch_size": 16, "epochs": 4, "noise": 0.3, "shards": shards, "split": split},
        aligns=aligned,
    )
    network.begin(given, rows, epoch=epoch, step=step)
    wrong = network.gradient()
    noisy = network.minibatch.x.copy()
    assert 0.1 < (noisy - x[numbers[rows]]).std() < 0.5

    # Transcribed from the equation at the top of unlabelled.py.
    pairs, units = pairs_of(chain), [link.units for link in chain]
    clean, seen = (outputs(pairs, own, units) for own in (x[numbers[rows[known:]]], noisy))
    if aligned:
        clean *= given.targets.mean(axis=0) / (clean.mean(axis=0) + 1e-3)
        clean /= clean.sum(axis=1, keepdims=True)
    labels = target[numbers[rows[:known]]]
    own = np.ones(known) if weights is None else weights[rows[:known], 0]
    loss = -(own * np.log((seen[:known] * labels).sum(axis=1))).mean()
    sure = clean.max(axis=1) >= 0.95
    assert 0 < sure.sum() < len(sure)
    guessed = seen[known:][np.arange(12), clean.argmax(axis=1)]
    rise = min(1, (1 * 3 + step) / (2 / 3 * 4 * 3))  # 3 steps for 8 labels
    loss += rise * -(sure * np.log(guessed)).mean()
    assert network.loss_of_minibatch() == pytest.approx(loss, rel=1e-9)
    assert wrong == (seen[:known].argmax(axis=1) != labels.argmax(axis=1)).sum()
    assert np.isfinite(cross_entropy(labels, seen[:known], "softmax"))


SPLITS = [(1, "units"), (2, "units"), (3, "units"), (2, "examples")]


@pytest.mark.parametrize(("shards", "split"), SPLITS)
@pytest.mark.parametrize("is_normalized", [False, True])
def test_the_derivative_by_the_inputs_is_that_of_the_loss(shards, split, is_normalized):
    x, target = make_examples("softmax", rows=12)
    chain = normalized(make_chain(RELU), x) if is_normalized else make_chain(RELU)
    network = Network(chain, "cross-entropy", batch_size=12, shards=shards, split=split)
    network.begin(Examples(x, target), np.arange(12))
    found, minibatch, whole = np.empty_like(x), network.minibatch, split == "units"
    phases = input_gradient_phases(network._buffers, minibatch, found, in_shards=whole)
    in_turn(Program(phases, 2 * shards), shards if whole else 1)

    def loss(place, by):
        moved = x.copy()
        moved[place] += by
        network.begin(Examples(moved, target), np.arange(12))
        return network.loss_of_minibatch()

    near = [(loss(at, 1e-6) - loss(at, -1e-6)) / 2e-6 for at in np.ndindex(*x.shape)]
    np.testing.assert_allclose(found.ravel(), near, atol=1e-8)
    assert np.abs(found).max() > 0.01


@pytest.mark.parametrize(("shards", "split"), SPLITS)
def test_rows_without_a_label_move_along_that_derivative(shards, split):
    x, target = make_examples("softmax", rows=20)
    known, others = 2, np.arange(8, 16)
    given = Examples(x, target[:8], None, np.arange(20))
    made = {"batch_size": 10, "epochs": 4, "shards": shards, "split": split}
    rows = np.r_[0, 5, others]
    network = Network(make_chain(RELU), "cross-entropy", adversarial_noise=0.5, **made)
    network.begin(given, rows, epoch=2, step=1)
    moves = network.minibatch.x - x[rows]
    assert (moves[:known] == 0).all()
    np.testing.assert_allclose(np.sqrt((moves[known:] ** 2).sum(axis=1)), 0.5, rtol=1e-9)

    plain = Network(make_chain(RELU), "cross-entropy", **made)
    probes = generator(0, Purpose.ADVERSARY, epoch=2, step=1).standard_normal(
        (8, x.shape[1]), dtype=np.float32
    )
    at = x[others] + scaled_rows(probes.astype(float), PROBE)
    clean = outputs(pairs_of(make_chain(RELU)), x[others])

    def loss(by):
        y = outputs(pairs_of(make_chain(RELU)), at + by)
        return -(clean * np.log(y)).sum(axis=1)

    steps = 1e-6 * np.eye(x.shape[1])
    slopes = np.stack([(loss(step) - loss(-step)) / 2e-6 for step in steps], axis=1)
    np.testing.assert_allclose(moves[known:], scaled_rows(slopes, 0.5), atol=1e-5)
    plain.begin(given, rows, epoch=2, step=1)
    np.testing.assert_array_equal(network.minibatch.target, plain.minibatch.target)
    np.testing.assert_array_equal(network.minibatch.weights, plain.minibatch.weights)


def test_rows_of_zeros_have_no_direction():
    x = np.float32([[0, 0], [3, 4]])
    np.testing.assert_allclose(scaled_rows(x, 10), [[0, 0], [6, 8]])


def stripes(rows=600, seed=0):
    """Return two long clusters side by side, their classes, and labels of four rows."""
    draws = np.random.default_rng(seed)
    classes = draws.integers(2, size=rows)
    X = np.stack([draws.uniform(-3, 3, rows), 2 * classes - 1 + draws.normal(0, 0.2, rows)], 1)
    turned = X @ np.array([[0.8, -0.6], [0.6, 0.8]])
    y = np.full(rows, -1)
    for label, side in ((0, -2), (0, 1), (1, -1), (1, 2)):  # not in the middle
        y[np.abs(X[:, 0] - side + 9 * (classes != label)).argmin()] = label
    return np.float32(turned), classes, y


def tuned(X, y, **settings):
    units = {"hidden_units": "relu", "visible_units": "gaussian"}
    stack = pretrain(X, layers=(2, 32, 32), schedule="none", seed=1, **units)
    usual = {"normalization": "batch", "input_noise": 0.1, "seed": 1, "warn": False}
    return finetune(stack, X, y, **usual | settings)


class TestFinetune:
    @pytest.mark.parametrize("noise", [0.0, 0.5])
    def test_rows_without_a_label_tell_where_classes_part(self, noise):
        X, classes, y = stripes()
        asked = {"unlabelled": "pseudo", "adversarial_noise": noise}
        learned = tuned(X, y, epochs=150, **asked)
        assert (np.asarray(learned.predict(X)) == classes).mean() > 0.99
        (record,) = learned.info["finetune"]
        assert (asked | {"examples": 4}).items() <= record.items()

    def test_noise_beyond_all_numbers_diverges_without_a_warning_of_numpy(self):
        X, _, y = stripes()
        advice = r"try a learning rate below 0\.002, adversarial noise below 1e\+38, and inputs"
        with pytest.raises(DivergedError, match=advice):
            tuned(X, y, unlabelled="pseudo", adversarial_noise=1e38, epochs=2)

    @pytest.mark.parametrize(
        ("is_part", "way", "steps"), [(True, "aligned", 13), (False, "pseudo", 12)]
    )
    def test_an_epoch_is_as_long_as_was_prepared_for(self, is_part, way, steps):
        X, classes, y = stripes()
        stack = pretrain(X, layers=(2, 8), schedule="none", hidden_units="relu", warn=False)
        given = {"objective": "classification", "unlabelled": way, "batch_size": 50, "epochs": 1}
        options = tuning_options(given)
        part = Part(X, y if is_part else classes, "y")
        assert Finetuning(Form.of(stack), options, part).steps == steps

    @pytest.mark.parametrize("split", ["units", "examples"])
    def test_workers_give_the_same_bits(self, split):
        X, _, y = stripes()
        own = {"unlabelled": "pseudo", "adversarial_noise": 0.5, "epochs": 3, "batch_size": 50}
        one, two = (tuned(X, y, split=split, shards=2, replicas=n, **own) for n in (1, 2))
        assert one.parameters_sha256 == two.parameters_sha256

    def test_without_rows_to_guess_it_is_supervised(self):
        X, classes, _ = stripes(100)
        given = {"epochs": 3, "batch_size": 20}
        ways = ({"unlabelled": "pseudo", "adversarial_noise": 0.5}, {})
        one, other = (tuned(X, classes, **way, **given) for way in ways)
        assert one.parameters_sha256 == other.parameters_sha256
        assert one.info["finetune"][0]["unlabelled"] == "none"

    @pytest.mark.parametrize("way", ["none", "pseudo", "aligned"])
    def test_without_rows_to_guess_a_notice_says_so(self, way):
        X, classes, y = stripes(100)
        text = f"unlabelled {way} has no effect: every row has a label, so no class is guessed"
        for labels in (classes, y):
            events = []
            own = {"unlabelled": way, "epochs": 1, "batch_size": 4, "observers": [events.append]}
            tuned(X, labels, **own)
            told = [message for message in notices_of(events) if "no effect" in message]
            assert told == ([text] if way != "none" and labels is classes else [])

    def test_the_result_is_a_plain_stack_and_validation_judges_it(self):
        X, classes, y = stripes()
        held_out = {"validation": X[:200], "validation_y": classes[:200]}
        learned = tuned(X, y, unlabelled="pseudo", epochs=5, **held_out)
        wrong = (np.asarray(learned.predict(X[:200])) != classes[:200]).mean()
        assert learned.history.finetune.validation[-1] == pytest.approx(wrong)

    @pytest.mark.parametrize(
        ("settings", "named"),
        [
            ({"unlabelled": "pseudo", "objective": "regression"}, "unlabelled: got pseudo"),
            ({"normalization": "batch", "objective": "reconstruction"}, "normalization: got batch"),
            ({"input_noise": 0.1, "objective": "reconstruction"}, "input_noise: got 0.1"),
            ({"input_noise": float("inf"), "objective": "regression"}, "input_noise: got inf"),
            ({"unlabelled": "pseudo", "batch_size": 1}, "batch_size: got 1"),
            ({"adversarial_noise": 0.5}, "adversarial_noise: got 0.5 with unlabelled none"),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, settings, named):
        with pytest.raises((SettingsError, msgspec.ValidationError), match=f"finetune_{named}"):
            FinetuneSettings(**settings)


class TestByData:
    def test_settings_give_enough_steps(self):
        settings = FinetuneSettings(objective="classification", unlabelled="pseudo")
        facts = Facts(200, 16, unlabelled=9800)
        found, changed = finetune_by_data(settings, ["unlabelled"], facts, [DenseShape(16, 8)])
        assert (found.batch_size, found.rate_schedule) == (320, "cosine")
        assert found.epochs * -(-9800 // (320 - labelled_of(320, 200))) >= 1500
        assert set(changed) == {"batch_size", "epochs", "learning_rate", "rate_schedule"}

    def test_given_ones_stay_and_few_rows_fit(self):
        settings = FinetuneSettings(unlabelled="pseudo", learning_rate=0.1, epochs=3)
        given = ["unlabelled", "learning_rate", "epochs"]
        found, _ = finetune_by_data(settings, given, Facts(10, 4, unlabelled=50), [])
        assert (found.batch_size, found.epochs, found.learning_rate) == (60, 3, 0.1)
