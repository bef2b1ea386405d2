"""The network's gradient against finite differences, its dropout, and its splits."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from densechains import CHAINS, finite_differences, make_chain, make_examples
from linkedchains import DROPOUTS, NETWORKS, as_float32, backwards, examples, interpreted, sampled
from minibatches import gradient, loss_of, place, train

from syncpretrain.finetuning.chain import Affine, Dropout
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import adam, gradient_descent
from syncpretrain.kernels import native
from syncpretrain.kernels.program import in_turn

SPLITS = ("examples", "units", "hybrid")
ALL = {  # chain, its loss, its examples, and the parameters to look at
    name: (make_chain(kinds), loss, partial(make_examples, kinds[-1]), lambda network: None)
    for name, (kinds, loss) in CHAINS.items()
}
ALL |= {
    f"linked {name}": (chain, loss, partial(examples, chain), sampled)
    for name, (chain, loss) in NETWORKS.items()
}


def normalized(kind):
    *hidden, top = make_chain(("relu", "relu", kind))
    return [*(replace(link, is_normalized=True) for link in hidden), top]


ALL |= {
    f"normalized {kind}": (normalized(kind), loss, partial(make_examples, kind), lambda _: None)
    for kind, loss in (("softmax", "cross-entropy"), ("gaussian", "squared"))
}


@pytest.mark.parametrize("dropout", DROPOUTS.values(), ids=DROPOUTS)
@pytest.mark.parametrize(("chain", "loss", "make", "some"), ALL.values(), ids=ALL)
class TestGradient:
    @pytest.mark.parametrize("shards", [1, 2])
    def test_matches_central_finite_differences(self, chain, loss, make, some, dropout, shards):
        x, target = make()
        # Buffers longer than the minibatch: the rest of them must not count.
        network = Network(chain, loss=loss, batch_size=8, dropout=dropout, shards=shards)
        gradient(network, x, target, epoch=2, step=5)
        places, found = some(network), network.gradients.copy()
        expected = finite_differences(network, x, target, places=places, epoch=2, step=5)
        found = found if places is None else found[places]
        assert np.abs(found).max() > 0.01
        atol = 1e-8 * (1 if places is None else np.abs(found).max())
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=atol)

    @pytest.mark.parametrize("split", SPLITS)
    @pytest.mark.parametrize("shards", [1, 3])
    def test_float32_agrees_with_float64(self, chain, loss, make, some, dropout, shards, split):
        options = {"batch_size": 6, "dropout": dropout, "shards": shards, "split": split}
        found = {}
        for kind, links in (("f8", chain), ("f4", as_float32(chain))):
            network = Network(links, loss=loss, **options)
            error = gradient(network, *make(dtype=kind), epoch=1)
            assert network.gradients.dtype == kind
            found[kind] = error, network.gradients
        assert found["f4"][0] == pytest.approx(found["f8"][0], rel=1e-5)
        np.testing.assert_allclose(found["f4"][1], found["f8"][1], rtol=1e-3, atol=1e-4)


class TestErrors:
    def test_loss_of_classes_is_the_mean_log_probability_of_the_right_ones(self):
        chain = [Affine(np.eye(2), np.zeros(2), "softmax")]
        x, target = np.log([[0.25, 0.75], [0.5, 0.5]]), np.array([[1.0, 0], [0, 1]])
        network = Network(chain, loss="cross-entropy", batch_size=2)
        assert loss_of(network, x, target) == pytest.approx(-np.log([0.25, 0.5]).mean())

    def test_cross_entropy_of_binary_units_counts_both_values(self):
        chain = [Affine(np.eye(2), np.zeros(2), "bernoulli")]
        network = Network(chain, loss="cross-entropy", batch_size=1)
        x, target = np.log([[1 / 3, 4.0]]), np.array([[1.0, 0.5]])  # means 1/4 and 4/5
        expected = -np.log(0.25) - 0.5 * np.log(0.8) - 0.5 * np.log(0.2)
        assert loss_of(network, x, target) == pytest.approx(expected)

    @pytest.mark.parametrize("shards", [1, 2])
    def test_error_of_classes_is_the_share_of_wrong_ones_in_any_number_of_minibatches(self, shards):
        chain = [Affine(np.eye(2), np.zeros(2), "softmax")]
        x, target = np.eye(2)[[0, 1, 1, 0, 0]], np.eye(2)[[0, 1, 0, 1, 0]]
        network = Network(chain, loss="cross-entropy", batch_size=2, shards=shards)
        assert network.error(x, target) == 0.4
        assert gradient(network, x[2:4], target[2:4]) == 2

    def test_squared_error_is_summed_over_outputs(self):
        chain = [Affine(np.eye(2), np.ones(2), "gaussian")]
        network = Network(chain, loss="squared", batch_size=2, shards=2)
        x = np.array([[0.0, 0], [1, 2], [3, 4]])
        assert network.error(x, np.zeros((3, 2))) == (2 + 13 + 41) / 3

    def test_output_that_is_not_finite_gives_nan(self):
        chain = [Affine(np.full((1, 2), np.inf), np.zeros(2), "softmax")]
        network = Network(chain, loss="cross-entropy", batch_size=1, shards=2)
        assert np.isnan(gradient(network, np.ones((1, 1)), np.array([[1.0, 0]])))


def let_through(*, share=0.25, hidden=0.0, seed=0, epoch=1, step=0):
    """Return what two identity layers make of 1000 ones."""
    eye = Affine(np.eye(1000, dtype=np.float32), np.zeros(1000, dtype=np.float32), "gaussian")
    dropout = Dropout(share, hidden, seed)
    network = Network([eye, eye], loss="squared", batch_size=1, dropout=dropout)
    x = np.ones((1, 1000), dtype=np.float32)
    gradient(network, x, 0 * x, epoch=epoch, step=step)
    return network.chain_gradients[-1][1] / 2  # of a bias: 2 (y - target)


class TestDropout:
    def test_inputs_and_hidden_units_have_shares_of_their_own(self):
        found = let_through(share=0.5, hidden=0.2)
        assert np.unique(found) == pytest.approx([0, 1 / 0.5 / 0.8])
        assert (found > 0).mean() == pytest.approx(0.4, abs=0.07)

    @pytest.mark.parametrize("other", [{"seed": 1}, {"epoch": 2}, {"step": 1}])
    def test_depends_on_seed_epoch_and_step_alone(self, other):
        np.testing.assert_array_equal(let_through(), let_through())
        assert not np.array_equal(let_through(), let_through(**other))

    def test_what_was_drawn_before_does_not_matter(self):
        x, target = make_examples("bernoulli")
        chain = make_chain(("bernoulli",) * 3)
        options = {"loss": "squared", "batch_size": 6, "dropout": Dropout(0.5, 0.5)}
        used, fresh = (Network(chain, **options) for _ in range(2))
        gradient(used, x, target, epoch=1, step=0)
        few = x[:2], target[:2]  # the stale rows behind them do not count
        assert gradient(used, *few, epoch=1, step=1) == gradient(fresh, *few, epoch=1, step=1)
        np.testing.assert_array_equal(used.gradients, fresh.gradients)

    def test_nothing_is_left_out_in_evaluation(self):
        x, target = make_examples("bernoulli")
        chain = make_chain(("bernoulli",) * 3)
        plain = Network(chain, loss="squared", batch_size=6)
        dropping = Network(chain, loss="squared", batch_size=6, dropout=Dropout(0.5, 0.5))
        assert dropping.error(x, target) == plain.error(x, target)
        assert gradient(dropping, x, target) != gradient(plain, x, target)


def test_parameters_are_copied_and_the_chain_views_them():
    chain = make_chain(("relu", "relu", "relu"))
    network = Network(chain, loss="squared", batch_size=1)
    network.parameters[:] = 0
    assert all(step.weight.any() and step.bias.any() for step in chain)
    assert not any(weight.any() or bias.any() for weight, bias in network.chain)


class TestNormalization:
    def gradients(self, x, target, **options):
        options = {"loss": "cross-entropy", "batch_size": 8, **options}
        network = Network(normalized("softmax"), **options)
        gradient(network, x, target, epoch=2, step=5)
        return network.gradients

    @pytest.mark.parametrize("dropout", DROPOUTS.values(), ids=DROPOUTS)
    def test_by_units_is_the_same_as_in_one_shard(self, dropout):
        given, how = make_examples("softmax"), {"dropout": dropout, "split": "units"}
        one, *others = (self.gradients(*given, shards=shards, **how) for shards in (1, 2, 3))
        np.testing.assert_allclose(others, [one] * 2, rtol=1e-10, atol=1e-14)

    def test_by_examples_each_shard_normalizes_its_rows(self):
        x, target = make_examples("softmax")
        parts = slice(0, len(x) // 2), slice(len(x) // 2, len(x))
        halves = [self.gradients(x[rows], target[rows]) for rows in parts]
        found = self.gradients(x, target, shards=2, split="examples")
        np.testing.assert_allclose(found, np.mean(halves, axis=0), rtol=1e-10)


@pytest.mark.parametrize("rows", [10, 2])
@pytest.mark.parametrize(("chain", "loss"), NETWORKS.values(), ids=NETWORKS)
def test_every_split_takes_the_same_steps_up_to_rounding(chain, loss, rows):
    x, target = examples(chain, rows)
    found = []
    for split, shards in (("examples", 1), *((split, 4) for split in SPLITS)):
        network = Network(
            chain, loss=loss, batch_size=10, dropout=DROPOUTS["dropout"], shards=shards, split=split
        )
        optimizer = gradient_descent(network, momentum=0.9, nesterov=True, weight_decay=0.01)
        errors = [train(optimizer, x, target, rate=0.01, epoch=1, step=step) for step in range(4)]
        found.append((errors, network.parameters))
    for errors, parameters in found[1:]:
        np.testing.assert_allclose(errors, found[0][0], rtol=1e-10)
        np.testing.assert_allclose(parameters, found[0][1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", ["classifier", "unrolled"])
class TestShards:
    def trained(self, name, split, run, *, rows=10, optimizer=adam):
        chain, loss = NETWORKS[name]
        x, target = examples(chain, rows, dtype=np.float32)
        options = {"batch_size": 10, "dropout": DROPOUTS["dropout"], "split": split}
        network = Network(as_float32(chain), loss=loss, shards=4, **options)
        moving = optimizer(network, weight_decay=0.1)
        for step in range(4):
            error = train(moving, x, target, rate=0.01, epoch=1, step=step, run=run)
        return error, network.parameters

    @pytest.mark.parametrize("rows", [10, 3])
    def test_their_order_changes_no_bit(self, name, split, rows):
        found = [self.trained(name, split, run, rows=rows) for run in (interpreted, backwards)]
        assert found[0][0] == found[1][0]
        np.testing.assert_array_equal(found[0][1], found[1][1])

    @pytest.mark.parametrize("optimizer", [adam, gradient_descent])
    def test_the_interpreted_step_is_the_compiled_one(self, name, split, optimizer):
        found = [
            self.trained(name, split, run, optimizer=optimizer) for run in (in_turn, interpreted)
        ]
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
        np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-5)


def test_hybrid_splits_convolutions_by_examples_and_dense_links_by_units():
    """Phases: up and down the convolutions at once, two for each dense link, and the sums."""
    chain, loss = NETWORKS["classifier"]
    lengths = {}
    for split in SPLITS:
        network = Network(chain, loss=loss, batch_size=6, shards=2, split=split)
        place(network, *examples(chain))
        lengths[split] = network.program().length
    assert lengths == {"examples": 2, "units": 8, "hybrid": 1 + 2 + 2 + 1 + 1}


@pytest.mark.skipif(native.extension is None, reason="the compiled kernels are not there")
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("chain", "loss"), NETWORKS.values(), ids=NETWORKS)
def test_a_step_in_float32_is_one_call(chain, loss, split):
    chain, kind = as_float32(chain), np.float32
    network = Network(chain, loss=loss, batch_size=6, shards=3, split=split)
    place(network, *examples(chain, dtype=kind))
    assert network.program(adam(network, weight_decay=0.1).moves).is_compiled
