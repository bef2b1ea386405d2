"""Whole steps of contrastive divergence on a GPU, against float64 and NumPy's draws.

The stand-in runs their source with the fragments of a warp exchanged as by tensor cores, whose
factors lose what is beyond 11 bits. States are those of NumPy's draws at the same address and of
the kernel's own means, which differ in their last bits from NumPy's: so a state that is compared
with NumPy's could differ where a draw is within 1e-7 of a mean. For these seeds none does.
"""

import ctypes
import re

import fakecuda
import fakecupy
import numpy as np
import pytest
from backends import BACKENDS, backend_of, with_tensor_cores
from devicearrays import framed, in_both_orders, normal, one_of, relative, same_bits, unframed
from learnersteps import usual
from stackcomparisons import alike
from trialruns import notices_of
from unitkinds import logistic as sigmoid

from syncpretrain import pretrain
from syncpretrain.backends import cublas, cuda_fused
from syncpretrain.backends.base import Backend, FusedArrays, Pace
from syncpretrain.backends.cuda_source import CudaSource, cuda_source
from syncpretrain.kernels.precision import PRECISIONS
from syncpretrain.learners import steps
from syncpretrain.learners.rbm import RBM
from syncpretrain.pretraining.build import step_for
from syncpretrain.rng import Address, Purpose

ADDRESS = Address(11, Purpose.HIDDEN, layer=1, epoch=2, step=3)
SOURCE = cuda_source(cuda_fused.FUSED_FILES)
SIZES = [(1, 1, 1), (3, 5, 2), (64, 32, 32), (65, 33, 34), (70, 100, 36), (130, 44, 68)]
WHOLE = ["draw_hidden", "reconstruct", "find_hidden", "move_parameters"]
LAYERS = (16, 12, 8)

backend = one_of(BACKENDS[1:], with_tensor_cores)
double = one_of(["double"], with_tensor_cores)


def without_others(source: str, name: str) -> str:
    """Return a source with one kernel alone, which is compiled in a fraction of the time."""
    bounds = r"(?:__launch_bounds__\([^)]*\) )?"
    others = rf'^extern "C" __global__ void (?!{bounds}{name}\(){bounds}\w+\(.*?^}}$'
    return re.sub(others, "", source, flags=re.MULTILINE | re.DOTALL)


def truncated(before: float, terms: list[float]) -> float:
    """Return a sum of the stand-in's tensor cores."""
    total = fakecuda.compiled(SOURCE).shim_truncated_sum
    total.restype, given = ctypes.c_float, (ctypes.c_double * len(terms))(*terms)
    return total(ctypes.c_float(before), given, len(terms))


