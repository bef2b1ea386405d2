"""What only a device has, counted: waits, streams, copies, and layers dealt to devices."""

import itertools
import json
import threading

import fakecuda
import fakecupy
import numpy as np
import pytest
from backends import backend_of
from disturbedsteps import before_steps
from hypothesis import given
from hypothesis import strategies as st
from learnersteps import train_whole, usual
from pretrainingkinds import KINDS
from trialruns import notices_of

from syncpretrain import finetune, pretrain
from syncpretrain.backends import cublas, cupy_backend
from syncpretrain.backends.base import Backend, deal
from syncpretrain.backends.choice import backend_for
from syncpretrain.backends.cupy_backend import CupyBackend
from syncpretrain.errors import DivergedError
from syncpretrain.learners.base import Learner
from syncpretrain.learners.rbm import RBM
from syncpretrain.pretraining.build import backend_of_layers, layer_costs
from syncpretrain.pretraining.driver import driver_for, placement_of
from syncpretrain.settings import settings_from
from syncpretrain.workers import activations
from syncpretrain.workers.activations import Split
from syncpretrain.workers.versions import Versions

LAYERS = (16, 12, 8, 5)
BASE = {"layers": LAYERS, "batch_size": 15, "epochs": 3}
CONVOLUTIONS = "1x4x4,conv:3x3,pool:2,5"
PLAIN = {
    "plain": {},
    "convolutions": {"layers": CONVOLUTIONS, "sparsity_cost": (0.5, 0)},
    "convolutions with drawn blocks": {"layers": "1x4x4,conv:3x3,pool:2:prob,5"},
    "denoising convolutions": {"layers": CONVOLUTIONS, "model": "denoising"},
    "streamed": {"handoff": "minibatch", "runtime": "serial"},
    "streamed with a delay": {"handoff": "minibatch", "runtime": "serial", "delay": 0.5},
}
FREE = {"asarray", "copy", "synchronize"}  # what the driver's own thread may do on a device


def rbm(batch_size: int = 20) -> RBM:
    return RBM(2, 16, 12, usual(batch_size=batch_size, persistent=True))


