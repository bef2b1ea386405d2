"""Blocks of steps that are recorded and launched again, and the products that may be recorded."""

import gc
from inspect import getclosurevars
from itertools import pairwise

import fakecublas
import fakecupy
import numpy as np
import pytest
from backends import as_it_is, backend_of
from learnersteps import usual
from pretrainingkinds import KINDS
from trialruns import notices_of

from syncpretrain import Stack, finetune, pretrain
from syncpretrain.backends import cublas, cupy_backend, recorder
from syncpretrain.backends.base import StepBlock
from syncpretrain.backends.choice import backend_for
from syncpretrain.errors import DivergedError
from syncpretrain.kernels.dispatch import multiply, registered
from syncpretrain.learners.epoch import Cursor, ErrorSum, Stopped, train_epoch
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import WholeStep
from syncpretrain.settings import MomentumSchedule
from syncpretrain.workers.activations import Split
from syncpretrain.workers.versions import Versions

LEARNERS = KINDS | {
    "cd": {},
    "cd3 and decay": {"cd_steps": 3, "weight_decay": 0.01},
    "sampled": {"sample_visible": True},
    "sampled input": {"sample_input": True},
    "convolution": {"layers": "1x4x4,conv:3x3,8,5"},
    "tf32": {"precision": "tf32"},
    "bfloat16": {"precision": "bfloat16"},
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", 3)


@pytest.fixture
def X() -> np.ndarray:  # noqa: N802
    return np.random.default_rng(3).integers(0, 2, (110, 16)).astype(np.float32)


def trained(X: np.ndarray, **settings) -> tuple[Stack, list]:
    events = []
    # Of three layers, for four epochs of blocks of 3, 3 and 2 minibatches.
    own = {"layers": (16, 12, 8, 5), "batch_size": 15, "epochs": 4, "seed": 5, "backend": "cupy"}
    return pretrain(X, **(own | settings), observers=[events.append]), events


def rbm(device, layer: int = 1, **settings) -> RBM:
    learner = RBM(layer, 16, 12, usual(**settings))
    learner.to(device)
    return learner


def epoch_of(learner: RBM, X, epoch: int, stop=lambda: False, begin=Cursor()) -> float:  # noqa: B008
    learner.backend.synchronize()  # the rows are there
    with learner.stream:
        own = {"epoch": epoch, "stop": stop, "begin": begin, "progress": lambda _: None}
        error = train_epoch(learner, WholeStep(learner), X, **own)
        learner.stream.synchronize()
    return error


class TestBlocks:
    @pytest.mark.parametrize("kind", LEARNERS)
    def test_recorded_blocks_have_the_bits_of_single_launches(
        self, late, X, monkeypatch, kind, queued
    ):
        found, events = trained(X, **LEARNERS[kind])
        assert not [text for text in notices_of(events) if "launch by launch" in text]
        graphs = 3 * (4 * 3 - 2)  # all blocks but the first of each size
        assert queued.count("graph") == graphs
        as_it_is(monkeypatch)
        expected, events = trained(X, **LEARNERS[kind], runtime="serial")
        assert len([text for text in notices_of(events) if "not asked for" in text]) == 3
        assert found.parameters_sha256 == expected.parameters_sha256
        assert queued.count("graph") == graphs

    def test_other_momentum_and_rate_and_rows_elsewhere_are_other_or_the_same_graphs(
        self, prompt, X, monkeypatch, queued
    ):
        learner = rbm(prompt, momentum=MomentumSchedule("0.5:2,0.9"))
        first, second = prompt.asarray(X[:60]), prompt.asarray(X[:60].copy())
        launched = []
        for epoch, rows in enumerate((first, second, first, second, first), 1):
            queued.clear()
            epoch_of(learner, rows, epoch)
            launched.append(queued.count("graph"))
        assert launched == [1, 2, 1, 2, 2], "two blocks an epoch, the first of a kind is not one"
        as_it_is(monkeypatch)
        plain = rbm(prompt, momentum=MomentumSchedule("0.5:2,0.9"))
        for epoch in range(1, 6):
            epoch_of(plain, first, epoch)
        for a, b in zip(learner.parameters, plain.parameters, strict=True):
            np.testing.assert_array_equal(a.get(), b.get())

    def test_the_rows_that_a_graph_was_recorded_with_may_be_let_go_of(self, device, X):
        errors = []
        for copies in (False, True):
            learner, rows = rbm(device), device.asarray(X)
            for epoch in range(1, 5):
                if copies:
                    old, rows = rows, device.asarray(X)
                    device.synchronize()
                    old.fill(np.nan)
                errors.append(epoch_of(learner, rows, epoch))
        assert errors[:4] == errors[4:]

    def test_a_learner_ends_with_its_last_name_and_its_stream_is_lent_again(self, prompt, X):
        learner = rbm(prompt)
        lent = learner.stream._stream
        for epoch in (1, 2):
            epoch_of(learner, prompt.asarray(X), epoch)
        assert learner.recorder._graphs
        gc.collect()
        gc.disable()
        try:
            del learner
            assert rbm(prompt).stream._stream is lent
        finally:
            gc.enable()

    def test_a_device_begins_with_the_work_of_layer_1(self, double):
        learners = [rbm(double, layer) for layer in (1, 2)]
        first, second = (learner.stream._stream for learner in learners)
        assert (first.priority, second.priority) == (-1, 0)
        learners.clear()
        gc.collect()
        lent = double.stream(), double.stream(priority=-1)
        assert [stream._stream for stream in lent] == [second, first]

    def test_few_kinds_are_remembered(self, prompt, X):
        learner = rbm(prompt)
        for rows in range(30, 110, 10):
            epoch_of(learner, prompt.asarray(X[:rows]), 2)
        assert len(learner.recorder._graphs) == recorder.MOST_GRAPHS

    def test_a_stop_leaves_a_place_between_blocks_and_the_exact_error(self, prompt, X):
        answers = iter([False, False, True])
        whole, parts = rbm(prompt), rbm(prompt)
        rows = prompt.asarray(X[:100])
        expected = epoch_of(whole, rows, 1)
        with pytest.raises(Stopped) as stopped:
            epoch_of(parts, rows, 1, stop=lambda: next(answers))
        assert stopped.value.cursor.minibatches == 6
        found = epoch_of(parts, rows, 1, begin=stopped.value.cursor)
        assert found == pytest.approx(expected, rel=1e-14)
        np.testing.assert_array_equal(whole.weight.get(), parts.weight.get())

    def test_errors_are_looked_at_while_the_next_block_is_worked(self, stand_in, X):
        learner = rbm(stand_in)
        fakecupy.log.clear()
        epoch_of(learner, stand_in.asarray(X[:90]), 1)
        looks = [what for _, _, what in fakecupy.log if what in ("download", "wait for an event")]
        one = ["download", "wait for an event"]
        assert looks == ["download", *one, *one, "wait for an event"][: len(looks)]
        assert len(looks) == 6

    def test_pinned_memory_is_written_to_before_it_is_let_go_of(self, late):
        # What is copied into it later would be the error of whoever has it then.
        errors, stream = ErrorSum(late, 0.0), late.stream()
        with stream:
            for done, error in enumerate((np.nan, 7.0), 1):
                errors.add(late.asarray(np.array(error)), done)
            copied = [getclosurevars(later).nonlocals["copy"] for _, later in errors._later]
            assert np.isnan(errors.so_far(2, 9)) and errors.minibatches == 1
        assert copied[1].tolist() == [7.0] and not errors._later

    def test_a_layer_that_diverges_in_a_recorded_block_is_found(self, prompt, X):
        learner = rbm(prompt)
        rows = prompt.asarray(X[:60])
        epoch_of(learner, rows, 1)
        learner.weight[:] = np.float32(np.nan)
        with pytest.raises(DivergedError, match="after 3 minibatches"):
            epoch_of(learner, rows, 2)


TUNING = {
    "adam": {},
    "momentum and decay": {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.01}
    | {"rate_schedule": "cosine"},
    "dropout and cosine": {"dropout": 0.3, "input_dropout": 0.1, "rate_schedule": "cosine"},
    "nesterov and linear": {"optimizer": "sgd", "momentum": 0.5, "nesterov": True}
    | {"rate_schedule": "linear"},
    "decay and cosine": {"weight_decay": 0.1, "rate_schedule": "cosine", "learning_rate": 0.01},
    "weights": {"weights": np.linspace(0.5, 1.5, 110)},
}


class TestFineTuning:
    @pytest.mark.parametrize("tuning", TUNING)
    @pytest.mark.parametrize("goal", ["reconstruction", "classification"])
    @pytest.mark.parametrize("layers", [(16, 12, 8), "1x4x4,conv:3x3,8"])
    def test_recorded_blocks_have_the_bits_of_single_launches(
        self, late, X, monkeypatch, tuning, goal, layers, queued
    ):
        stack = pretrain(X, layers=layers, epochs=1, backend="numpy")
        y = () if goal == "reconstruction" else (X.argmax(axis=1),)
        if tuning == "weights" and not y:
            pytest.skip("weights are those of examples with a class")
        own = {"epochs": 3, "batch_size": 15, "backend": "cupy"} | TUNING[tuning]
        events = []
        found = finetune(stack, X, *y, **own, observers=[events.append])
        assert queued.count("graph") == 3 * 3 - 2
        assert not [text for text in notices_of(events) if "launch by launch" in text]
        as_it_is(monkeypatch)
        expected = finetune(stack, X, *y, **own, observers=[events.append])
        assert len([text for text in notices_of(events) if "not asked for" in text]) == 1
        assert found.parameters_sha256 == expected.parameters_sha256


class TestWhatIsNotRecorded:
    def test_cublas_that_is_not_found(self, double, X, monkeypatch):
        expected, _ = trained(X)
        backend_of("double", monkeypatch)
        monkeypatch.setattr(cublas, "load_library", lambda cupy: None)
        launched = fakecupy.Graph.launched
        found, events = trained(X)
        (first, *_) = [text for text in notices_of(events) if "launch by launch" in text]
        assert "cuBLAS is not found by its usual name: calling cuBLAS API during" in first
        assert found.parameters_sha256 == expected.parameters_sha256, "of the stand-in's products"
        assert fakecupy.Graph.launched == launched

    def test_a_step_that_waits_for_the_device(self, prompt, X, monkeypatch):
        real = WholeStep.train_step

        def looking(self, *args, **options):
            error = real(self, *args, **options)
            assert np.isfinite(float(error))
            return error

        expected, _ = trained(X, model="autoencoder")  # which has no fused steps
        monkeypatch.setattr(recorder, "AGAIN_AFTER", 0)
        monkeypatch.setattr(WholeStep, "train_step", looking)
        found, events = trained(X, model="autoencoder")
        told = [text for text in notices_of(events) if "launch by launch" in text]
        assert ["captur" in text.lower() for text in told] == [True] * 3, "a wait is refused"
        assert found.parameters_sha256 == expected.parameters_sha256

    @pytest.mark.parametrize("call", ["begin_capture", "end_capture"])
    def test_steps_of_a_recording_that_fails_do_not_count(self, double, X, monkeypatch, call):
        stack = pretrain(X, layers=(16, 8), epochs=1, backend="numpy")
        own = {"epochs": 2, "batch_size": 15, "backend": "cupy"}  # of Adam, which counts its steps
        expected = finetune(stack, X, **own)
        refused = fakecupy.CUDARuntimeError(901, "cudaErrorStreamCaptureInvalidated")

        def fail(self):
            if call == "end_capture":
                end(self)
            raise refused

        end = fakecupy.Stream.end_capture
        monkeypatch.setattr(fakecupy.Stream, call, fail)
        launched = fakecupy.Graph.launched
        found = finetune(stack, X, **own)
        assert fakecupy.Graph.launched == launched
        assert found.parameters_sha256 == expected.parameters_sha256

    @pytest.mark.parametrize("failures", [1, 2])
    def test_what_cuda_refuses_is_tried_once_more_after_some_blocks(
        self, double, X, monkeypatch, failures
    ):
        monkeypatch.setattr(recorder, "AGAIN_AFTER", 3)
        real, blocks, tried = fakecupy.Stream.begin_capture, [], []

        def begin(self):
            tried.append(len(blocks))
            if len(tried) <= failures:
                raise fakecupy.CUDARuntimeError(901, "cudaErrorStreamCaptureInvalidated")
            real(self)

        monkeypatch.setattr(fakecupy.Stream, "begin_capture", begin)
        learner, rows = rbm(double), double.asarray(X[:30])
        for epoch in range(1, 9):  # of one block each
            blocks.append(epoch)
            epoch_of(learner, rows, epoch)
        assert tried == [2, 6]
        assert (learner.recorder.take_notice() or "").endswith("Invalidated") == (failures == 2)
        plain = rbm(double)
        as_it_is(monkeypatch)
        for epoch in range(1, 9):
            epoch_of(plain, rows, epoch)
        np.testing.assert_array_equal(learner.weight.get(), plain.weight.get())

    def test_a_recording_without_memory_is_tried_again(self, double, X, monkeypatch):
        monkeypatch.setattr(recorder, "AGAIN_AFTER", 0)
        real, failed, launched = fakecupy.MemoryPool.malloc, [], []

        def malloc(self, size):
            if fakecupy.recording() is not None and not failed:
                failed.append(size)
                raise MemoryError
            return real(self, size)

        monkeypatch.setattr(fakecupy.MemoryPool, "malloc", malloc)
        learner, rows = rbm(double), double.asarray(X[:30])
        for epoch in (1, 2, 3):
            before = fakecupy.Graph.launched
            epoch_of(learner, rows, epoch)
            launched.append(fakecupy.Graph.launched - before)
        assert launched == [0, 0, 1] and learner.recorder.take_notice() is None

    def test_a_pool_without_memory_keeps_what_graphs_write_to(self, double, X):
        learner, rows = rbm(double), double.asarray(X[:30])
        errors = [epoch_of(learner, rows, epoch) for epoch in (1, 2)]
        pool, stream = learner.recorder._pool, double.xp.cuda.Stream(non_blocking=True)
        with stream, fakecupy.UsingAllocator(pool.malloc):
            stream.begin_capture()
            double.empty(8)  # and let go of, as what a step needs for a moment
            assert pool.unused
            fakecupy.room |= {"free": 0, "kept": 8192}
            fakecupy.freed.clear()
            large = double.empty(2048)
            with pytest.raises(MemoryError, match="the GPU has no 8,192 bytes left"):
                double.empty(2048)
            stream.end_capture()
        assert {what for _, what in fakecupy.freed} == {"memory"}, "of the default pool"
        assert epoch_of(learner, rows, 3) < errors[0] and len(large) == 2048

    def test_what_a_block_keeps_is_not_where_graphs_write(self, double, X):
        """A network keeps the operations of each size of a minibatch, and arrays in them."""
        recorder, kept = double.recorder(), {}

        def work(x, rows, *, epoch, step):
            if len(rows) not in kept:
                kept[len(rows)] = double.empty(8)
            return double.empty((), "f8")

        rows, numbers = double.asarray(X), double.asarray(np.arange(30))
        with double.stream():
            for epoch, size in enumerate((30, 30, 20)):
                recorder.train(StepBlock(work, rows, numbers[:size], size, epoch, 0, ()))
        assert recorder.reason is None and len(kept) == 2

    def test_an_error_in_the_step_is_raised_and_ends_the_recording(self, prompt, X, monkeypatch):
        learner, rows = rbm(prompt), prompt.asarray(X[:60])
        epoch_of(learner, rows[:30], 1)
        real = WholeStep.train_step

        def fail(*_, **__):
            raise KeyError("a defect")

        monkeypatch.setattr(WholeStep, "train_step", fail)
        with pytest.raises(KeyError, match="a defect"):
            epoch_of(learner, rows[:30], 2)
        monkeypatch.setattr(WholeStep, "train_step", real)
        epoch_of(learner, rows[:30], 2)
        assert learner.recorder.reason is None

    def test_memory_of_nobodys_pool_is_lost(self, double, X, monkeypatch):
        monkeypatch.setattr(fakecupy.UsingAllocator, "attribute", "no allocator")
        learner, rows = rbm(double), double.asarray(X[:30])
        epoch_of(learner, rows, 1)
        with pytest.raises(DivergedError, match="nan"):
            epoch_of(learner, rows, 2)


class TestProducts:
    @pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (16, 1, 8), (1, 9, 4), (20, 30, 1)])
    @pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
    def test_they_are_numpys_however_the_factors_lie(self, device, shape, turned, queued):
        rows, inner, columns = shape
        draws = np.random.default_rng(1)
        a, b = (
            draws.standard_normal(each[::-1] if turns else each, dtype=np.float32)
            for each, turns in zip(((rows, inner), (inner, columns)), turned, strict=True)
        )
        on_device = [device.asarray(array) for array in (a, b)]
        first, second = (x.T if turns else x for x, turns in zip(on_device, turned, strict=True))
        own = [x.T if turns else x for x, turns in zip((a, b), turned, strict=True)]
        found = multiply(first, second)
        wide = device.zeros((rows, columns + 3))
        part = wide[:, 1 : columns + 1]
        assert multiply(first, second, out=part) is part
        assert queued.count("cublasSgemm_v2") == 2
        np.testing.assert_allclose(found.get(), own[0] @ own[1], rtol=1e-5, atol=1e-6)
        # cuBLAS may take another kernel for other distances between rows.
        np.testing.assert_allclose(part.get(), found.get(), rtol=1e-6, atol=1e-6)
        assert not wide.get()[:, [0, -2, -1]].any()

    def test_what_cublas_does_not_take_is_left_to_cupy(self, device, queued):
        x = device.asarray(np.ones((4, 4), np.float32))
        for a, b in (
            (device.asarray(np.ones((4, 4))), device.asarray(np.ones((4, 4)))),
            (x[:, ::2], x[:2]),
            (x[:, :0], x[:0]),
        ):
            assert multiply(a, b).shape == (4, 4)
            assert "cublasSgemm_v2" not in queued

    def test_each_stream_has_a_handle_with_a_workspace(self, double):
        form = registered(double.array_type)["multiply"].__self__
        x = double.asarray(np.ones((4, 4), np.float32))
        streams = [double.stream() for _ in range(3)]
        for stream in (*streams, *streams):
            with stream:
                multiply(x, x)
        handles = [own.handle.value for own in form._handles.values()]
        assert len(handles) == len(set(handles)) == 3
        spaces = [fakecublas.handles[handle]["workspace"][0] for handle in handles]
        assert all(abs(a - b) >= cublas.WORKSPACE for a, b in pairwise(sorted(spaces)))

    def test_backends_of_a_process_share_the_handles_that_graphs_were_recorded_with(self, double):
        x, stream, made = double.asarray(np.ones((4, 4), np.float32)), double.stream(), []
        for _ in range(3):
            backend = backend_for("cupy")  # whose forms stand in for those of the one before
            with stream:
                multiply(x, x)
            made.append(registered(backend.array_type)["multiply"].__self__)
        assert made[0] is made[1] is made[2]
        assert len(made[0]._handles) == 2, "of this stream, and of the trial's"

    def test_a_status_is_an_error(self, double, monkeypatch):
        x = double.asarray(np.ones((4, 4), np.float32))
        monkeypatch.setattr(fakecublas, "cublasSgemm_v2", lambda *_: 13)
        with pytest.raises(cublas.CublasError, match="cublasSgemm_v2 of cuBLAS: got status 13"):
            multiply(x, x)


