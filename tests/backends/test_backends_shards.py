"""Shards of minibatches on devices: bits that do not depend on how many, and every wait needed."""

from typing import ClassVar

import fakecuda
import fakecupy
import msgspec
import numpy as np
import pytest
from backends import as_it_is, backend_of
from devicedraws import draw_as_on_a_device
from learnersteps import usual
from pretrainingkinds import KINDS
from stackcomparisons import alike
from trialruns import notices_of, stopped_after

from syncpretrain import pretrain
from syncpretrain.backends import cuda_kernels, cupy_backend
from syncpretrain.backends.choice import backend_for
from syncpretrain.backends.rows import HostRows
from syncpretrain.errors import SettingsError
from syncpretrain.kernels.averaging import sum_in_order, tree_steps
from syncpretrain.learners import by_examples
from syncpretrain.learners.base import Learner
from syncpretrain.learners.by_examples import ByExamples, ByExamplesOnDevices
from syncpretrain.learners.epoch import train_epoch
from syncpretrain.learners.rbm import RBM
from syncpretrain.learners.steps import Step
from syncpretrain.pretraining.build import step_for
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.pretraining.memory import shard_bytes
from syncpretrain.settings import settings_from

REFUSED = {"chains"}  # in shards, which the CPU alone has
LEARNERS = {name: kind for name, kind in KINDS.items() if name not in REFUSED}
LEARNERS |= {"cd": {}, "convolution": {"layers": "1x4x4,conv:3x3,8,5"}}
CASES = LEARNERS | {"more shards than examples in the last minibatch": {"shards": 7}}
LAYERS = (16, 12, 8, 5)
PROMPT = [frozenset(), frozenset({0}), frozenset({1})]  # devices that work as early as they may

pytestmark = [
    pytest.mark.simulated_gpu,
    pytest.mark.skipif(fakecuda.COMPILER is None, reason="no g++ here to compile the kernels"),
]


@pytest.fixture(autouse=True)
def short_blocks(unexamined, monkeypatch):
    """Let blocks be short, so that most of them are graphs."""
    monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", 2)


@pytest.fixture
def bits() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 2, (95, 16)).astype(np.float32)


def machine(monkeypatch, devices: int, mode: str = "deferred"):
    """Return the backend of a machine with a number of devices."""
    monkeypatch.setattr(fakecupy.install, "__defaults__", (devices,))
    return backend_of(mode, monkeypatch)


def trained(X: np.ndarray, **settings):
    # Of blocks of 2, 2, 2 and 1 minibatches, the last of which is smaller.
    own = {"layers": (16, 12, 8), "batch_size": 15, "epochs": 3, "shards": 4, "runtime": "serial"}
    return pretrain(X, **(own | {"backend": "cupy"} | settings))


def rbm() -> RBM:
    return RBM(1, 16, 12, usual(batch_size=12))


def epoch_of(learner: RBM, step: Step, X) -> float:
    own = {"epoch": 2, "stop": lambda: False, "progress": lambda _: None}
    return train_epoch(learner, step, X, **own)


