"""Networks of links: gradients against finite differences, and splits against each other."""

from __future__ import annotations

import numpy as np
import pytest
from densechains import finite_differences
from linkedchains import (
    DROPOUTS,
    NETWORKS,
    as_float32,
    backwards,
    examples,
    interpreted,
    sampled,
)
from minibatches import gradient, place, train

from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import adam, gradient_descent
from syncpretrain.kernels import native
from syncpretrain.kernels.program import in_turn
from syncpretrain.parallel.worker_pool import WorkerPool

SPLITS = ("examples", "units", "hybrid")


@pytest.mark.parametrize("dropout", DROPOUTS.values(), ids=DROPOUTS)
@pytest.mark.parametrize(("chain", "loss"), NETWORKS.values(), ids=NETWORKS)
class TestGradient:
    def test_matches_central_finite_differences(self, chain, loss, dropout):
        x, target = examples(chain, 3)
        # Buffers longer than the minibatch: the rest of them must not count.
        network = Network(chain, loss=loss, batch_size=4, dropout=dropout, shards=2)
        gradient(network, x, target, epoch=2, step=5)
        places = sampled(network)
        found = network.gradients[places]
        expected = finite_differences(network, x, target, places=places, epoch=2, step=5)
        assert np.abs(found).max() > 0.01
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8 * np.abs(found).max())

    @pytest.mark.parametrize("split", SPLITS)
    @pytest.mark.parametrize("shards", [1, 3])
    def test_float32_agrees_with_float64(self, chain, loss, shards, split, dropout):
        options = {"batch_size": 6, "dropout": dropout, "shards": shards, "split": split}
        found = {}
        for kind, links in (("f8", chain), ("f4", as_float32(chain))):
            network = Network(links, loss=loss, **options)
            error = gradient(network, *examples(chain, dtype=kind), epoch=1)
            assert network.gradients.dtype == kind
            found[kind] = error, network.gradients
        assert found["f4"][0] == pytest.approx(found["f8"][0], rel=1e-5)
        np.testing.assert_allclose(found["f4"][1], found["f8"][1], rtol=2e-3, atol=2e-4)


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
    def trained(self, name, split, run, *, shards=4, rows=10, optimizer=adam):
        chain, loss = NETWORKS[name]
        x, target = examples(chain, rows, dtype=np.float32)
        network = Network(
            as_float32(chain),
            loss=loss,
            batch_size=10,
            dropout=DROPOUTS["dropout"],
            shards=shards,
            split=split,
        )
        moving = optimizer(network, weight_decay=0.1)
        for step in range(4):
            error = train(moving, x, target, rate=0.01, epoch=1, step=step, run=run)
        return error, network.parameters

    @pytest.mark.parametrize("rows", [10, 3])
    def test_their_order_changes_no_bit(self, name, split, rows):
        found = [self.trained(name, split, run, rows=rows) for run in (interpreted, backwards)]
        assert found[0][0] == found[1][0]
        np.testing.assert_array_equal(found[0][1], found[1][1])

    def test_the_number_of_workers_changes_no_bit(self, name, split):
        found = []
        for workers in (1, 2, 4):
            pool = WorkerPool(workers, "test")
            try:
                run = lambda work, shards: pool.run(work, shards, workers)  # noqa: B023, E731
                found.append(self.trained(name, split, run))
            finally:
                assert pool.close() == []
        for error, parameters in found[1:]:
            assert error == found[0][0]
            np.testing.assert_array_equal(parameters, found[0][1])

    @pytest.mark.parametrize("optimizer", [adam, gradient_descent])
    def test_the_interpreted_step_is_the_compiled_one(self, name, split, optimizer):
        found = [
            self.trained(name, split, run, optimizer=optimizer) for run in (in_turn, interpreted)
        ]
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
        np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-5)


def length_of(network, x, target) -> int:
    """Return the number of phases of a step without moves."""
    place(network, x, target)
    return network.program().length


def test_hybrid_splits_convolutions_by_examples_and_dense_links_by_units():
    """Phases: up and down the convolutions at once, two for each dense link, and the sums."""
    chain, loss = NETWORKS["classifier"]
    x, target = examples(chain)
    lengths = {}
    for split in SPLITS:
        network = Network(chain, loss=loss, batch_size=6, shards=2, split=split)
        lengths[split] = length_of(network, x, target)
    assert lengths == {"examples": 2, "units": 8, "hybrid": 1 + 2 + 2 + 1 + 1}


@pytest.mark.skipif(native.extension is None, reason="the compiled kernels are not there")
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("chain", "loss"), NETWORKS.values(), ids=NETWORKS)
def test_a_step_in_float32_is_one_call(chain, loss, split):
    chain, kind = as_float32(chain), np.float32
    network = Network(chain, loss=loss, batch_size=6, shards=3, split=split)
    place(network, *examples(chain, dtype=kind))
    assert network.program(adam(network, weight_decay=0.1).moves).is_compiled