@pytest.mark.usefixtures("unexamined")
class TestOnADevice:
    """What the stand-in can count: waits, streams, and where arrays are."""

    def waits(self, bits, batch_size: int, **settings) -> int:
        fakecupy.log.clear()
        wanted = {"layers": LAYERS, "epochs": 1} | settings
        pretrain(bits[:180], **wanted, batch_size=batch_size, backend="cupy")
        return sum(what == "synchronize" for _, _, what in fakecupy.log)

    @pytest.mark.parametrize(
        "kind",
        [
            *PLAIN,
            *("untied", "denoising", "contractive", "persistent", "sparsity", "hidden dropout"),
        ],
    )
    def test_no_step_waits(self, double, bits, kind, monkeypatch):
        settings = (PLAIN | KINDS)[kind]
        if "handoff" in settings:
            monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", 4)  # short rings
        assert self.waits(bits, 90, **settings) == self.waits(bits, 9, **settings) < 90

    @pytest.mark.parametrize("layers", [(16, 8), CONVOLUTIONS])
    def test_no_step_of_fine_tuning_waits(self, double, bits, targets, layers):
        stack = pretrain(bits[:180], layers=layers, epochs=1, backend="numpy")
        counts = []
        for size in (60, 6):
            fakecupy.log.clear()
            for y in (None, targets[:180]):
                finetune(stack, bits[:180], y, epochs=2, batch_size=size, backend="cupy")
            counts.append(sum(what == "synchronize" for _, _, what in fakecupy.log))
        assert counts[0] == counts[1]

    @pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
    @pytest.mark.parametrize("runtime", ["threads", "serial"])
    def test_the_work_of_a_layer_is_on_its_own_stream_of_its_own_device(
        self, double, bits, monkeypatch, runtime, handoff
    ):
        places: dict[int, set[tuple[int, str]]] = {1: set(), 2: set(), 3: set()}

        def note(learner: Learner, epoch: int, step: int) -> None:
            places[learner.layer].add((fakecupy.current_device(), fakecupy.current_stream()))

        before_steps(monkeypatch, note)
        if handoff == "minibatch":
            monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", 4)  # short rings
        fakecupy.log.clear()
        pretrain(bits, **BASE, backend="cupy", runtime=runtime, handoff=handoff)
        assert [len(places[layer]) for layer in (1, 2, 3)] == [1, 1, 1]
        (one,), (two,), (three,) = places.values()
        assert [one[0], two[0], three[0]] == [0, 1, 1], "dealt by their multiplications"
        assert len({one[1], two[1], three[1], fakecupy.NULL}) == 4
        stray = {what for _, stream, what in fakecupy.log if stream == fakecupy.NULL}
        free = FREE if handoff == "epoch" else FREE - {"copy"}
        assert stray <= free, "the rest is in no layer's queue"
        assert self.places_of("matmul", "momentum_steps", "gather_rows") == {one, two, three}
        if handoff == "minibatch":
            assert self.places_of("peer copy") == {one, two}, "each pushes what it hands up"

    def places_of(self, *names: str) -> set[tuple[int, str]]:
        return {(device, stream) for device, stream, what in fakecupy.log if what in names}

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
        X = np.repeat(bits, 20, axis=0)
        versions = 4 * len(X) * sum(LAYERS)  # of data and activations, one of each
        settings = {"layers": LAYERS, "batch_size": 400, "epochs": 2, "backend": "cupy"}
        own = settings_from(**settings, runtime=runtime, handoff=handoff)
        run = driver_for(own.pretrain, X)  # which is there while the run goes on
        stack = run.run()
        assert max(fakecupy.left) < versions / 5
        assert run.stack().parameters_sha256 == stack.parameters_sha256
        fakecupy.left.clear()
        finetune(stack, X, epochs=1, backend="cupy")
        assert max(fakecupy.left) < versions / 5
        assert set(fakecupy.freed) == {(0, "memory"), (1, "memory"), (0, "pinned memory")}

    def test_one_gpu_alone(self, double, bits):
        fakecupy.log.clear()
        pretrain(bits, **BASE, backend="cupy:1")
        assert {device for device, stream, _ in fakecupy.log if stream != fakecupy.NULL} == {1}

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
                monkeypatch.setattr(CupyBackend, "to_device_if_fits", lambda self, X: X)
            stack = pretrain(bits, layers=(16, 16, 16), epochs=2, backend="cupy", runtime="serial")
            sums.add(stack.parameters_sha256)
            rows = [shape for shape in copies if shape in ((200, 16), (50, 16))]
            assert rows == ([(200, 16)] * 2 if is_whole else [(50, 16)] * 8)
        assert len(sums) == 1

    def test_a_chunk_of_rows_is_large_on_a_device_and_the_same_in_all_layers(self, double):
        for backend in (None, Backend()):
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

        def noted(self, grid, block, args, **options):
            threads.setdefault(fakecupy.current_stream(), set()).add(
                threading.current_thread().name
            )
            real(self, grid, block, args, **options)

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
                train_whole(learner, X[: steps * 10], range(2, 3))

    def test_numpy_looks_at_every_error_and_copies_nothing(self, bits):
        assert Backend.steps_at_once == 1
        versions = Versions(Split(bits, bits[:0]), LAYERS[1:])
        assert versions._array(0, 0).train is bits
        learner = rbm()
        before = [learner.weight, learner.gradients[0], learner._v]
        learner.to(backend_for("numpy"))
        after = [learner.weight, learner.gradients[0], learner._v]
        assert all(a is b for a, b in zip(before, after, strict=True))


PAPER = (784, 1000, 500, 250, 30)


@pytest.mark.parametrize(
    ("costs", "places", "shares", "expected"),
    [
        ((5, 4, 3, 3, 3), (0, 1), (), [(0,), (1,), (1,), (0,), (1,)]),  # 8 and 10; 9 is possible
        ((784, 500, 125, 7), (0, 1), (), [(0,), (1,), (1,), (1,)]),
        ((784, 500, 125, 7), (3, 1, 2), (), [(3,), (1,), (2,), (2,)]),
        ((1, 1, 1), (0, 1), (), [(0,), (1,), (0,)]),
        ((1, 2), (4,), (), [(4,), (4,)]),
        ((9, 2, 3), (0, 1, 2), (2, 1, 1), [(0, 1), (2,), (2,)]),
        ((9, 2), (0, 1), (3, 1), [(0, 1), (0,)]),
        ((), (0,), (), []),
    ],
)
def test_the_costliest_goes_first_to_where_there_is_least(costs, places, shares, expected):
    assert deal(costs, places, shares) == tuple(expected)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(1, 3))