class TestBits:
    @pytest.mark.parametrize("kind", CASES)
    def test_they_depend_on_the_shards_and_not_on_the_devices(self, bits, monkeypatch, kind):
        settings = {"layers": LAYERS, "epochs": 2} | CASES[kind]
        with monkeypatch.context() as patch:
            draw_as_on_a_device(patch)
            oracle = trained(bits, **settings, backend="numpy")
        found = set()
        for devices in (1, 3):  # 4 shards on one, and 2, 1 and 1
            machine(monkeypatch, devices)
            stack = trained(bits, **settings, replicas=devices)
            alike(stack, oracle)
            found.add(stack.parameters_sha256)
        assert len(found) == 1

    @pytest.mark.parametrize("mode", ["double", "deferred"])
    def test_of_any_runtime_and_mode_and_number_of_replicas(self, bits, monkeypatch, mode):
        found = {}
        for devices, replicas in ((1, 1), (1, 4), (2, 2), (3, 2), (3, 4)):
            machine(monkeypatch, devices, mode)
            launched, runtime = fakecupy.Graph.launched, "serial" if replicas == 1 else "threads"
            stack = trained(bits, replicas=replicas, runtime=runtime)
            assert fakecupy.Graph.launched - launched == 2 * (3 * 4 - 2), "recorded blocks"
            found[devices, replicas] = stack.parameters_sha256
        as_it_is(monkeypatch)
        found["launches"] = trained(bits, replicas=3).parameters_sha256
        assert len(set(found.values())) == 1
        assert found[1, 1] != trained(bits, shards=3).parameters_sha256

    def test_rows_that_stay_on_the_host(self, bits, monkeypatch):
        machine(monkeypatch, 3)
        expected = trained(bits, replicas=3, layers=(16, 12)).parameters_sha256
        monkeypatch.setattr(
            cupy_backend.CupyBackend, "examples", lambda self, X, beside=0: HostRows(X, self)
        )
        found = trained(bits, replicas=3, layers=(16, 12)).parameters_sha256
        assert found == expected

    @pytest.mark.parametrize(
        ("kind", "minibatches"), [("cd", 2), ("cd", 10), ("persistent", 10), ("sparsity", 2)]
    )
    def test_a_stopped_run_goes_on_to_the_same_bits_on_other_devices(
        self, bits, monkeypatch, kind, minibatches
    ):
        own = {"epochs": 2, "batch_size": 15, "shards": 3, "backend": "cupy", "runtime": "serial"}
        own |= LEARNERS[kind]
        machine(monkeypatch, 3)
        three, one = (settings_from(LAYERS, **own, replicas=n).pretrain for n in (3, 1))
        whole = Pretraining(one, bits).run()
        state, _ = stopped_after(minibatches, three, bits)
        for settings in (three, one):
            resumed = Pretraining(settings, bits, resume=state).run()
            assert resumed.parameters_sha256 == whole.parameters_sha256

    @pytest.mark.parametrize("kind", ["cd", "persistent", "sparsity"])
    def test_a_layer_that_diverges_begins_anew_on_all_devices(self, bits, monkeypatch, kind):
        found = set()
        for devices in (1, 3):
            machine(monkeypatch, devices)
            stack, notices = diverging(bits, monkeypatch, **LEARNERS[kind], replicas=devices)
            found.add(stack.parameters_sha256)
            assert any("half the learning rate" in text for text in notices)
        assert len(found) == 1

    def test_hidden_means_are_those_of_numpys_shards(self, bits, monkeypatch):
        backend = machine(monkeypatch, 3)
        host, learner, X = rbm(), rbm(), backend.asarray(bits)
        learner.to(backend)
        expected, out = np.empty((10, 12), np.float32), backend.empty((10, 12))
        steps = step_for(host, 4, "examples"), step_for(learner, 4, "examples", 3)
        assert [type(step) for step in steps] == [ByExamples, ByExamplesOnDevices]
        rows = np.arange(5, 15)
        backend.synchronize()
        steps[0].train_step(bits, rows, epoch=1, step=0)
        steps[0].hand_up(expected)
        with learner.stream:
            steps[1].train_step(X, backend.asarray(rows), epoch=1, step=0)
            steps[1].hand_up(out)
            np.testing.assert_allclose(backend.tohost(out), expected, rtol=1e-5, atol=1e-6)


def diverging(bits, monkeypatch, **settings):
    """Return a stack whose first layer diverges in its second epoch, and the notices."""
    largest, calls, events = Learner.largest_weight, [], []

    def grown(learner) -> float:
        calls.append(learner.layer)
        return np.inf if calls.count(1) == 2 and calls[-1] == 1 else largest(learner)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "largest_weight", grown)
        stack = trained(bits, **({"layers": LAYERS} | settings), observers=[events.append])
    return stack, notices_of(events)


