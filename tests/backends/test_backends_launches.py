"""What a step launches on a device, one by one; and what fewer launches leave as it is."""

import fakecupy
import numpy as np
import pytest
from densechains import make_chain
from devicearrays import in_both_orders, normal
from learnersteps import usual
from minibatches import train

from syncpretrain import finetune, pretrain
from syncpretrain.backends.cuda_source import cuda_source
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import adam, gradient_descent
from syncpretrain.kernels.backprop import means_and_error, squared_error
from syncpretrain.learners.autoencoder import Autoencoder
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import WholeStep

VIEWS = {"reshape", "split", "empty_like"}  # are no launches
PLACE = {"asarray", "gather_rows"}  # bring a minibatch to where it lies
VISIBLE, HIDDEN, ROWS = 18, 11, 20
STEP = {"batch_size": ROWS, "weight_decay": 2e-3, "l1": 1e-3}
UP = ["sgemm", "unit_means"]
BACK = ["sgemm", "sgemm", "derivative_and_sums"]
AUTOENCODED = ["gather_rows", *UP, *UP, "output_delta", *BACK[1:]]
RBM_STEP = [
    *("gather_rows", "sgemm", "draw_bernoulli", "sgemm", "means_and_error", "sgemm"),
    *("means_and_differences", "sgemm", "momentum_steps"),
]


def rbm(**settings) -> RBM:
    return RBM(1, VISIBLE, HIDDEN, usual(**STEP | settings))


def autoencoder(**settings) -> Autoencoder:
    return Autoencoder(1, VISIBLE, HIDDEN, usual(**STEP | settings))


def launched(step) -> list[str]:
    """Return the names of what a step launches."""
    fakecupy.log.clear()
    step()
    return [what for _, _, what in fakecupy.log if what not in VIEWS]


def tuned(optimizer, x, y) -> list[str]:
    """Return the names of what a step of an optimizer launches, once the minibatch is in place."""
    names = launched(lambda: train(optimizer, x, y, rate=0.1))
    return [name for name in names if name not in PLACE]


class TestLaunches:
    @pytest.mark.parametrize(
        ("learner", "expected"),
        [
            (rbm(), RBM_STEP),
            (rbm(cd_steps=2), [*RBM_STEP[:3], "sgemm", "unit_means", *RBM_STEP[1:]]),
            (
                rbm(persistent=True),
                [
                    *("gather_rows", *UP, "divide", "sgemm", "means_and_error", "multiply"),
                    *("divide", *["sgemm", "draw_bernoulli"] * 2, "phase_differences", "sgemm"),
                    "momentum_steps",
                ],
            ),
            (
                rbm(hidden_dropout=0.5),
                [
                    *("gather_rows", "sgemm", "fill_uniform", "greater_equal", "draw_bernoulli"),
                    *("multiply", "multiply", "divide", "sgemm", "means_and_error", "sgemm"),
                    *("unit_means", "multiply", "phase_differences", "sgemm", "momentum_steps"),
                ],
            ),
            (autoencoder(), [*AUTOENCODED, "sgemm", "momentum_steps"]),
            (
                autoencoder(tied=False, loss="cross-entropy"),
                [*AUTOENCODED, "sgemm", "sgemm", "momentum_steps"],
            ),
        ],
    )
    def test_of_a_layer(self, double, learner, expected):
        learner.to(double)
        X = double.asarray(np.float32(normal(40, VISIBLE) > 0))
        rows, step = double.asarray(np.arange(ROWS)), WholeStep(learner)
        with learner.stream:
            names = launched(lambda: step.train_step(X, rows, epoch=1, step=0))
        assert names == expected

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [({}, ["adam_step"]), ({"weight_decay": 0.01}, ["shrink"] * 4 + ["adam_step"])],
    )
    def test_of_fine_tuning(self, double, settings, expected):
        chain = make_chain(["bernoulli"] * 4, (6, 5, 4, 5, 6), np.float32)
        network = Network(chain, loss="squared", batch_size=8, backend=double)
        x = double.asarray(np.float32(normal(8, 6) > 0))
        optimizer = adam(network, **settings)
        assert tuned(optimizer, x, x) == [*UP * 4, "output_delta", *BACK * 3, "sgemm", *expected]

    def test_of_fine_tuning_a_classifier(self, double):
        chain = make_chain(["bernoulli", "softmax"], (6, 5, 3), np.float32)
        network = Network(chain, loss="cross-entropy", batch_size=8, backend=double)
        x, y = double.asarray(normal(6, 6)), double.asarray(np.eye(6, 3, dtype=np.float32))
        optimizer = gradient_descent(network, momentum=0.5)
        forward = [*UP, "sgemm", "softmax_means", "wrong", "output_delta"]
        finite = ["multiply", "add"]  # the count is NaN where the output is not finite
        assert tuned(optimizer, x, y) == [*forward, *BACK, "sgemm", "sgd_step", *finite]