def reconstructed(backend, h, W, source=None, precision="float32"):
    """Return h W^T, by the kernel that makes linear visible units of states."""
    (n, hidden), visible = h.shape, len(W)
    device = [backend.asarray(x) for x in (h, W, np.zeros(visible, np.float32), np.arange(n))]
    X, out = backend.zeros((n, visible)), backend.empty((n, visible))
    sums = backend.empty((-(-n // cuda_fused.FEW[0]), visible))
    errors = backend.empty(cuda_fused.tiles_of(n, visible), "f8")
    module = CudaSource(backend.xp, cuda_fused.FUSED_FILES, precision)
    if source is not None:
        alone = without_others(source, "reconstruct")
        module._module = backend.xp.RawModule(code=alone, options=("--fmad=false",))
    of_x, of_out = (X, visible, n - 1, device[3]), (out, visible, sums, errors)
    args = (device[0], hidden, device[1], hidden, device[2], *of_x, *of_out, n, visible, hidden)
    gaussian = module.units["gaussian"]
    shape = (cuda_fused.tiles_of(n, visible),), (cuda_fused.PRODUCT_THREADS,)
    module.launch("reconstruct", *shape, *args, gaussian, None, shared=cuda_fused.PRODUCT_MEMORY)
    return tuple(map(backend.tohost, (out, sums, errors)))


def drawn(backend, v, rows, W, b):
    """Return means and states of hidden units."""
    n, (visible, hidden) = len(rows), W.shape
    X, numbers, weight, bias = map(backend.asarray, (v, rows, W, b))
    means, states = backend.empty((n, hidden)), backend.empty((n, hidden))
    words = [np.uint64(word) for word in (*ADDRESS.key, *ADDRESS.counter)]
    of_x, out = (X, visible, len(v) - 1, numbers), (means, hidden, states, hidden)
    args = (*of_x, weight, hidden, bias, *out, n, visible, hidden, *words, None)
    shape = (cuda_fused.tiles_of(n, hidden),), (cuda_fused.PRODUCT_THREADS,)
    module = CudaSource(backend.xp, cuda_fused.FUSED_FILES)
    module.launch("draw_hidden", *shape, *args, shared=cuda_fused.PRODUCT_MEMORY)
    return backend.tohost(means), backend.tohost(states)


class TestSumsOfTensorCores:
    """What the stand-in takes them for: rounded toward zero, with two bits more until then."""

    @pytest.mark.parametrize(
        ("before", "terms", "expected"),
        [
            (0.0, [1.5, -0.25, 3.0], 4.25),
            (0.0, [0.0, 0.0], 0.0),
            (1.0, [2.0**-23], 1 + 2.0**-23),
            (1.0, [2.0**-24], 1.0),
            (1.0, [1.9 * 2.0**-24], 1.0),  # to nearest it were the float beside
            (-1.0, [-1.9 * 2.0**-24], -1.0),
            (1.0, [2.0**-24, 2.0**-24], 1 + 2.0**-23),
            (1.0, [2.0**-25] * 4, 1 + 2.0**-23),  # of the two bits more
            (1.0, [2.0**-26] * 8, 1.0),  # below these
            (-1.0, [2.0**-26] * 8, -1.0),
            (2.0**24, [1.0, 1.0, -(2.0**24)], 2.0),
            (1.0, [2.0**-25, -1.0], 2.0**-25),
            (1.0, [float("inf")], float("inf")),
            (0.0, [3e38, 3e38], float("inf")),
            (1.0, [float("nan"), 2.0], float("nan")),
            (float("inf"), [-float("inf")], float("nan")),
        ],
    )
    def test_known_answers(self, before, terms, expected):
        np.testing.assert_equal(truncated(before, terms), expected)


class TestProducts:
    @pytest.mark.parametrize("terms", [784, 2000])
    def test_long_sums_against_float64(self, backend, terms):
        """Terms of one sign; in one sum of tensor cores they lose more than a float rounds."""
        h, W = np.abs(normal(5, terms)), np.abs(normal(4, terms, seed=1))
        expected = h.astype(np.float64) @ W.T
        assert relative(reconstructed(backend, h, W)[0], expected) < 4e-7

    @pytest.mark.parametrize("precision", PRECISIONS)
    @pytest.mark.parametrize(("n", "visible", "hidden"), SIZES)
    def test_down_against_float64(self, backend, n, visible, hidden, precision):
        h, W = normal(n, hidden), normal(visible, hidden, seed=1)
        out, sums, errors = reconstructed(backend, h, W, precision=precision)
        h, W = map(PRECISIONS[precision].rounds, (h, W))
        expected = h.astype(np.float64) @ W.T
        assert relative(out, expected) < 4e-7
        assert relative(sums.sum(axis=0), -expected.sum(axis=0)) < 1e-5
        assert errors.sum() == pytest.approx(np.square(expected).sum(), rel=1e-6)

    @pytest.mark.parametrize(("n", "visible", "hidden"), SIZES)
    def test_up_against_float64_and_numpys_draws(self, backend, n, visible, hidden):
        v, W, b = normal(n + 4, visible), normal(visible, hidden, seed=1), normal(hidden, seed=2)
        rows = np.random.default_rng(3).permutation(n + 4)[:n]
        means, states = drawn(backend, v, rows, W, b)
        expected = sigmoid(v[rows].astype(np.float64) @ W + b)
        np.testing.assert_allclose(means, expected, atol=2e-6)
        draws = ADDRESS.generator().random((n, hidden), dtype=np.float32)
        np.testing.assert_array_equal(states, draws < means)

    @pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
    def test_rounded_factors_have_their_bits(self, backend, precision):
        """Ties, numbers that are next to some, and the largest."""
        halves = np.arange(0x3F7F0000, 0x3F830000, 0x800, dtype=np.uint32)
        bits = (halves[:, None] + np.uint32([0, 1, 0x7FF])).reshape(-1)
        more = [0, 0x80000000, 0x800000, 0x80800001, 0x7F7FFFFF, 0x7F7F0000]
        x = np.concatenate([bits, np.uint32(more)]).view(np.float32)
        x = np.concatenate([x, -x])[:, None]
        out, _, _ = reconstructed(backend, x, np.ones((1, 1), np.float32), precision=precision)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(out, PRECISIONS[precision].rounds(x))

    @pytest.mark.parametrize("precision", PRECISIONS)
    @pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F800000, 0xFF800000])
    def test_what_is_no_finite_number_is_not_lost(self, backend, bits, precision):
        """As CUDA's own NaN would be, whose bits overflow where they are rounded."""
        h, W = normal(9, 40), normal(5, 40, seed=1)
        h[3, 7] = np.uint32(bits).view(np.float32)
        out, _, errors = reconstructed(backend, h, W, precision=precision)
        assert not np.isfinite(out[3]).any() and np.isfinite(np.delete(out, 3, axis=0)).all()
        assert not np.isfinite(errors.sum())

    def test_a_row_number_outside_is_that_of_the_nearest(self, double):
        v, W, b = normal(5, 7), normal(7, 6, seed=1), normal(6, seed=2)
        found = drawn(double, v, np.array([-2, 9, 2]), W, b)
        same_bits(found, drawn(double, v, np.array([0, 4, 2]), W, b))

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [
            ("tile + S::OF_A, b, output, term + 4 * e + t", "tile + S::OF_A, b, output, term + t"),
            ("__syncthreads();  // this tile is there", "//"),
            ("await_copies<STAGES - 2>();\n", "\n"),
        ],
    )
    def test_the_stand_in_tells_a_wrong_source(self, double, right, wrong):
        h, W = normal(70, 40), normal(45, 40, seed=1)
        assert SOURCE.count(right) >= 1
        head, tail = SOURCE.rsplit(right, 1)
        out, _, _ = reconstructed(double, h, W, head + wrong + tail)
        assert not relative(out, h.astype(np.float64) @ W.T) < 3e-5

    def test_a_misaligned_copy_is_refused(self, double):
        source = SOURCE.replace("return ((uint64)first & 15) == 0 && (step & 3) == 0;", "return 1;")
        with pytest.raises(AssertionError, match="a copy of what is not aligned"):
            reconstructed(double, normal(3, 5), normal(4, 5), source)

    def test_a_part_of_a_warp_at_a_product_is_refused(self, double):
        source = SOURCE.replace("if (term + first < terms) add_terms", "if (threadIdx.x) add_terms")
        with pytest.raises(AssertionError, match="a barrier that the rest never reaches"):
            reconstructed(double, normal(3, 5), normal(4, 5), source)