def test_no_place_has_more_than_a_third_above_the_least_possible(costs, places):
    def longest(found) -> int:
        loads = [0] * places
        for cost, place in zip(costs, found, strict=True):
            loads[place] += cost
        return max(loads)

    dealt = [place for (place,) in deal(costs, range(places))]
    best = min(map(longest, itertools.product(range(places), repeat=len(costs))))
    assert 3 * places * longest(dealt) <= (4 * places - 1) * best


def test_the_costs_of_layers():
    own = settings_from((8, 4, 2), epochs=(3, 5), cd_steps=(1, 2)).pretrain
    assert layer_costs(own) == (8 * 4 * 3 * 5, 4 * 2 * 5 * 7)
    own = settings_from((8, 4, 2), epochs=2, model="autoencoder").pretrain
    assert layer_costs(own) == (8 * 4 * 2 * 5, 4 * 2 * 2 * 5)
    (convolution, dense) = layer_costs(settings_from("1x4x4,conv:2x3,pool:2,5", epochs=1).pretrain)
    assert (convolution, dense) == (5 * 4 * 2 * 9, 5 * 2 * 5)


@pytest.mark.skipif(fakecuda.COMPILER is None, reason="no g++ here to compile the kernels")
class TestOnGpus:
    @pytest.fixture(autouse=True)
    def machine(self, unexamined, monkeypatch):
        monkeypatch.setattr(fakecupy.install, "__defaults__", (3,))
        monkeypatch.setattr("syncpretrain.backends.cupy_backend.STEPS_AT_ONCE", 4)
        backend_of("double", monkeypatch)

    def places(self, layers=PAPER, **settings) -> list[list[str]]:
        own = settings_from(layers, **({"backend": "cupy"} | settings)).pretrain
        backend = backend_of_layers(own)
        return [
            [each.name for each in backend.for_layer(layer).for_replicas(own.replicas[layer - 1])]
            for layer in range(1, len(own.layers))
        ]

    def test_layers_are_dealt_by_their_multiplications(self):
        assert self.places() == [["cupy:0"], ["cupy:1"], ["cupy:2"], ["cupy:2"]]
        assert self.places(backend="cupy:1") == [["cupy:1"]] * 4

    def test_replicas_are_dealt_to_several(self):
        found = self.places(replicas=(2, 1, 1, 1))
        assert found == [["cupy:1", "cupy:2"], ["cupy:0"], ["cupy:1"], ["cupy:2"]]
        assert self.places((16, 8), replicas=5) == [["cupy:0", "cupy:1", "cupy:2"]]

    def test_a_stream_says_so_too(self, bits):
        own = {"layers": (16, 8, 4), "batch_size": 20, "backend": "cupy", "handoff": "minibatch"}
        driver = driver_for(settings_from(**own).pretrain, bits)
        assert placement_of(driver) == "layers on GPUs: 1 on 0, 2 on 1"

    def test_a_run_and_a_dry_run_say_so(self, bits, tmp_path, call, monkeypatch):
        monkeypatch.setattr("syncpretrain.planning.dry_run.MEASURED_SECONDS", 0)
        events, text = [], "layers on GPUs: 1 on 0, 2 on 1 and 2"
        own = {"layers": (16, 8, 4), "epochs": 1, "replicas": (1, 2), "batch_size": 20}
        pretrain(bits, **own, backend="cupy", observers=[events.append])
        assert text in notices_of(events)
        for backend in ("cupy:1", "numpy"):
            events.clear()
            pretrain(bits, **own, backend=backend, observers=[events.append])
            assert not any("layers on GPUs" in text for text in notices_of(events))
        np.save(tmp_path / "x.npy", bits)
        options = ["--layers", "16,8,4", "--epochs", 1, "--replicas", "1,2", "--batch-size", 20]
        options += ["--data", tmp_path / "x.npy", "--backend", "cupy", "--dry-run"]
        assert text in call("train", *options)[0]
        assert json.loads(call("train", *options, "--json")[0])["placement"] == text
