"""Whole steps of fine-tuning on a GPU, against the network in float64 and the CPU's bfloat16.

The stand-in runs their source with the fragments of a warp exchanged as by tensor cores; see
``test_backends_fused.py``.
"""

from itertools import pairwise

import fakecupy
import numpy as np
import pytest
from backends import BACKENDS, as_it_is, on_devices, with_tensor_cores
from devicearrays import in_both_orders, normal, one_of, same_bits
from minibatches import train
from stackcomparisons import alike

from syncpretrain import finetune, pretrain
from syncpretrain.backends import cuda_fused
from syncpretrain.backends.base import Rule
from syncpretrain.backends.cuda_fused import TUNING_FILES
from syncpretrain.backends.cuda_source import cuda_source
from syncpretrain.finetuning.chain import Affine, Dropout
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import Optimizer, adam, gradient_descent
from syncpretrain.learners.base import Places

SOURCE = cuda_source(TUNING_FILES)
OPTIMIZERS = {
    "adam": adam,
    "adam with decay": lambda network: adam(network, weight_decay=0.1),
    "sgd": gradient_descent,
    "momentum": lambda network: gradient_descent(network, momentum=0.5, weight_decay=0.1),
    "nesterov": lambda network: gradient_descent(network, momentum=0.5, nesterov=True),
}
CHAINS = {  # sizes, units, loss
    "one tile": ((6, 5, 4, 6), ("tanh", "bernoulli", "bernoulli"), "squared"),
    "several": ((70, 36, 68, 70), ("bernoulli", "relu", "bernoulli"), "cross-entropy"),
    "linear": ((33, 65, 1, 33), ("relu", "gaussian", "gaussian"), "squared"),
    "a classifier": ((20, 34, 3), ("tanh", "softmax"), "cross-entropy"),
    "one layer": ((5, 7), ("tanh",), "squared"),
}
ONE_TILE, SEVERAL = CHAINS["one tile"], CHAINS["several"]
# Kernels that move parameters do not know of which chain: so every chain, and every optimizer.
STEPS = [(chain, "adam with decay") for chain in CHAINS]
STEPS += [("several", name) for name in OPTIMIZERS if name != "adam with decay"]
LAUNCHED_AGAIN = [
    ("float32", {"weight_decay": 0.01}),
    ("float32", {"rate_schedule": "cosine"}),
    ("tf32", {"weight_decay": 0.01}),
    ("bfloat16", {"rate_schedule": "cosine"}),
]
WHOLE = ["forward_layer", "forward_output", "delta_of_layer", "move_network"]
ROWS, RATE = 70, 0.003

backend = one_of(BACKENDS[1:], with_tensor_cores)
double = one_of(["double"], with_tensor_cores)


def network(chain, *, backend=None, kind="f4", precision="float32", **options):
    sizes, units, loss = chain
    own = []
    for i, (shape, name) in enumerate(zip(pairwise(sizes), units, strict=True)):
        W, b = normal(*shape, seed=i) / np.sqrt(shape[0]), normal(shape[1], seed=9 + i)
        own.append(Affine(W.astype(kind), b.astype(kind), name, precision))
    return Network(own, loss=loss, batch_size=ROWS, backend=backend, **options)