def rbm(visible, hidden, *, batch_size=20, backend=None, **settings) -> RBM:
    learner = RBM(2, visible, hidden, usual(batch_size=batch_size, **settings))
    learner.visible_bias[:] = 0.1 * normal(visible, seed=5)
    learner.hidden_bias[:] = 0.1 * normal(hidden, seed=6)
    if backend is not None:
        learner.to(backend)
    return learner


class Transcription:
    """CD-k with momentum and decay in float64; the states are those of NumPy's draws."""

    def __init__(self, learner: RBM) -> None:
        self.settings, self.layer = learner.settings, learner.layer
        self.parameters = [p.astype(np.float64) for p in learner.parameters]
        self.velocities = [np.zeros_like(p) for p in self.parameters]

    def product(self, x, y) -> np.ndarray:
        rounds = PRECISIONS[self.settings.precision].rounds
        return np.float64(rounds(x)) @ np.float64(rounds(y))

    def train_step(self, v0, epoch, step) -> float:
        own, (W, a, b) = self.settings, self.parameters
        h0 = h1 = sigmoid(self.product(v0, W) + b)
        for k in range(own.cd_steps):
            address = Address(own.seed, Purpose.HIDDEN, self.layer, epoch, step, k << 32)
            states = address.generator().random(h0.shape, dtype=np.float32) < h1
            v1 = self.product(states, W.T) + a
            v1 = v1 if own.visible_units == "gaussian" else sigmoid(v1)
            h1 = sigmoid(self.product(v1, W) + b)
        of_weight = self.product(v0.T, h0) - self.product(v1.T, h1)
        gradients = of_weight, (v0 - v1).sum(axis=0), (h0 - h1).sum(axis=0)
        for p, g, velocity in zip(self.parameters, gradients, self.velocities, strict=True):
            decay = (own.weight_decay * p + own.l1 * np.sign(p)) if p.ndim > 1 else 0.0
            velocity *= own.momentum.at(epoch)
            velocity += own.learning_rate * (g / len(v0) - decay)
            p += velocity
        return float(np.square(v1 - v0).sum())