class TestWaits:
    undisturbed: ClassVar[dict[bool, set]] = {}  # the outcomes of recorded steps, and of launches

    def outcomes(self, bits, monkeypatch) -> set:
        """Return the bits, notices and errors of runs in which some devices hurry."""
        found = set()
        for prompt in PROMPT:
            machine(monkeypatch, 2)
            monkeypatch.setattr(fakecupy, "PROMPT", prompt)
            try:
                stack, notices = diverging(bits, monkeypatch, layers=(16, 12), replicas=2)
                found.add((stack.parameters_sha256, *notices))
            except Exception as error:  # NaN, or a recording that is left in the middle
                found.add(str(error))
        return found

    @pytest.mark.parametrize(
        ("event", "recorded"),
        [
            # Recorded it is what makes streams a part of the graph; without it they would read what
            # is not there yet, such as addresses.
            ("_begun", False),
            ("computed", False),
            ("computed", True),
            ("moved", False),
            ("moved", True),
            # Else the next step comes after it in the queue of each stream.
            ("done", True),
        ],
    )
    def test_each_is_needed(self, bits, monkeypatch, event, recorded):
        if not recorded:
            as_it_is(monkeypatch)
        if recorded not in self.undisturbed:
            self.undisturbed[recorded] = self.outcomes(bits, monkeypatch)
        expected = self.undisturbed[recorded]
        assert len(expected) == 1
        real = ByExamplesOnDevices.__init__

        def without(self, *given):
            real(self, *given)
            for holder in [self] if event == "_begun" else self._places:
                monkeypatch.setattr(getattr(holder, event), "wait", lambda: None)

        monkeypatch.setattr(ByExamplesOnDevices, "__init__", without)
        assert self.outcomes(bits, monkeypatch) - expected

    def restored(self, bits, monkeypatch) -> set[bytes]:
        """Return the parameters after an epoch that begins at a snapshot, as graphs."""
        found = set()
        for prompt in PROMPT:
            backend = machine(monkeypatch, 2)
            monkeypatch.setattr(fakecupy, "PROMPT", prompt)
            learner, X = rbm(), backend.asarray(bits)
            learner.to(backend)
            step = step_for(learner, 2, "examples", 2)
            backend.synchronize()
            with learner.stream:
                start = learner.snapshot()
                for _ in range(2):
                    learner.restore(start)
                    epoch_of(learner, step, X)
                found.add(backend.tohost(learner.flat.parameters).tobytes())
        return found

    @pytest.mark.parametrize("wait", ["before", "behind"])
    def test_a_block_is_worked_after_what_it_needs_is_copied(self, bits, monkeypatch, wait):
        expected = self.restored(bits, monkeypatch)
        assert len(expected) == 1
        real = ByExamplesOnDevices.begin_block

        def without(step):
            with monkeypatch.context() as patch:
                for event in [step._begun] if wait == "before" else [p.done for p in step._places]:
                    patch.setattr(event, "wait", lambda: None)
                real(step)

        monkeypatch.setattr(ByExamplesOnDevices, "begin_block", without)
        assert self.restored(bits, monkeypatch) - expected

    @pytest.mark.parametrize("replicas", [1, 2, 3])
    def test_the_host_waits_for_none(self, bits, monkeypatch, replicas):
        machine(monkeypatch, 3, "double")
        counts = []
        for size in (45, 9):
            fakecupy.log.clear()
            trained(bits[:90], batch_size=size, epochs=1, replicas=replicas)
            counts.append(sum(what == "synchronize" for _, _, what in fakecupy.log))
        assert counts[0] == counts[1]

    def test_every_device_computes_its_shards_on_a_stream_of_its_own(self, bits, monkeypatch):
        machine(monkeypatch, 3, "double")
        as_it_is(monkeypatch)
        fakecupy.log.clear()
        trained(bits, replicas=3, shards=5, layers=(16, 12), epochs=1)
        counts = {}
        for device, stream, what in fakecupy.log:
            if what in ("draw_bernoulli", "tree_steps"):
                assert stream != fakecupy.NULL
                counts[device, what] = counts.get((device, what), 0) + 1
        steps = 7
        assert counts == {
            (0, "draw_bernoulli"): steps,
            (1, "draw_bernoulli"): 2 * steps,
            (2, "draw_bernoulli"): 2 * steps,
            **{(device, "tree_steps"): steps for device in range(3)},
        }

    def test_layers_begin_at_their_own_device(self, bits, monkeypatch):
        backend = machine(monkeypatch, 3)
        names = [[each.name for each in backend.for_layer(i).for_replicas(2)] for i in (1, 2, 3)]
        assert names == [["cupy:0", "cupy:1"], ["cupy:1", "cupy:0"], ["cupy:2", "cupy:0"]]
        assert [each.name for each in backend_for("cupy:1").for_replicas(2)] == ["cupy:1"]


