"""Training on every backend: NumPy is the oracle, and what only a device has is counted."""

from __future__ import annotations

import itertools
import json
import threading

import fakecupy
import msgspec
import numpy as np
import pytest
from backends import BACKENDS, backend_of
from devicedraws import draw_as_on_a_device
from disturbedsteps import before_steps
from pretrainingkinds import KINDS, VARIANTS
from stackcomparisons import alike, arrays_of
from trialruns import notices_of, stop_after

from syncpretrain import finetune, load, pretrain
from syncpretrain.backends import cublas, cupy_backend
from syncpretrain.backends.choice import backend_for, resolve_backend
from syncpretrain.backends.cupy_backend import CupyBackend
from syncpretrain.backends.numpy_backend import NumpyBackend
from syncpretrain.cli import main
from syncpretrain.data.order import minibatches
from syncpretrain.errors import DivergedError, RunInterrupted, SettingsError, WorkerError
from syncpretrain.events import EpochFinished, FinetuneEpochFinished
from syncpretrain.finetuning.state import FINETUNE_STATE
from syncpretrain.learners.base import Learner
from syncpretrain.learners.epoch import train_epoch
from syncpretrain.learners.rbm import RBM, RBMSettings
from syncpretrain.learners.steps import WholeStep
from syncpretrain.parallel import available_memory
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.pretraining.runtimes import workers_of
from syncpretrain.pretraining.start import driver_for
from syncpretrain.pretraining.state import EPOCHS_STATE
from syncpretrain.runs.folder import CONFIG_NAME, METRICS_NAME
from syncpretrain.runs.prepare import resolve
from syncpretrain.runs.run import resume_run, train_run
from syncpretrain.settings import FinetuneSettings, MomentumSchedule, read_settings, settings_from
from syncpretrain.settings.devices import why_not_tuned_on_a_device
from syncpretrain.workers import activations
from syncpretrain.workers.split import Split
from syncpretrain.workers.versions import Versions

LAYERS = (16, 12, 8, 5)
BASE = {"layers": LAYERS, "batch_size": 15, "epochs": 3}
FREE = {"asarray", "copy", "synchronize"}  # what the driver's own thread may do on a device
TUNING = {
    "adam": {},
    "sgd": {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.01},
    "nesterov": {"optimizer": "sgd", "momentum": 0.5, "nesterov": True},
    "dropout": {"dropout": 0.3, "input_dropout": 0.1},
    "cross-entropy": {"loss": "cross-entropy"},
    "cosine and decay": {"rate_schedule": "cosine", "weight_decay": 0.01},
}


@pytest.fixture(params=BACKENDS)
def name(request, monkeypatch) -> str:
    """What a setting calls the backend."""
    backend = backend_of(request.param, monkeypatch)
    return "numpy" if backend.name == "numpy" else "cupy"


@pytest.fixture
def double(monkeypatch):
    return backend_of("double", monkeypatch)


@pytest.fixture(scope="module")
def targets() -> np.ndarray:
    return np.random.default_rng(1).integers(3, size=200)