class TestSteps:
    @pytest.mark.parametrize(
        ("sizes", "settings", "most"),
        [
            ((100, 70, 52), {"weight_decay": 0.01}, 5e-6),
            ((70, 33, 45), {"weight_decay": 0.01, "l1": 0.003, "cd_steps": 3}, 5e-6),
            ((20, 64, 32), {"visible_units": "gaussian", "learning_rate": 0.01}, 5e-6),
            # A number that differs in its last bit may be rounded to the one beside.
            ((100, 70, 52), {"weight_decay": 0.01, "precision": "tf32"}, 1e-4),
            ((70, 33, 45), {"l1": 0.003, "precision": "bfloat16"}, 1e-3),
        ],
    )
    def test_whole_steps_against_float64(self, backend, sizes, settings, most):
        n, visible, hidden = sizes
        host = rbm(visible, hidden, batch_size=n, **settings)
        host.weight[:] = 0.3 * normal(visible, hidden)
        oracle, X = Transcription(host), np.random.default_rng(4).random((3 * n, visible), "f4")
        host.to(backend)
        step = step_for(host, 1, "examples")
        assert isinstance(step, steps.FusedDivergence)
        order = np.random.default_rng(5).permutation(3 * n)[: 3 * n - 7]
        for number in range(3):  # the last minibatch is smaller
            rows = order[number * n : (number + 1) * n]
            with host.stream:
                X_there, rows_there = map(backend.asarray, (X, rows))
                error = step.train_step(X_there, rows_there, epoch=1, step=number)
                assert (error.shape, error.dtype) == ((), np.float64)
                found = float(error)
            right = oracle.train_step(X[rows].astype(np.float64), 1, number)
            assert found == pytest.approx(right, rel=2 * most)
        pairs = [*zip(host.parameters, oracle.parameters, strict=True)]
        pairs += zip(host.velocities().values(), oracle.velocities, strict=True)
        with host.stream:
            assert max(relative(backend.tohost(x), y) for x, y in pairs) < most

    @pytest.mark.parametrize("k", [1, 3])
    def test_a_step_is_four_launches_and_two_more_for_each_further_reconstruction(self, double, k):
        learner = rbm(16, 12, backend=double, cd_steps=k)
        step, X = step_for(learner, 1, "examples"), double.asarray(normal(30, 16))
        rows = double.asarray(np.arange(20))
        fakecupy.log.clear()
        with learner.stream:
            step.train_step(X, rows, epoch=1, step=0)
        assert [what for _, _, what in fakecupy.log] == WHOLE[:2] * k + WHOLE[2:]

    def test_a_recorded_step_reads_and_draws_elsewhere(self, backend):
        """What is recorded at step 3 of epoch 2 and launched for step 7 of epoch 7 is that one."""
        X, elsewhere = (backend.asarray(normal(30, 16, seed=seed)) for seed in (1, 2))
        words = np.array([4, 5, elsewhere.data.ptr], dtype=np.uint64)
        now, rows = backend.asarray(words), backend.asarray(np.arange(5, 25))
        later = ADDRESS._replace(step=ADDRESS.step + 4, epoch=ADDRESS.epoch + 5)
        found = []
        for data, address, moved in ((X, ADDRESS, now), (elsewhere, later, None)):
            words = (*address.key, *address.counter)
            learner = rbm(16, 12, backend=backend)
            arrays = steps.fused_step_of(learner)._fused._arrays
            step = cuda_fused.CudaFused(backend.xp, arrays)
            step._source.record(moved)
            error = step(data, rows, [words], Pace(0.5, 0.1, 0.01, 0))
            step._source.record(None)
            found.append([backend.tohost(x) for x in (*learner.parameters, error)])
        same_bits(*found)

    def test_the_hidden_means_are_those_of_the_data(self, backend):
        learner, X = rbm(16, 12, backend=backend), normal(30, 16)
        W, b = (backend.tohost(x) for x in (learner.weight, learner.hidden_bias))
        step, out = step_for(learner, 1, "examples"), backend.empty((20, 12))
        with learner.stream:
            step.train_step(backend.asarray(X), np.arange(5, 25), epoch=1, step=0)
            assert step.hand_up(out)
            np.testing.assert_allclose(backend.tohost(out), sigmoid(X[5:25] @ W + b), atol=1e-6)

    def test_a_step_goes_on_from_its_state_to_the_same_bits(self, backend, bits):
        learners = [rbm(16, 12, backend=backend) for _ in range(2)]
        one, other = (step_for(learner, 1, "examples") for learner in learners)

        def train(step, numbers):
            with step.learner.stream:
                for number in numbers:
                    rows = np.arange(number * 20, number * 20 + 20)
                    step.train_step(backend.asarray(bits), rows, epoch=1, step=number)
                step.learner.stream.synchronize()

        train(one, range(3))
        state = {name: backend.tohost(array) for name, array in one.state().items()}
        with learners[1].stream:
            steps.load_state(learners[1], other, learners[0].snapshot(), state)
            learners[1].stream.synchronize()
        train(one, range(3, 5))
        train(other, range(3, 5))
        same_bits(*(map(backend.tohost, learner.parameters) for learner in learners))

    def test_rows_of_another_kind_are_gathered_before(self, double, bits):
        fused, other = (rbm(16, 12, backend=double) for _ in range(2))
        X, rows = double.asarray(bits), double.asarray(np.arange(20) * 7)
        step, gathering = (step_for(learner, 1, "examples") for learner in (fused, other))
        assert step._fused.takes(X, rows)
        for others in [
            (X.astype(np.uint8), rows),
            (X.T, rows),
            (X, rows.astype(np.int32)),
            (X, np.arange(20)),
            (bits, rows),
        ]:
            assert not step._fused.takes(*others)
        with fused.stream:
            step.train_step(X, rows, epoch=1, step=0)
        fakecupy.log.clear()
        with other.stream:
            gathering.train_step(X, np.arange(20) * 7, epoch=1, step=0)
        assert [what for _, _, what in fakecupy.log] == ["asarray", "gather_rows", *WHOLE]
        np.testing.assert_array_equal(double.tohost(fused.weight), double.tohost(other.weight))

    def test_more_rows_than_there_is_room_for_are_refused(self, double, bits):
        learner = rbm(16, 12, backend=double)
        step, X = step_for(learner, 1, "examples"), double.asarray(bits)
        with pytest.raises(ValueError, match="rows: got 21, expected at most 20"):
            step.train_step(X, double.asarray(np.arange(21)), epoch=1, step=0)