def minibatches(chain) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return three, the last one smaller: bits, and targets as the last units may have."""
    sizes, units, _ = chain
    x = np.float32(normal(3 * ROWS, sizes[0]) > 0)
    target = np.float32(normal(3 * ROWS, sizes[-1], seed=1) > 0)
    if units[-1] == "softmax":
        target = np.eye(sizes[-1], dtype=np.float32)[np.arange(len(x)) % sizes[-1]]
    return [(x[rows], target[rows]) for rows in (slice(0, 70), slice(70, 140), slice(140, 199))]


def trained(network: Network, optimizer: Optimizer, given, weights=None) -> list[float]:
    """Return the errors of some steps; a device gets its arrays."""
    errors = []
    for step, arrays in enumerate(given):
        x, target = map(network.backend.asarray, arrays)
        options = {"rate": RATE, "epoch": 1, "step": step}
        errors.append(float(train(optimizer, x, target, weights, **options)))
    return errors


def state_of(network: Network, optimizer: Optimizer) -> list[np.ndarray]:
    moments = [array for array in optimizer.state().values() if array.size]
    places = Places([w.size + b.size for w, b in network.chain], network.backend)
    return [
        places.packed(network.backend.tohost(array)) for array in (network.parameters, *moments)
    ]


class TestSteps:
    @pytest.mark.parametrize(("backend", "case"), on_devices(STEPS), indirect=["backend"])
    def test_of_float32_against_float64(self, backend, case):
        chain, name = case
        given, found = minibatches(CHAINS[chain]), []
        for own, kind in ((backend, "f4"), (None, "f8")):
            net = network(CHAINS[chain], backend=own, kind=kind)
            optimizer = OPTIMIZERS[name](net)
            arrays = [[x.astype(kind) for x in pair] for pair in given]
            errors = trained(net, optimizer, arrays)
            found.append((errors, state_of(net, optimizer)))
        (errors, ours), (right, theirs) = found
        # Tensor cores truncate each sum of 8 terms, by 3e-8 of it in the mean. In the linear chain
        # errors grow a hundredfold, and it to 2.0e-6; NumPy's float32 is off by 6.5e-7 there.
        np.testing.assert_allclose(errors, right, rtol=4e-6)
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5)

    @pytest.mark.parametrize(("backend", "chain"), on_devices(CHAINS), indirect=["backend"])
    @pytest.mark.parametrize(("precision", "apart"), [("bfloat16", 1e-3), ("tf32", 2e-4)])
    def test_of_rounded_factors_against_those_of_the_cpu(self, backend, chain, precision, apart):
        given, found = minibatches(CHAINS[chain]), []
        for own, rounds in ((backend, precision), (None, precision), (backend, "float32")):
            net = network(CHAINS[chain], backend=own, precision=rounds)
            optimizer = gradient_descent(net, momentum=0.5)
            trained(net, optimizer, given)
            found.append(state_of(net, optimizer)[0])
        ours, theirs, exact = found
        np.testing.assert_allclose(ours, theirs, atol=apart)
        if precision == "tf32" and chain == "a classifier":
            return  # the last product is cuBLAS's, which rounds as it likes
        # Of the same factors, and not of others: that would be farther away.
        assert np.abs(ours - theirs).mean() < 0.3 * np.abs(ours - exact).mean()

    def test_an_output_that_is_not_finite_is_told(self, backend):
        for chain in ("one tile", "a classifier"):
            ((x, target), *_) = minibatches(CHAINS[chain])
            x = x.copy()
            x[3, 2] = np.nan
            net = network(CHAINS[chain], backend=backend)
            assert np.isnan(trained(net, adam(net), [(x, target)])).all()

    def test_go_on_from_a_state_to_the_same_bits(self, backend):
        given = minibatches(SEVERAL)
        one, other = (network(SEVERAL, backend=backend) for _ in range(2))
        first, second = adam(one), adam(other)
        trained(one, first, given[:2])
        kept = {name: array.copy() for name, array in first.state().items()}
        np.copyto(other.parameters, one.parameters)
        second.load_state(kept, steps=first.steps)
        trained(one, first, given[2:])
        trained(other, second, given[2:])
        same_bits(state_of(one, first), state_of(other, second))

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_weights_begin_at_multiples_of_16_bytes_and_the_gaps_stay_0(self, backend, name):
        net = network(ONE_TILE, backend=backend)
        optimizer = OPTIMIZERS[name](net)
        trained(net, optimizer, minibatches(ONE_TILE))
        first = net.parameters.data.ptr
        assert [weight.data.ptr - first for weight, _ in net.chain] == [0, 4 * 36, 4 * 60]
        for vector in (net.parameters, *optimizer.state().values()):
            if vector.size:  # 35, 24 and 30 numbers
                assert np.flatnonzero(backend.tohost(vector) == 0).tolist() == [35, 90, 91]

    def test_a_bias_that_is_not_behind_its_weight_is_not_for_them(self, double):
        net = network(ONE_TILE, backend=double)
        assert net.fused((), Rule("sgd")) is not None
        net.chain[1] = net.chain[1][0], double.zeros(4)
        assert net.fused((), Rule("sgd")) is None

    def test_the_order_of_threads_makes_no_difference(self, double):

        def worked():
            net = network(SEVERAL, backend=double)
            optimizer = adam(net)
            errors = trained(net, optimizer, minibatches(SEVERAL))
            return [*state_of(net, optimizer), errors]

        same_bits(*in_both_orders(SOURCE, worked))


class TestLaunches:
    def of_a_step(self, double, chain) -> list[str]:
        net = network(chain, backend=double)
        optimizer, given = adam(net), minibatches(chain)[0]
        trained(net, optimizer, [given])
        x, target = map(double.asarray, given)
        fakecupy.log.clear()
        train(optimizer, x, target, rate=RATE, epoch=1, step=1)
        others = {"reshape", "split", "asarray", "gather_rows"}  # bring the minibatch to its place
        return [what for _, _, what in fakecupy.log if what not in others]

    def test_of_the_autoencoder_of_8_layers(self, double):
        sizes = (9, 8, 7, 6, 5, 6, 7, 8, 9)
        found = self.of_a_step(double, (sizes, ["bernoulli"] * 8, "squared"))
        up, down = ["forward_layer"] * 7, ["delta_of_layer"] * 7
        assert found == [*up, "forward_output", *down, "move_network"]
        assert len(found) == 16

    def test_of_a_classifier(self, double):
        found = self.of_a_step(double, CHAINS["a classifier"])
        output = ["sgemm", "softmax_means", "wrong", "output_delta", "multiply", "add"]
        assert found == ["forward_layer", *output, "delta_of_layer", "move_network"]

    @pytest.mark.parametrize(
        ("change", "options"), [("dropout", {"dropout": Dropout(0.0, 0.3)}), ("weights", {})]
    )
    def test_of_other_networks_are_in_parts(self, double, change, options):
        net = network(ONE_TILE, backend=double, **options)
        weights = double.asarray(np.ones((ROWS, 1), "f4")) if change == "weights" else None
        optimizer, given = adam(net), minibatches(ONE_TILE)[0]
        trained(net, optimizer, [given], weights)
        fakecupy.log.clear()  # of the trial
        trained(net, optimizer, [given], weights)
        assert not set(WHOLE) & {what for _, _, what in fakecupy.log}

    def test_of_rows_that_they_do_not_take_are_in_parts(self, double):
        net = network(ONE_TILE, backend=double)
        ((x, target), *_) = minibatches(ONE_TILE)
        step = net.fused(tuple(adam(net).state().values()), Rule("adam"))
        there = [double.asarray(array) for array in (x, target)]
        assert step.takes(*there)
        for others in [
            (x, there[1]),
            (there[0].astype(np.float64), there[1]),
            (double.asarray(x.T.copy()).T, there[1]),
            (there[0][:, 1:], there[1]),
            (there[0][:0], there[1][:0]),
            (double.asarray(np.zeros((ROWS + 1, x.shape[1]), np.float32)), there[1]),
        ]:
            assert not step.takes(*others)


class TestTraining:
    @pytest.mark.parametrize(("backend", "case"), on_devices(LAUNCHED_AGAIN), indirect=["backend"])
    def test_blocks_that_are_launched_again_have_the_bits_of_steps(
        self, backend, bits, monkeypatch, queued, case
    ):
        precision, options = case
        stack = pretrain(bits, layers=(16, 12, 8), epochs=1, backend="numpy")
        own = {"epochs": 5, "batch_size": 30, "precision": precision, "backend": "cupy", **options}
        assert cuda_fused.why_not_fused(backend.xp, 0, precision, tunes=True) is None
        queued.clear()  # of this trial, once a process
        found = finetune(stack, bits, **own).parameters_sha256
        assert (queued.count("graph"), queued.count("move_network")) == (5 - 1, 2 * 7)
        as_it_is(monkeypatch)
        assert finetune(stack, bits, **own).parameters_sha256 == found
        assert (queued.count("graph"), queued.count("move_network")) == (5 - 1, 2 * 7 + 5 * 7)

    @pytest.mark.parametrize("more", [0, 1])
    def test_steps_are_in_parts_where_the_products_are_large(self, monkeypatch, double, bits, more):
        stack = pretrain(bits, layers=(16, 12, 8), epochs=1, backend="numpy")
        mean = 30 * (16 * 12 + 12 * 8) / 2  # the same on the way down
        monkeypatch.setitem(cuda_fused.MOST_OF_TUNING, "float32", mean - more)
        assert cuda_fused.why_not_fused(double.xp, 0, "float32", tunes=True) is None
        fakecupy.log.clear()  # of this trial, once a process
        finetune(stack, bits, epochs=1, batch_size=30, backend="cupy")
        queued = {what for _, _, what in fakecupy.log}
        assert ("move_network" in queued) == (not more)

    @pytest.mark.parametrize("layers", [(16, 8), "1x4x4,conv:3x3,8"])
    @pytest.mark.parametrize("by", [None, "weights of rows"])
    def test_one_number_to_predict_comes_to_numpys_parameters(self, backend, bits, layers, by):
        stack = pretrain(bits, layers=layers, epochs=1, backend="numpy")
        y = bits @ np.linspace(0, 1, 16)
        own = {"weights": None if by is None else 0.5 + y, "epochs": 2, "batch_size": 30}
        tuned, oracle = (
            finetune(stack, bits, y, **own, backend=name, warn=False) for name in ("cupy", "numpy")
        )
        assert tuned.info["finetune"][-1]["backend"] == "cupy"
        alike(tuned, oracle)