class TestTheStandIn:
    def test_a_stream_that_is_recorded_refuses_what_cuda_refuses(self, double):
        stream = fakecupy.Stream(non_blocking=True)
        x = double.asarray(np.ones((2, 2), np.float32))
        for work, message in (
            (lambda: x.get(), "a wait"),
            (lambda: float(x[0, 0]), "a wait"),
            (lambda: fakecupy.asarray(np.ones(2)), "a copy from the host"),
            (lambda: np.matmul(x, x), "calling cuBLAS API during stream capture"),
        ):
            with stream:
                stream.begin_capture()
                with pytest.raises(RuntimeError, match=message):
                    work()
                if "cuBLAS" in message:
                    stream.end_capture()
                else:
                    with pytest.raises(RuntimeError, match="Invalidated"):
                        stream.end_capture()

    def test_nobody_waits_for_a_device_while_one_of_its_streams_is_recorded(self, double):
        stream, other = (fakecupy.Stream(non_blocking=True) for _ in range(2))
        with stream:
            stream.begin_capture()
        with pytest.raises(RuntimeError, match="a wait for a device"):
            double.synchronize()
        double.for_layer(2).synchronize()
        other.synchronize()
        stream.end_capture()
        double.synchronize()

    def test_a_layer_begins_and_a_run_too_while_another_layer_is_recorded(self, prompt, X):
        learner, stream = rbm(prompt), prompt.xp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
        with learner.stream:
            rows = np.arange(9)
            error = WholeStep(learner).train_step(prompt.asarray(X), rows, epoch=1, step=0)
            assert np.isfinite(error.get())
        assert Versions(Split(X, X[:0]), (8,), backend=prompt).inputs.train.device.id == 0
        stream.end_capture()


def test_errors_are_added_up_in_their_order(device):
    blocks = device.recorder()
    numbers = [1e16, 1.0, -1e16, *np.random.default_rng(0).random(40)]
    errors = [device.asarray(np.float64(x)) for x in numbers]
    expected = 0.0
    for number in numbers:  # as the built-in sum does not from Python 3.12 on
        expected += number
    assert float(blocks._sum_of(errors)) == expected
    assert float(blocks._sum_of(errors[:1])) == 1e16
    assert float(blocks._sum_of([np.float32(2), np.float32(3)])) == 5