class TestLayout:
    """Arrays within larger ones, and the order of threads."""

    def stepped(self, backend, right) -> list[np.ndarray]:
        """Return the parameters, velocities and the error after a step, nothing else changed."""
        n, visible, hidden = 70, 40, 36
        shapes = [(visible, hidden)] * 2 + [(2 * n, visible), (2 * n, hidden), (n, hidden)]
        hosts = [0.3 * normal(*shape, seed=i) for i, shape in enumerate(shapes)]
        hosts.append(normal(90, visible, seed=9))
        inner, frames = zip(*(framed(backend, host, 4, right) for host in hosts), strict=True)
        W, dW, *room, data = inner
        a, b, da, db = (backend.asarray(normal(units)) for units in (visible, hidden) * 2)
        arrays = FusedArrays((W, a, b), (dW, da, db), *room, "bernoulli", "bernoulli")
        assert cuda_fused.CudaFused.supports(backend.xp, arrays)
        step = cuda_fused.CudaFused(backend.xp, arrays)
        rows = backend.asarray(np.random.default_rng(8).permutation(90)[:n])
        draws = [(*ADDRESS.key, *ADDRESS.counter), (*ADDRESS.key, 0, 9, 8, 7)]
        error = step(data, rows, draws, Pace(0.5, 0.1, 0.2, 0))
        for frame in frames:
            unframed(backend, frame, 4, right)
        return [backend.tohost(x) for x in (W, a, b, dW, da, db, error)]

    @pytest.mark.parametrize("right", [4, 3])
    def test_what_lies_between_rows_stays_as_it_is(self, backend, right):
        """With 4 numbers more every row begins at a multiple of 16 bytes, with 3 it does not."""
        same_bits(self.stepped(backend, right), self.stepped(backend, 0))

    def test_the_order_of_threads_makes_no_difference(self, double):
        same_bits(*in_both_orders(SOURCE, lambda: self.stepped(double, 3)))