class TestSums:
    @pytest.mark.parametrize("shards", [*range(1, 18), 31, 64])
    def test_the_tree_is_numpys(self, monkeypatch, shards):
        backend, rng = machine(monkeypatch, 1), np.random.default_rng(shards)
        gradients = [
            (rng.standard_normal(41) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
            for _ in range(shards)
        ]
        start = [rng.standard_normal(41).astype(np.float32) for _ in range(2)]
        rates = {"momentum": 0.7, "learning_rate": 0.1, "weight_decay": 0.01, "l1": 0.003}
        for part in (slice(0, 41), slice(0, 12), slice(7, 30), slice(25, 41), slice(5, 5)):
            expected = [array.copy() for array in start]
            tree_steps(expected[0], gradients, expected[1], part=part, weights=20, **rates)
            own, velocities = (backend.asarray(array) for array in start)
            vectors = backend.peers([backend.asarray(each) for each in gradients])
            tree_steps(own, vectors, velocities, part=part, weights=20, **rates)
            for ours, theirs in zip((own, velocities), expected, strict=True):
                np.testing.assert_array_equal(backend.tohost(ours), theirs)

    def test_errors_are_added_in_their_order(self, monkeypatch):
        backend, numbers = machine(monkeypatch, 1), np.random.default_rng(0).random(37)
        assert float(sum_in_order(backend.asarray(numbers))) == sum_in_order(numbers)

    def test_more_shards_than_the_kernel_has_levels_for(self, monkeypatch):
        backend = machine(monkeypatch, 1)
        monkeypatch.setattr(cuda_kernels, "MOST_LEAVES", 2)
        p, v, *rest = (backend.zeros(4) for _ in range(5))
        with pytest.raises(ValueError, match=r"^shards: got 3, expected at most 2 on a GPU"):
            tree_steps(
                *(p, backend.peers(rest), v),
                **{"part": slice(0, 4), "weights": 4, "momentum": 0, "learning_rate": 1},
            )


class TestRefused:
    def test_gpus_that_cannot_read_each_other(self, bits, monkeypatch):
        machine(monkeypatch, 2)
        monkeypatch.setattr(fakecupy, "PEERS", False)
        settings = settings_from(LAYERS, replicas=2, batch_size=15, backend="cupy").pretrain
        with pytest.raises(SettingsError, match=r"^replicas: got 2 GPUs for a layer, but GPU 0 c"):
            Pretraining(settings, bits)
        alone = trained(bits, shards=2, replicas=1).parameters_sha256
        monkeypatch.setattr(fakecupy, "PEERS", True)
        assert trained(bits, replicas=2, shards=2).parameters_sha256 == alone

    def test_parts_of_a_layer(self):
        learner = rbm()
        learner.backend = msgspec.defstruct("Elsewhere", [("name", str)])(name="cupy:0")
        with pytest.raises(ValueError, match="on a device, expected examples"):
            step_for(learner, 2, "units")

    def test_what_does_not_fit(self, bits, monkeypatch):
        machine(monkeypatch, 2)
        own = {"layers": (16, 3000), "batch_size": 90, "backend": "cupy"}
        wide, alone = settings_from(**own, replicas=2).pretrain, settings_from(**own).pretrain
        assert shard_bytes(alone) == 0
        numbers = 16 * 3000 + 16 + 3000
        # Two gradients, and of the second device parameters, gradient and velocity.
        assert shard_bytes(wide) >= 4 * 5 * numbers
        monkeypatch.setattr(fakecupy, "MEMORY", 4_000_000)
        Pretraining(alone, bits)
        with pytest.raises(SettingsError, match="are free on the GPU"):
            Pretraining(wide, bits)


def test_a_step_that_fails_leaves_the_devices_in_order(bits, monkeypatch):
    backend = machine(monkeypatch, 2)
    learner, X = rbm(), backend.asarray(bits)
    learner.to(backend)
    step = step_for(learner, 2, "examples", 2)
    backend.synchronize()
    start = learner.snapshot().to(backend.tohost)
    real, left = by_examples.tree_steps, [3]

    def fail(*given, **options):
        left[0] -= 1
        if left[0] == 0:
            raise MemoryError("of the device")
        real(*given, **options)

    monkeypatch.setattr(by_examples, "tree_steps", fail)
    with learner.stream:
        with pytest.raises(MemoryError):
            epoch_of(learner, step, X)
        learner.restore(start)
        step.restart()
        again = epoch_of(learner, step, X)
    fresh = rbm()
    fresh.to(backend)
    with fresh.stream:
        assert epoch_of(fresh, step_for(fresh, 2, "examples", 2), X) == again