def test_what_lies_between_the_flat_parameters_of_a_learner_stays_0(double):
    learner = autoencoder(tied=False)
    learner.to(double)
    X = double.asarray(np.float32(normal(40, VISIBLE) > 0))
    rows, step, flat = double.asarray(np.arange(ROWS)), WholeStep(learner), learner.flat
    double.synchronize()
    with learner.stream:
        for number in range(3):
            step.train_step(X, rows, epoch=1, step=number)
        learner.stream.synchronize()
    assert flat.weights == 2 * 200, "two of 198"
    starts = sorted(array.data.ptr - flat.parameters.data.ptr for array in learner.parameters)
    assert starts == [4 * start for start in (0, 200, 400, 412)]
    assert learner.weight.data.ptr == flat.parameters.data.ptr
    for vector in (flat.parameters, flat.gradients, flat.velocities):
        between = double.tohost(vector)[[198, 199, 398, 399, 411, 430, 431]]
        np.testing.assert_array_equal(between, 0)


def test_means_of_exclusive_units_and_their_error_are_several_launches(double):
    y, x, out = double.asarray(normal(6, 5)), double.zeros((6, 5)), double.zeros((6, 5))
    names = launched(lambda: means_and_error(y, double.zeros(5), "softmax", x, out=out))
    assert names == ["softmax_means", "squared_error"]


class TestSums:
    """The sum over blocks, which the one adds up that finishes last."""

    def test_the_same_bits_whichever_block_is_the_last(self, double):
        x, y = double.asarray(normal(300, 300)), double.asarray(normal(300, 300, seed=1))
        one, other = in_both_orders(
            cuda_source(), lambda: float(squared_error(x, y, out=double.empty((300, 300))))
        )
        assert one == other != 0

    def test_launches_of_any_size_follow_one_another(self, double):
        x = double.asarray(np.ones((300, 300), np.float32))
        for n in (300, 1, 7, 300):
            error = squared_error(x[:n], double.zeros((n, 300)), out=double.empty((n, 300)))
            assert float(error) == 300 * n

    def test_streams_have_counters_of_their_own(self, double, monkeypatch):
        seen: dict[str, set[int]] = {}
        real = fakecupy.RawKernel.__call__

        def noted(self, grid, block, args, **options):
            if self._name == "squared_error":
                counters = seen.setdefault(fakecupy.current_stream(), set())
                counters.add(args[-2].data.ptr)
            real(self, grid, block, args, **options)

        monkeypatch.setattr(fakecupy.RawKernel, "__call__", noted)
        streams = [double.stream() for _ in range(2)]
        x = double.asarray(normal(9, 9))
        for stream in (*streams, *streams):
            with stream:
                squared_error(x, x, out=double.empty((9, 9)))
        first, second = seen.values()
        assert len(first) == len(second) == 1 and first != second


@pytest.mark.parametrize("model", ["rbm", "autoencoder"])
def test_training_has_the_same_bits_in_any_order_of_the_threads(double, bits, model):
    def sums() -> tuple[str, str]:
        options = {"layers": (16, 12, 8), "epochs": 2, "batch_size": 15, "model": model}
        stack = pretrain(bits[:90], **options, backend="cupy")
        tuned = finetune(stack, bits[:90], epochs=2, batch_size=15, backend="cupy")
        return stack.parameters_sha256, tuned.parameters_sha256

    one, other = in_both_orders(cuda_source(), sums)
    assert one == other