class TestTraining:
    """What is the same on every backend."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_learner_comes_to_numpys_weights(self, bits, name, kind, monkeypatch):
        draw_as_on_a_device(monkeypatch)
        settings = BASE | {"epochs": 2, "refresh_epochs": 0} | KINDS[kind]
        oracle = pretrain(bits, **settings, backend="numpy", runtime="serial")
        alike(pretrain(bits, **settings, backend=name), oracle)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_every_schedule_comes_to_numpys_weights(self, bits, name, variant):
        settings = BASE | {"batch_size": 25} | VARIANTS[variant]
        oracle = pretrain(bits, **settings, backend="numpy", runtime="serial")
        stack = pretrain(bits, **settings, backend=name)
        alike(stack, oracle)
        assert stack.info["pretrain"]["backend"] == name

    def test_threads_and_turns_come_to_the_same_bits(self, bits, name):
        sums = {
            pretrain(
                bits, layers=LAYERS, epochs=3, backend=name, runtime=runtime, workers=workers
            ).parameters_sha256
            for runtime, workers in (("serial", 1), ("threads", 1), ("threads", 3))
        }
        assert len(sums) == 1

    @pytest.mark.parametrize(
        "stopping",
        [
            {"early_stopping": "free-energy-gap"},
            {"early_stopping": "pseudo-likelihood"},
            {"early_stopping": "validation-error", "model": "denoising"},
            {"epochs": "auto:8", "settle": 0.2, "momentum": "0.5"},
            {"epochs": [8, *[2] * (len(LAYERS) - 2)], "refresh_when": "drift:0.2"},
        ],
    )
    def test_early_stopping_stops_the_same_epochs(self, bits, name, stopping):
        settings = BASE | {"epochs": 8, "patience": 1, "validation": 1 - bits[:50]} | stopping
        oracle = pretrain(bits, **settings, backend="numpy")
        stack = pretrain(bits, **settings, backend=name)
        assert stack.info["epochs"] == oracle.info["epochs"]
        alike(stack, oracle, 1e-5)

    def test_errors_are_told_as_numbers(self, name):
        X = np.random.default_rng(0).random((2300, 16), dtype=np.float32)
        reported = {}
        for backend in ("numpy", name):
            events = []
            pretrain(
                X[:1200],
                layers=(16, 8, 4),
                epochs=2,
                validation=X[1200:],  # more than are looked at
                backend=backend,
                observers=[events.append],
            )
            ends = sorted(
                (e.layer, e.epoch, e.train_error, e.validation_error)
                for e in events
                if isinstance(e, EpochFinished)
            )
            assert {type(number) for row in ends for number in row} == {int, float}
            reported[backend] = np.array(ends)
        np.testing.assert_allclose(reported[name], reported["numpy"], rtol=1e-5)

    @pytest.mark.parametrize("variant", ["plain", "persistent", "untied"])
    @pytest.mark.parametrize("minibatches", [1, 20])
    def test_a_stopped_run_goes_on_to_the_same_bits(
        self, bits, name, variant, minibatches, monkeypatch, tmp_path
    ):
        kinds = {"plain": {}, **KINDS}[variant] | {"epochs": 2, "batch_size": 25, "backend": name}
        settings = settings_from(LAYERS, **kinds).pretrain
        whole = Pretraining(settings, bits).run()
        states = []

        def save(state, *, done, final):
            if final:
                states.append(state())

        with monkeypatch.context() as patch:
            stop_after(patch, minibatches)
            with pytest.raises(RunInterrupted) as caught:
                Pretraining(settings, bits, save=save).run()
        assert {type(array) for array in arrays_of(caught.value.stack)} == {np.ndarray}
        EPOCHS_STATE.write(tmp_path / "state.safetensors", states[-1], {})
        again = EPOCHS_STATE.read(tmp_path / "state.safetensors")
        resumed = Pretraining(settings, bits, resume=again).run()
        assert resumed.parameters_sha256 == whole.parameters_sha256

    def test_every_state_between_epochs_goes_on_to_the_same_bits(self, bits, name):
        settings = settings_from(LAYERS, epochs=2, batch_size=50, backend=name).pretrain
        states = []
        whole = Pretraining(settings, bits, save=lambda state, **_: states.append(state())).run()
        assert len(states) >= 4
        for state in states:
            resumed = Pretraining(settings, bits, resume=state).run()
            assert resumed.parameters_sha256 == whole.parameters_sha256

    def test_a_layer_that_diverges_goes_back_and_halves_its_rate(self, bits, name):
        events = []
        settings = BASE | {"hidden_units": "relu", "learning_rate": 300.0, "momentum": "0.9"}
        with pytest.raises(DivergedError, match="layer 1 diverged in epoch 1") as caught:
            pretrain(bits, **settings, backend=name, observers=[events.append])
        notices = [text for text in notices_of(events) if "layers on GPUs" not in text]
        assert len(notices) == 3 and "half the learning rate, 150" in notices[0]
        assert all(np.isfinite(array).all() for array in arrays_of(caught.value.stack))

    @pytest.mark.parametrize("tuning", TUNING)
    def test_reconstruction_comes_to_numpys_weights(self, bits, name, tuning):
        stack = pretrain(bits, layers=(16, 12, 8), epochs=2, batch_size=20, backend="numpy")
        settings = {"epochs": 3, "batch_size": 15} | TUNING[tuning]
        oracle = finetune(stack, bits, **settings, backend="numpy")
        tuned = finetune(stack, bits, **settings, backend=name)
        alike(tuned, oracle)
        assert tuned.info["finetune"][-1]["backend"] == name

    @pytest.mark.parametrize("tuning", [key for key in TUNING if key != "cross-entropy"])
    def test_classification_comes_to_numpys_weights(self, bits, targets, name, tuning):
        stack = pretrain(bits, layers=(16, 12, 8), epochs=2, batch_size=20, backend="numpy")
        settings = {"epochs": 3, "batch_size": 15} | TUNING[tuning]
        settings |= {"validation": bits[:90], "validation_y": targets[:90]}
        reported = {}
        for backend in ("numpy", name):
            events = []
            reported[backend] = (
                finetune(
                    stack,
                    bits,
                    targets,
                    **settings,
                    backend=backend,
                    observers=[events.append],
                ),
                [
                    (event.train_error, event.validation_error)
                    for event in events
                    if isinstance(event, FinetuneEpochFinished)
                ],
            )
        alike(reported[name][0], reported["numpy"][0])
        assert reported[name][1] == reported["numpy"][1], "the same shares of wrong classes"

    def test_regression_with_patience_comes_to_numpys_weights(self, bits, name):
        stack = pretrain(bits, layers=(16, 8), epochs=1, backend="numpy")
        y = bits.sum(axis=1) / 16 + 0.5
        wanted = {"epochs": 6, "patience": 1, "learning_rate": 0.05}
        wanted |= {"validation": bits[:40], "validation_y": -y[:40]}
        oracle = finetune(stack, bits, y, **wanted, backend="numpy")
        tuned = finetune(stack, bits, y, **wanted, backend=name)
        alike(tuned, oracle)
        ended = [x.info["finetune"][-1]["best_epoch"] for x in (tuned, oracle)]
        assert ended[0] == ended[1] < 6

    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    def test_a_stopped_fine_tuning_goes_on_to_the_same_bits(
        self, bits, targets, name, optimizer, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", 1)
        stack = pretrain(bits, layers=(16, 8), epochs=1, backend="numpy")
        wanted = {"epochs": 3, "batch_size": 20, "dropout": 0.2, "optimizer": optimizer}
        wanted |= {"backend": name, "momentum": 0.5 if optimizer == "sgd" else 0.0}
        whole = finetune(stack, bits, targets, **wanted)
        states, asked = [], itertools.count()

        def save(state, *, done, final):
            if final:
                states.append(state())

        with pytest.raises(RunInterrupted) as caught:
            finetune(stack, bits, targets, **wanted, save=save, stop=lambda: next(asked) == 13)
        assert {type(array) for array in arrays_of(caught.value.stack)} == {np.ndarray}
        FINETUNE_STATE.write(tmp_path / "state.safetensors", states[-1], {})
        again = FINETUNE_STATE.read(tmp_path / "state.safetensors")
        assert again.cursor.minibatches == 3
        sizes = {len(array) for array in again.arrays.values() if len(array)}
        assert sizes == {16 * 8 + 8 + 8 * 3 + 3}, "without the gaps that a device has"
        resumed = finetune(stack, bits, targets, **wanted, resume=again)
        assert resumed.parameters_sha256 == whole.parameters_sha256

    def test_a_fine_tuning_that_diverges_gives_the_last_good_stack(self, bits, name):
        stack = pretrain(bits, layers=(16, 8), epochs=1, visible_units="gaussian", backend="numpy")
        with pytest.raises(DivergedError, match=r"fine-tuning diverged in epoch \d+: ") as caught:
            finetune(stack, bits, epochs=9, optimizer="sgd", learning_rate=1e30, backend=name)
        assert all(np.isfinite(array).all() for array in arrays_of(caught.value.stack))

    def test_a_run_records_its_backend_and_resumes_on_it(self, bits, name, tmp_path, monkeypatch):
        np.savez(tmp_path / "x.npz", X=bits, y=np.arange(200) % 2)
        settings = settings_from(
            (16, 8, 4),
            epochs=2,
            batch_size=20,
            backend=name,
            data={"name": str(tmp_path / "x.npz")},
            finetune={"objective": "classification", "epochs": 1, "batch_size": 20},
        )
        whole = train_run(settings, out=tmp_path / "whole")
        assert whole["backend"] == name
        assert json.loads((tmp_path / "whole" / METRICS_NAME).read_text())["backend"] == name
        with monkeypatch.context() as patch:
            stop_after(patch, 12)
            with pytest.raises(RunInterrupted):
                train_run(settings, out=tmp_path / "run")
        assert read_settings(tmp_path / "run" / CONFIG_NAME).pretrain.backend == name
        report = resume_run(tmp_path / "run")
        assert report["parameters_sha256"] == whole["parameters_sha256"]


class TestOnADevice:
    """What the stand-in can count: waits, streams, and where arrays are."""

    @pytest.fixture(autouse=True)
    def unexamined(self, monkeypatch):
        """Leave out the product with which a GPU is tried before it is chosen."""
        monkeypatch.setattr("syncpretrain.backends.gpu_check.missing", lambda device: None)

    def waits(self, bits, batch_size: int, **settings) -> int:
        fakecupy.log.clear()
        wanted = {"layers": LAYERS, "epochs": 1} | settings
        pretrain(bits[:180], **wanted, batch_size=batch_size, backend="cupy")
        return sum(what == "synchronize" for _, _, what in fakecupy.log)

    @pytest.mark.parametrize(
        "kind",
        ["plain", "untied", "denoising", "contractive", "persistent", "sparsity", "hidden dropout"],
    )
    def test_no_step_waits(self, double, bits, kind):
        settings = {"plain": {}, **KINDS}[kind]
        assert self.waits(bits, 90, **settings) == self.waits(bits, 9, **settings) < 90

    def test_no_step_of_fine_tuning_waits(self, double, bits, targets):
        stack = pretrain(bits[:180], layers=(16, 8), epochs=1, backend="numpy")
        counts = []
        for size in (60, 6):
            fakecupy.log.clear()
            for y in (None, targets[:180]):
                finetune(stack, bits[:180], y, epochs=2, batch_size=size, backend="cupy")
            counts.append(sum(what == "synchronize" for _, _, what in fakecupy.log))
        assert counts[0] == counts[1]

    @pytest.mark.parametrize("runtime", ["threads", "serial"])
    def test_the_work_of_a_layer_is_on_its_own_stream_of_its_own_device(
        self, double, bits, monkeypatch, runtime
    ):
        places: dict[int, set[tuple[int, str]]] = {1: set(), 2: set(), 3: set()}

        def note(learner: Learner, epoch: int, step: int) -> None:
            places[learner.layer].add((fakecupy.current_device(), fakecupy.current_stream()))

        before_steps(monkeypatch, note)
        fakecupy.log.clear()
        pretrain(bits, **BASE, backend="cupy", runtime=runtime)
        assert [len(places[layer]) for layer in (1, 2, 3)] == [1, 1, 1]
        (one,), (two,), (three,) = places.values()
        assert [one[0], two[0], three[0]] == [0, 1, 1], "dealt by their multiplications"
        assert len({one[1], two[1], three[1], fakecupy.NULL}) == 4
        stray = {what for _, stream, what in fakecupy.log if stream == fakecupy.NULL}
        assert stray <= FREE, "the rest is in no layer's queue"
        computed = {
            (device, stream)
            for device, stream, what in fakecupy.log
            if what in ("matmul", "momentum_steps", "gather_rows")
        }
        assert computed == {one, two, three}

    def test_fine_tuning_has_one_stream(self, double, bits):
        stack = pretrain(bits, layers=(16, 8), epochs=1, backend="numpy")
        fakecupy.log.clear()
        finetune(stack, bits, epochs=2, validation=bits, backend="cupy:1")
        assert {(device, stream) for device, stream, _ in fakecupy.log if stream != "null"} == {
            (1, f"stream {fakecupy.Stream.made}")
        }
        stray = {(device, what) for device, stream, what in fakecupy.log if stream == "null"}
        assert not stray

    @pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
    @pytest.mark.parametrize("runtime", ["serial", "threads"])
    def test_what_a_run_took_is_given_back_at_its_end(
        self, double, bits, monkeypatch, runtime, handoff
    ):
        monkeypatch.setattr(cublas, "WORKSPACE", 256)  # a stream's, which stays with it
        X = np.repeat(bits, 50, axis=0)
        versions = 4 * len(X) * sum(LAYERS)  # of data and activations, one of each
        settings = {"layers": LAYERS, "batch_size": 1000, "epochs": 2, "backend": "cupy"}
        own = settings_from(**settings, runtime=runtime, handoff=handoff)
        run = driver_for(own.pretrain, X)  # which is there while the run goes on
        stack = run.run()
        assert max(fakecupy.left) < versions / 5
        assert run.stack().parameters_sha256 == stack.parameters_sha256
        fakecupy.left.clear()
        finetune(stack, X, epochs=1, backend="cupy")
        assert max(fakecupy.left) < versions / 5
        assert set(fakecupy.freed) == {(0, "memory"), (1, "memory"), (0, "pinned memory")}

    def test_a_gpu_that_has_failed_gives_nothing_back_and_hides_nothing(
        self, double, bits, monkeypatch
    ):
        def illegal_address(*_, **__):
            raise fakecupy.CUDARuntimeError(700, "cudaErrorIllegalAddress")

        def fail(learner: Learner, epoch: int, step: int) -> None:
            raise ValueError("the first error")

        before_steps(monkeypatch, fail)
        monkeypatch.setattr(fakecupy.DefaultPool, "free_all_blocks", illegal_address)
        with pytest.raises(WorkerError, match="the first error"):
            pretrain(bits, layers=(16, 8), epochs=1, backend="cupy")

    def test_one_gpu_alone(self, double, bits):
        fakecupy.log.clear()
        pretrain(bits, **BASE, backend="cupy:1")
        assert {device for device, stream, _ in fakecupy.log if stream != fakecupy.NULL} == {1}

    def test_one_and_two_gpus_come_to_the_same_bits(self, double, bits):
        sums = {pretrain(bits, **BASE, backend=x).parameters_sha256 for x in ("cupy", "cupy:1")}
        assert len(sums) == 1

    def test_activations_are_where_their_reader_is(self, double, bits):
        versions = Versions(Split(bits, bits[:0]), LAYERS[1:], backend=double)
        assert [versions._array(i, 0).train.device.id for i in (0, 1, 2)] == [0, 1, 0]
        assert versions.data.train is bits, "the host's stay with it"

    def test_a_version_goes_to_another_device_in_one_copy(self, double, bits, monkeypatch):
        copies, real = [], fakecupy.ndarray.copy

        def noted(array):
            if array.device.id != fakecupy.current_device():
                copies.append(array.shape)
            return real(array)

        monkeypatch.setattr(fakecupy.ndarray, "copy", noted)
        monkeypatch.setattr(activations, "CHUNK_ROWS", 1)
        monkeypatch.setattr(activations, "DEVICE_ROWS", 50)
        sums = set()
        for is_whole in (True, False):
            copies.clear()
            if not is_whole:  # as without room
                monkeypatch.setattr(CupyBackend, "brought", lambda self, X: X)
            stack = pretrain(bits, layers=(16, 16, 16), epochs=2, backend="cupy", runtime="serial")
            sums.add(stack.parameters_sha256)
            rows = [shape for shape in copies if shape in ((200, 16), (50, 16))]
            assert rows == ([(200, 16)] * 2 if is_whole else [(50, 16)] * 8)
        assert len(sums) == 1

    def test_a_chunk_of_rows_is_large_on_a_device_and_the_same_in_all_layers(self, double):
        for backend in (None, NumpyBackend()):
            assert activations.chunk_rows(backend, (4096, 1000)) == 1000
        found = [activations.chunk_rows(double, (w, 1000)) for w in (784, 4096, 150_528)]
        assert found == [16_384, 2**25 // 4096, 1000]
        rows = np.zeros((2500, 16), np.float32)
        versions = Versions(Split(rows, rows[:0]), (12,), backend=double)
        versions.publish(1, 1, rbm().snapshot())
        fakecupy.log.clear()
        with double.for_layer(2).stream():
            assert versions.activations(1, 1, 0, lambda: False).train.shape == (2500, 12)
        assert [what for _, _, what in fakecupy.log].count("unit_means") == 1

    def test_everything_of_a_learner_is_on_the_device(self, double):
        learner = rbm()
        learner.to(double.for_layer(2))
        arrays = [*learner.parameters, *learner.gradients, *learner.state().values()]
        arrays += [value for value in vars(learner).values() if hasattr(value, "dtype")]
        assert {type(array) for array in arrays} == {double.array_type}
        assert {array.device.id for array in arrays} == {1}
        with learner.stream:
            assert learner.snapshot().weight.device.id == 1

    def test_a_layers_thread_is_the_only_one_to_compute(self, double, bits, monkeypatch):
        threads: dict[str, set[str]] = {}
        real = fakecupy.RawKernel.__call__

        def noted(self, grid, block, args):
            threads.setdefault(fakecupy.current_stream(), set()).add(
                threading.current_thread().name
            )
            real(self, grid, block, args)

        monkeypatch.setattr(fakecupy.RawKernel, "__call__", noted)
        pretrain(bits, **BASE, backend="cupy", runtime="threads", workers=3)
        names = {f"syncpretrain-layer-{layer}" for layer in (1, 2, 3)}
        assert sorted(map(sorted, threads.values())) == sorted([n] for n in names)

    def test_a_diverging_error_is_seen_after_50_minibatches_or_at_the_end(self, double, bits):
        X = double.asarray(np.repeat(bits, 5, axis=0))
        for steps, seen in ((100, 50), (40, 40)):
            learner = rbm(batch_size=10)
            learner.to(double)
            learner.weight[:] = np.float32(np.nan)
            with learner.stream, pytest.raises(DivergedError, match=f"after {seen} minibatches"):
                train_epoch(
                    learner,
                    WholeStep(learner),
                    X[: steps * 10],
                    epoch=2,
                    stop=lambda: False,
                    progress=lambda fraction: None,
                )


def rbm(batch_size: int = 20) -> RBM:
    settings = RBMSettings(
        batch_size=batch_size, learning_rate=0.1, momentum=MomentumSchedule("0.5"), persistent=True
    )
    return RBM(2, 16, 12, settings)


class TestChoice:
    """Which backend a run takes, and what is refused on a GPU."""

    def wanted(self, **settings):
        return settings_from((16, 8, 4), **settings)

    def backend_of(self, **settings):
        return resolve(self.wanted(**settings)).pretrain.backend

    def test_auto_is_the_gpu_where_there_is_one_and_numpy_where_there_is_none(
        self, double, monkeypatch
    ):
        tuned = {"objective": "reconstruction"}
        assert resolve_backend("auto") == self.backend_of(finetune=tuned) == "cupy"
        monkeypatch.setattr(fakecupy, "DEVICES", 0)
        fakecupy.install(monkeypatch, devices=0)
        assert resolve_backend("auto") == self.backend_of(finetune=tuned) == "numpy"

    @pytest.mark.parametrize(
        "settings",
        [
            {"replicas": 2, "split": "units"},
            {"shards": (1, 2), "split": "units"},
            {"runtime": "processes"},
        ],
    )
    def test_what_only_the_cpu_does(self, double, settings):
        assert self.backend_of(**settings) == "numpy"
        with pytest.raises(SettingsError, match=r"^backend: got cupy:1 with .*backend numpy"):
            self.wanted(**settings, backend="cupy:1")

    def test_examples_that_only_the_cpu_takes(self, double, bits, tmp_path):
        sparse = pytest.importorskip("scipy.sparse", reason="a sparse matrix is needed")
        holes, own = bits.copy(), {"layers": (16, 8), "epochs": 1, "batch_size": 20}
        holes[0, 0] = np.nan
        counts = sparse.csr_matrix(bits)
        for X, units in ((holes, "bernoulli"), (counts, "bernoulli"), (counts, "gaussian")):
            stack = pretrain(X, visible_units=units, **own)
            assert stack.info["pretrain"]["backend"] == "numpy"
            with pytest.raises(SettingsError, match=r"^X: got .* with a GPU, which has no form"):
                pretrain(X, visible_units=units, **own, backend="cupy")
        tuned = finetune(stack, counts, epochs=1, batch_size=20)
        assert tuned.info["finetune"][0]["backend"] == "numpy"
        with pytest.raises(SettingsError, match=r"^backend: got cupy with a sparse matrix"):
            finetune(stack, counts, backend="cupy")
        np.save(tmp_path / "x.npy", holes)
        settings = settings_from(**own, data={"name": str(tmp_path / "x.npy")})
        train_run(settings, out=tmp_path / "run")
        assert read_settings(tmp_path / "run" / CONFIG_NAME).pretrain.backend == "numpy"

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"optimizer": "cg"}, "the optimizer cg"),
            ({"optimizer": "lbfgs"}, "the optimizer lbfgs"),
            ({"replicas": 2}, "replicas or shards"),
            ({"shards": 2, "split": "examples"}, "replicas or shards"),
        ],
    )
    def test_what_only_the_cpu_does_in_fine_tuning(self, double, bits, settings, message):
        chosen = {"objective": "reconstruction", **settings}
        assert self.backend_of(finetune=chosen) == "numpy"
        wanted = why_not_tuned_on_a_device(FinetuneSettings(**chosen))
        assert message in wanted and resolve_backend("auto", wanted) == "numpy"
        with pytest.raises(SettingsError, match=f"backend: got cupy with .*{message}"):
            settings_from((16, 8), backend="cupy", finetune=chosen)
        stack = pretrain(bits, layers=(16, 8), epochs=1, backend="numpy")
        with pytest.raises(SettingsError, match=f"backend: got cupy with .*{message}"):
            finetune(stack, bits, **settings, backend="cupy")

    @pytest.mark.parametrize("name", ["gpu", "cupy:x", "CUPY", ""])
    def test_an_unknown_name(self, bits, name):
        with pytest.raises(SettingsError, match="expected auto, numpy, cupy or cupy:NUMBER"):
            self.wanted(backend=name)
        stack = pretrain(bits, layers=(16, 8), epochs=1, backend="numpy")
        with pytest.raises(SettingsError, match="expected auto, numpy, cupy or cupy:NUMBER"):
            finetune(stack, bits, backend=name)

    def test_a_gpu_that_is_missing_is_told_before_anything_is_written(
        self, bits, monkeypatch, tmp_path
    ):
        fakecupy.install(monkeypatch, devices=0)
        np.save(tmp_path / "x.npy", bits)
        settings = settings_from(
            (16, 8), backend="cupy", data={"name": str(tmp_path / "missing.npy")}
        )
        with pytest.raises(SettingsError, match="backend: got cupy, but the driver finds no"):
            train_run(settings, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()
        with pytest.raises(SettingsError, match="backend: got cupy, but the driver finds no"):
            pretrain(bits, layers=(16, 8), backend="cupy")

    def test_a_run_whose_gpu_is_gone_goes_on_elsewhere_and_says_so(
        self, double, bits, monkeypatch, tmp_path
    ):
        np.save(tmp_path / "x.npy", bits)
        given = {"epochs": 3, "batch_size": 20, "data": {"name": str(tmp_path / "x.npy")}}
        settings = settings_from((16, 8), **given)
        train_run(settings_from((16, 8), **given, backend="numpy"), out=tmp_path / "whole")
        with monkeypatch.context() as patch:
            stop_after(patch, 12)
            with pytest.raises(RunInterrupted):
                train_run(settings, out=tmp_path / "run")
        assert read_settings(tmp_path / "run" / CONFIG_NAME).pretrain.backend == "cupy"
        fakecupy.install(monkeypatch, devices=0)
        with pytest.raises(SettingsError, match=r"got cupy, but .* Or take --backend numpy"):
            resume_run(tmp_path / "run")
        events = []
        report = resume_run(tmp_path / "run", backend="numpy", observers=[events.append])
        assert report["backend"] == "numpy"
        notices = notices_of(events)
        assert any("begun with backend cupy and goes on with numpy" in text for text in notices)
        alike(load(tmp_path / "run"), load(tmp_path / "whole"))

    def test_processes_train_on_the_cpu_where_auto_could_take_a_gpu_and_say_so(self, double, bits):
        events = []
        own = {"layers": (16, 8, 4), "epochs": 1, "observers": [events.append]}
        fakecupy.log.clear()
        stack = pretrain(bits, **own, runtime="processes")
        assert stack.info["pretrain"]["backend"] == "numpy"
        assert not fakecupy.log
        (notice,) = [text for text in notices_of(events) if "there is a GPU" in text]
        assert "but backend auto is numpy: with runtime processes, whose" in notice
        for named in ("numpy", "cupy"):
            events.clear()
            pretrain(bits, **own, backend=named)
            assert not any("there is a GPU" in text for text in notices_of(events))

    def test_a_run_and_a_fine_tuning_say_that_a_gpu_is_not_taken(self, double, bits, tmp_path):
        np.save(tmp_path / "x.npy", bits)
        tuned = {"objective": "reconstruction", "optimizer": "cg", "epochs": 1}
        own = {"layers": (16, 8), "epochs": 1, "batch_size": 20}
        events = []
        settings = settings_from(**own, finetune=tuned, data={"name": str(tmp_path / "x.npy")})
        train_run(settings, out=tmp_path / "run", observers=[events.append])
        (notice,) = [text for text in notices_of(events) if "there is a GPU" in text]
        assert "with the optimizer cg of fine-tuning" in notice
        stack = pretrain(bits, **own, backend="numpy")
        events.clear()
        finetune(stack, bits, optimizer="cg", epochs=1, observers=[events.append])
        assert any("there is a GPU" in text for text in notices_of(events))

    def test_a_stack_that_does_not_fit_the_gpu_is_refused(self, double, bits, monkeypatch):
        wanted = {"layers": (16, 8), "epochs": 1, "backend": "cupy"}
        monkeypatch.setattr(fakecupy, "MEMORY", 5_000)
        with pytest.raises(SettingsError, match=r"^layers: 16,8 on 200 .* are free on the GPU"):
            pretrain(bits, **wanted)
        monkeypatch.setattr(fakecupy, "MEMORY", 1 << 30)
        monkeypatch.setattr(available_memory, "available_bytes", lambda: 40_000)
        pretrain(bits, **wanted)  # activations take no memory of the host

    @pytest.mark.parametrize("gpus", [1, 3])
    def test_a_network_that_does_not_fit_a_gpu_is_refused(self, bits, monkeypatch, gpus):
        monkeypatch.setattr(fakecupy.install, "__defaults__", (gpus,))
        backend_of("double", monkeypatch)
        stack = pretrain(bits, layers=(16, 8), epochs=1, backend="numpy")
        monkeypatch.setattr(fakecupy, "MEMORY", 7_000)
        with pytest.raises(SettingsError, match=r"fine-tuning 16,8 on 200 .* are free on the GPU"):
            finetune(stack, bits, backend="cupy")
        monkeypatch.setattr(fakecupy, "MEMORY", 1 << 30)
        monkeypatch.setattr(available_memory, "available_bytes", lambda: 5_000)
        finetune(stack, bits, epochs=1, backend="cupy")  # on the host there are the examples alone

    def test_a_device_trains_all_layers_at_a_time(self, double, bits):
        deep = settings_from((16, 8, 8, 8, 8), backend="cupy").pretrain
        assert workers_of(deep) == 4
        assert workers_of(msgspec.structs.replace(deep, workers=2)) == 2

    def test_a_device_that_fails_does_not_hide_the_error(self, double, bits, monkeypatch):
        def break_down(learner: Learner, epoch: int, step: int) -> None:
            monkeypatch.setattr(CupyBackend, "tohost", illegal_address)
            raise ValueError("the first error")

        def illegal_address(*_):
            raise fakecupy.CUDARuntimeError(700, "cudaErrorIllegalAddress")

        before_steps(monkeypatch, break_down)
        with pytest.raises(WorkerError, match="the first error") as caught:
            pretrain(bits, layers=(16, 8), epochs=1, backend="cupy", runtime="serial")
        assert caught.value.stack is None

    @pytest.mark.parametrize("runtime", ["serial", "threads"])
    @pytest.mark.parametrize("broken", ["asarray", "tohost", "synchronize"])
    def test_a_device_where_all_fails_after_an_error_does_not_hide_it(
        self, double, bits, monkeypatch, runtime, broken
    ):
        def illegal_address(*_, **__):
            raise fakecupy.CUDARuntimeError(700, "cudaErrorIllegalAddress")

        def break_down(learner: Learner, epoch: int, step: int) -> None:
            if learner.layer == 1 and epoch == 2:
                if broken == "synchronize":
                    monkeypatch.setattr(fakecupy.Stream, "synchronize", illegal_address)
                else:
                    monkeypatch.setattr(CupyBackend, broken, illegal_address)
                raise ValueError("the first error")

        before_steps(monkeypatch, break_down)
        with pytest.raises(WorkerError, match=r"layer 1 failed in epoch 2: .*the first error"):
            pretrain(bits, layers=(16, 8), epochs=2, backend="cupy", runtime=runtime)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--backend", "cupy"], "--backend: got cupy, but the driver finds no NVIDIA GPU"),
            (["--backend", "cuda"], "--backend: got 'cuda', expected auto, numpy, cupy or cupy:N"),
            (
                ["--backend", "cupy", "--replicas", "2", "--split", "units"],
                "got cupy with split units, expected examples",
            ),
            (["--backend", "cupy:0", "--runtime", "processes"], "got cupy:0 with runtime proc"),
        ],
    )
    def test_the_command_refuses_with_status_2(
        self, bits, monkeypatch, tmp_path, capfd, options, message
    ):
        fakecupy.install(monkeypatch, devices=0)
        np.save(tmp_path / "x.npy", bits)
        out = tmp_path / "run"
        given = ["--layers", "16,8", "--data", str(tmp_path / "x.npy"), "--out", str(out)]
        with pytest.raises(SystemExit) as left:
            main(["train", *given, *options], prog_name="syncpretrain")
        assert left.value.code == 2
        assert message in " ".join(capfd.readouterr().err.split())
        assert not out.exists()

    def test_numpy_looks_at_every_error_and_copies_nothing(self, bits):
        assert NumpyBackend.steps_at_once == 1
        versions = Versions(Split(bits, bits[:0]), LAYERS[1:])
        assert versions._array(0, 0).train is bits
        learner = rbm()
        before = [learner.weight, learner.gradients[0], learner._v]
        learner.to(backend_for("numpy"))
        after = [learner.weight, learner.gradients[0], learner._v]
        assert all(a is b for a, b in zip(before, after, strict=True))

    def test_the_order_is_placed_once_an_epoch(self):
        given = []

        def move(rows):
            given.append(rows)
            return rows

        batches = list(minibatches(10, 4, seed=0, layer=1, epoch=1, device=move))
        assert [len(rows) for rows in given] == [10]
        assert all(rows.base is not None for rows in batches), "parts of what was placed"