class TestTraining:
    @pytest.mark.parametrize("settings", [{"weight_decay": 0.001}, {"cd_steps": 2}])
    def test_pretraining_comes_to_numpys_weights(self, backend, bits, queued, settings):
        wanted = {"layers": LAYERS, "epochs": 6, "batch_size": 30, **settings}
        oracle = pretrain(bits, **wanted, backend="numpy")
        for device in backend.devices():
            assert cuda_fused.why_not_fused(backend.xp, device, "float32", tunes=False) is None
        queued.clear()  # of these trials, once a process
        alike(pretrain(bits, **wanted, backend="cupy"), oracle)
        # The first epoch and that of another momentum are launched, the second one is recorded too.
        assert queued.count("graph") == 2 * (6 - 2)
        assert queued.count("move_parameters") == 2 * (2 + 1) * 7
        assert "momentum_step" not in queued

    def test_they_are_recorded_without_cublas(self, double, bits, monkeypatch):
        wanted = {"layers": LAYERS, "epochs": 3, "batch_size": 30, "backend": "cupy"}
        expected = pretrain(bits, **wanted).parameters_sha256
        backend_of("double", monkeypatch)
        monkeypatch.setattr(cublas, "load_library", lambda cupy: None)
        launched, events = fakecupy.Graph.launched, []
        found = pretrain(bits, **wanted, observers=[events.append])
        assert found.parameters_sha256 == expected
        assert fakecupy.Graph.launched - launched == 2 * (3 - 1)
        assert not [text for text in notices_of(events) if "launch by launch" in text]


class TestChoice:
    def test_the_plain_steps_of_a_device_with_tensor_cores(self, backend):
        rounded = ({"precision": "tf32"}, {"precision": "bfloat16"})
        others = ({}, {"cd_steps": 2}, {"visible_units": "gaussian"}, {"l1": 0.1})
        for settings in (*others, *rounded):
            step = step_for(rbm(6, 4, backend=backend, **settings), 1, "examples")
            assert isinstance(step, steps.FusedDivergence)

    def test_steps_in_parts_where_the_products_are_large(self, double, monkeypatch):
        learners = [rbm(6, 4, backend=double) for _ in range(2)]
        count = 6 * learners[0].buffers[2].size
        found = []
        for learner, most in zip(learners, (count, count - 1), strict=True):
            monkeypatch.setitem(cuda_fused.MOST_OF_STEPS, "float32", most)
            found.append(isinstance(step_for(learner, 1, "examples"), steps.FusedDivergence))
        assert found == [True, False]

    @pytest.mark.parametrize(
        "settings",
        [
            {"persistent": True},
            {"sparsity_cost": 0.1},
            {"hidden_dropout": 0.2},
            {"sample_visible": True},
            {"hidden_units": "relu"},
            {"visible_units": "gaussian:2,softmax:4"},
        ],
    )
    def test_other_steps_stay_in_parts(self, double, settings):
        step = step_for(rbm(6, 4, backend=double, **settings), 1, "examples")
        assert type(step) is steps.WholeStep

    def test_devices_without_tensor_cores_and_numpy(self, double, monkeypatch):
        monkeypatch.setattr(fakecupy, "CAPABILITY", "75")
        assert type(step_for(rbm(6, 4, backend=double), 1, "examples")) is steps.WholeStep
        assert isinstance(step_for(rbm(6, 4), 1, "examples"), steps.ByUnits)
        assert Backend().fused_step(None) is None
