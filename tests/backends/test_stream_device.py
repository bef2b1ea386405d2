"""Streamed pretraining on devices: NumPy's minibatches of the same versions in the same order."""

import itertools
import json
import signal
import threading

import fakecupy
import numpy as np
import pytest
from backends import as_it_is, backend_of, errors_of, leave_free, on_devices
from devicedraws import draw_as_on_a_device
from disturbedsteps import before_steps
from largerdata import Blocking
from stackcomparisons import alike
from streamedruns import LAYERS, VARIANTS, streamed
from trialruns import library_threads, notices_of

from syncpretrain import Stack, pretrain
from syncpretrain.backends import cublas, cupy_backend
from syncpretrain.backends import rows as kept_rows
from syncpretrain.backends.cupy_backend import CupyBackend
from syncpretrain.data import blocks
from syncpretrain.errors import DivergedError, RunInterrupted, SettingsError, WorkerError
from syncpretrain.events import EpochFinished
from syncpretrain.learners.base import Learner
from syncpretrain.pretraining import memory
from syncpretrain.settings import settings_from
from syncpretrain.workers.state import STREAM_STATE
from syncpretrain.workers.streamed.inputs import Events, Ring
from syncpretrain.workers.streamed.layer import StreamedLayer

ON_DEVICES = [v for v in VARIANTS if not {"shards"} & VARIANTS[v].keys()]
# A delay moves minibatches, whatever learns of them: each learner with one, and each delay.
LEARNERS = [(variant, 0.4) for variant in ON_DEVICES]
LEARNERS += [(variant, delay) for variant in ("rbm", "uneven", "log-odds") for delay in (0.0, 2.5)]
STOPPED = [
    ("rbm", 0.0),
    ("persistent", 0.4),
    ("dropout", 0.0),
    ("stopped early", 0.4),
    ("log-odds", 1.5),
]
STREAM = {"layers": LAYERS, "batch_size": 30, "epochs": 3, "handoff": "minibatch"}
IMAGES = ("1x4x4,conv:3x2,pool:1,conv:2x2,5", {"batch_size": 20, "epochs": 2})


@pytest.fixture(autouse=True)
def small_rings(unexamined, monkeypatch):
    """Let rings be of 4 minibatches in blocks of 2: of 7 in an epoch."""
    monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", 4)


def saved(run) -> tuple[Stack, list]:
    """Return what a run ends with, and its states with how much was done."""
    states = []
    run.save = lambda state, *, done, final: states.append((state(), done))
    return run.run(), states


def on_device(bits, variant="rbm", **options):
    return streamed(bits, variant, **{"backend": "cupy", **options})


@pytest.mark.parametrize(("device", "case"), on_devices(LEARNERS), indirect=["device"])
def test_every_learner_comes_to_numpys_weights_and_errors(bits, device, case, monkeypatch):
    variant, delay = case
    draw_as_on_a_device(monkeypatch)
    found, errors = [], []
    for backend, runtime in (("numpy", "serial"), ("cupy", "serial"), ("cupy", "threads")):
        events, own = [], {"delay": delay, "backend": backend, "runtime": runtime, "workers": 3}
        found.append(streamed(bits, variant, observers=[events.append], **own).run())
        errors.append(errors_of(events))
    oracle, stack, of_threads = found
    assert stack.parameters_sha256 == of_threads.parameters_sha256
    assert stack.info["pretrain"]["backend"] == "cupy"
    assert stack.info["epochs"] == oracle.info["epochs"]
    alike(stack, oracle)
    for own in errors[1:]:
        np.testing.assert_allclose(own, errors[0], rtol=1e-5, atol=1e-9)  # some are near 0


@pytest.mark.parametrize("model", ["rbm", "autoencoder"])
def test_convolutions_come_to_numpys_weights(bits, late, model):
    layers, options = IMAGES
    options = options | {"handoff": "minibatch", "delay": 0.5, "model": model}
    oracle = pretrain(bits, layers=layers, **options, backend="numpy")
    alike(pretrain(bits, layers=layers, **options, backend="cupy"), oracle)


def test_late_and_immediate_work_and_one_device_come_to_the_same_bits(bits, monkeypatch):
    found = set()
    for name, backend in (("double", "cupy"), ("deferred", "cupy"), ("deferred", "cupy:1")):
        with monkeypatch.context() as patch:
            backend_of(name, patch)
            for runtime in ("serial", "threads"):
                stack = on_device(bits, delay=0.4, backend=backend, runtime=runtime).run()
                found.add(stack.parameters_sha256)
    assert len(found) == 1


def test_neither_rings_nor_blocks_change_a_bit(bits, late, monkeypatch):
    found = set()
    for steps in (2, 3, 4, 9, 50):
        monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", steps)
        found.add(on_device(bits, delay=0.4).run().parameters_sha256)
    assert len(found) == 1


def test_auto_streams_on_a_gpu(bits, prompt):
    assert on_device(bits, backend="auto").run().info["pretrain"]["backend"] == "cupy"


class TestOrder:
    """The waits between streams, and those of the host that there are none of."""

    def outcome(self, bits, **options) -> str:
        try:
            return on_device(bits, runtime="serial", epochs=3, **options).run().parameters_sha256
        except (DivergedError, WorkerError) as error:
            return str(error)

    @pytest.mark.parametrize(
        ("fault", "delay"), [("_filled.wait", 0.4), ("_read.wait", 0.0), ("_read.record", 0.0)]
    )
    def test_a_missing_wait_is_found_out(self, bits, monkeypatch, fault, delay):
        outcomes = {}
        for name in ("double", "deferred"):
            with monkeypatch.context() as patch:
                backend_of(name, patch)
                expected = self.outcome(bits, delay=delay)
                made = Ring.__init__

                def without(self, *args, made=made):
                    made(self, *args)
                    events, method = fault.split(".")
                    setattr(getattr(self, events), method, lambda number: True)

                patch.setattr(Ring, "__init__", without)
                outcomes[name] = self.outcome(bits, delay=delay) == expected
        assert outcomes == {"double": True, "deferred": False}

    def test_what_was_not_handed_up_is_not_read(self, bits, late, monkeypatch):
        monkeypatch.setattr(Events, "record", lambda self, number: None)
        with pytest.raises(WorkerError, match="array 2 of a ring was read before it was handed"):
            on_device(bits, runtime="serial").run()

    def test_the_error_of_a_block_is_looked_at_behind_the_next_one(self, bits, double):
        fakecupy.log.clear()
        on_device(bits, runtime="serial", epochs=1).run()
        layer_1 = next(stream for _, stream, what in fakecupy.log if what == "gather_rows")
        looks = [
            what
            for _, stream, what in fakecupy.log
            if stream == layer_1 and what in ("download", "wait for an event", "peer copy")
        ]
        one, first = ["download", "peer copy"], looks.index("download")
        # Of 4 blocks; from the third on it waits for the reader, and behind the second for errors.
        assert looks[first : first + 5] == [*one, *one, "wait for an event"]

    def test_rings_lie_where_they_are_read(self, bits, double):
        layers = on_device(bits)._layers
        rings = [layer._above.minibatches for layer in layers[:2]]
        assert [ring.memory.device.id for ring in rings] == [1, 1]
        assert [ring.memory.shape for ring in rings] == [(4 * 30, 12), (4 * 30, 8)]


class TestBlocks:
    """Blocks of minibatches that are recorded and launched again."""

    @pytest.mark.parametrize(
        ("variant", "delay"),
        [
            ("rbm", 0.0),
            ("rbm", 0.4),
            ("gaussian", 0.4),
            ("dropout", 0.0),
            ("persistent", 0.4),
            ("denoising", 0.0),
            ("uneven", 0.0),
            ("uneven", 0.4),
        ],
    )
    def test_they_have_the_bits_of_single_launches(
        self, bits, late, monkeypatch, variant, delay, queued
    ):
        events, worked = [], []
        own = {"delay": delay, "observers": [events.append]}
        own |= {} if variant == "uneven" else {"epochs": 4}
        process = StreamedLayer.process

        def counted(self, block, stop, *run):
            worked.append(block)
            return process(self, block, stop, *run)

        monkeypatch.setattr(StreamedLayer, "process", counted)
        expected = on_device(bits, variant, **own).run().parameters_sha256
        launched = queued.count("graph")
        if delay:
            assert launched > len(worked) / 2
        elif variant != "uneven":  # all but the first block of each length
            assert launched == len(worked) - 3 * 2
        assert not [text for text in notices_of(events) if "launch by launch" in text]
        as_it_is(monkeypatch)
        found = on_device(bits, variant, **own, runtime="serial").run().parameters_sha256
        assert queued.count("graph") == launched and found == expected
        slow = [text for text in notices_of(events) if "launch by launch" in text]
        told = {text[:16] for text in slow}  # at the end of an epoch, if any is left
        wanted = {f"warning: layer {i}" for i in (1, 2, 3)}
        assert len(told) == len(slow)
        assert told == wanted or (variant == "uneven" and told < wanted)

    def test_whole_steps_are_streamed_too(self, bits, monkeypatch):
        monkeypatch.setattr(fakecupy, "CAPABILITY", "80")
        found = set()
        oracle = streamed(bits, "rbm", backend="numpy", epochs=3).run()
        for name in ("double", "deferred"):
            with monkeypatch.context() as patch:
                backend_of(name, patch)
                fakecupy.log.clear()
                stack = on_device(bits, epochs=3).run()
                assert "move_parameters" in {what for _, _, what in fakecupy.log}
                found.add(stack.parameters_sha256)
        assert len(found) == 1
        alike(stack, oracle, 1e-3)


def interrupted(bits, variant, number, monkeypatch, **options):
    """Return the state of a run that was stopped in a number of blocks, None at its end."""
    states, seen, process = [], itertools.count(1), StreamedLayer.process
    main = threading.main_thread().ident

    def processing(self, block, stop, *run):
        results = process(self, block, stop, *run)
        if next(seen) == number:
            signal.pthread_kill(main, signal.SIGINT)
        return results

    def save(state, *, done, final):
        if final:
            states.append(state())

    with monkeypatch.context() as patch:
        patch.setattr(StreamedLayer, "process", processing)
        run = on_device(bits, variant, **options)
        run.save = save
        try:
            run.run()
        except RunInterrupted as end:
            assert {type(layer.weight) for layer in end.stack.layers} == {np.ndarray}
            return states[-1]
    return None


class TestResume:
    @pytest.mark.parametrize(("device", "case"), on_devices(STOPPED), indirect=["device"])
    def test_a_run_stopped_anywhere_goes_on_to_the_same_bits(
        self, bits, device, case, monkeypatch, tmp_path
    ):
        (variant, delay), reported = case, {}

        def run(state=None, **options):
            events = []
            run = on_device(bits, variant, delay=delay, observers=[events.append], **options)
            run.resume = state
            found = run.run().parameters_sha256
            for e in events:
                if isinstance(e, EpochFinished):
                    errors = reported.setdefault((e.layer, e.epoch), [])
                    errors.append((e.train_error, e.validation_error))
            return found

        whole, path, stops = run(runtime="serial"), tmp_path / "state.safetensors", 0
        for number in itertools.count(1, 11):
            options = {"runtime": ("serial", "threads")[stops % 2], "delay": delay}
            state = interrupted(bits, variant, number, monkeypatch, **options)
            if state is None:
                break
            STREAM_STATE.write(path, state, {})
            assert run(STREAM_STATE.read(path), workers=1 + stops % 3) == whole
            stops += 1
        assert stops > 2
        assert not library_threads()
        for errors in reported.values():
            np.testing.assert_allclose(errors, [errors[0]] * len(errors), rtol=1e-12)

    @pytest.mark.parametrize("runtime", ["serial", "threads"])
    def test_states_after_epochs_go_on_there_and_with_numpy(self, bits, late, runtime):
        whole, states = saved(on_device(bits, delay=0.4, runtime=runtime, epochs=3))
        assert len(states) >= 3
        for state, done in states:
            assert state.done == done
            again = on_device(bits, delay=0.4, epochs=3)
            again.resume = state
            assert again.run().parameters_sha256 == whole.parameters_sha256
            other = streamed(bits, "rbm", delay=0.4, epochs=3, backend="numpy")
            other.resume = state
            alike(other.run(), whole)

    def test_a_state_of_numpy_goes_on_there(self, bits, late):
        run = streamed(bits, "rbm", delay=0.4, epochs=3, backend="numpy", runtime="serial")
        whole, states = saved(run)
        assert max(len(layer.ring) for state, _ in states for layer in state.layers) > 4
        for state, _ in states:
            again = on_device(bits, delay=0.4, epochs=3)
            again.resume = state
            alike(again.run(), whole)

    def test_longer_rings_are_not_made_beside_the_shorter_ones(self, bits, double, monkeypatch):
        monkeypatch.setattr(cublas, "WORKSPACE", 256)  # a stream's, which stays with it
        run = streamed(bits, "rbm", delay=0.4, epochs=3, backend="numpy", runtime="serial")
        _, states = saved(run)
        again = on_device(bits, delay=0.4, epochs=3)
        fakecupy.left.clear()
        longest = max(states, key=lambda saved: max(len(x.ring) for x in saved[0].layers))
        again.resume = longest[0]
        again.run()
        assert fakecupy.left[0] < bits.nbytes  # before the longer ones are made


class TestDivergence:
    def test_a_layer_goes_on_with_half_the_rate_to_the_same_bits(self, bits, device):
        found, told = set(), []
        options = {"visible_units": "gaussian", "learning_rate": (300.0, 0.01, 0.01), "epochs": 3}
        for runtime in ("serial", "threads"):
            events = []
            run = on_device(bits, runtime=runtime, observers=[events.append], **options)
            stack = run.run()
            assert all(np.isfinite(layer.weight).all() for layer in stack.layers)
            found.add(stack.parameters_sha256)
            told.append([text for text in notices_of(events) if "Back to the end" in text])
        assert len(found) == 1 and told[0] == told[1]
        assert told[0] and all("layer 1 diverged" in text for text in told[0])

    def test_one_that_diverges_again_and_again_fails(self, bits, device):
        with pytest.raises(DivergedError, match="layer 1 diverged in epoch"):
            on_device(bits, "gaussian", learning_rate=1e6, epochs=9).run()
        assert not library_threads()

    def test_what_is_not_finite_is_handed_up_as_0(self, bits, late, monkeypatch):
        broken = []

        def poison(learner: Learner, epoch: int, step: int) -> None:
            if learner.layer == 1 and epoch == 1 and not broken:
                broken.append(step)
                learner.weight.fill(np.nan)

        before_steps(monkeypatch, poison)
        events = []
        stack = on_device(bits, runtime="serial", epochs=3, observers=[events.append]).run()
        told = [text for text in notices_of(events) if "Back to the end" in text]
        assert len(told) == 1 and "layer 1 diverged in epoch 1: the error is nan" in told[0]
        assert all(np.isfinite(layer.weight).all() for layer in stack.layers)

    @pytest.mark.parametrize("runtime", ["serial", "threads"])
    def test_a_failure_ends_the_run_with_its_layer(self, bits, late, runtime, monkeypatch):
        def fail(learner: Learner, epoch: int, step: int) -> None:
            if learner.layer == 2:
                raise ZeroDivisionError("staged")

        before_steps(monkeypatch, fail)
        with pytest.raises(WorkerError, match=r"layer 2 failed in epoch 1: Zero.*staged") as end:
            on_device(bits, runtime=runtime).run()
        assert type(end.value.stack.layers[0].weight) is np.ndarray
        assert not library_threads()


class TestData:
    """Where the data of layer 1 are."""

    def run(self, X, **options):
        events = []
        own = STREAM | {"backend": "cupy", "observers": [events.append]} | options
        stack = pretrain(X, **own)
        slow = [text for text in notices_of(events) if "launch by launch" in text]
        assert not slow, "blocks are recorded wherever the data are"
        return stack.parameters_sha256, events

    def test_bytes(self, bits, device, monkeypatch, queued):
        expected, _ = self.run(bits)
        monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
        assert "gather_bytes" not in queued
        assert self.run(bits)[0] == expected
        assert "gather_bytes" in queued

    @pytest.mark.parametrize("shuffle", ["rows", "blocks:25"])
    @pytest.mark.parametrize("visible_bias", ["zero", "log-odds"])
    def test_a_file_stays_on_the_host(
        self, bits, device, tmp_path, shuffle, visible_bias, monkeypatch, queued
    ):
        monkeypatch.setattr(kept_rows, "BLOCK_BYTES", 40 * 16 * 4)
        np.save(tmp_path / "x.npy", bits)
        own = {"shuffle": shuffle, "visible_bias": visible_bias, "validation": bits[:50]}
        expected, _ = self.run(bits, **own)
        assert "rows of the host" not in queued
        found, events = self.run(np.load(tmp_path / "x.npy", mmap_mode="r"), **own)
        assert found == expected
        assert "rows of the host" in queued
        assert not [text for text in notices_of(events) if "no room" in text]

    def test_an_array_that_the_gpu_has_no_room_for(self, bits, device, monkeypatch):
        monkeypatch.setattr(kept_rows, "BLOCK_BYTES", 40 * 16 * 4)
        expected, _ = self.run(bits)
        settings = settings_from(**STREAM, backend="cupy").pretrain
        rows = memory.held_rows(settings, device, steps=7, held_out=0)
        beside = memory.pretraining_bytes(settings.shapes, examples=rows, batch_size=30)
        room = kept_rows.buffer_bytes(200, 16) + memory.room_bytes(settings, device, 7)
        # Of two devices the second has half of what is beside the data.
        each = (beside + room) // len(device.devices())
        leave_free(monkeypatch, each + 1)
        found, events = self.run(bits)
        assert found == expected
        assert [text for text in notices_of(events) if "no room for the data" in text]
        leave_free(monkeypatch, each - 1)
        with pytest.raises(SettingsError, match=r"^layers: .* are free on the GPU"):
            self.run(bits)

    @pytest.mark.parametrize("visible_bias", ["zero", "log-odds"])
    def test_an_iterable(self, bits, device, visible_bias):
        class Loader:
            def __iter__(self):
                for start in range(0, 200, 45):  # not those of minibatches
                    yield bits[start : start + 45]

        own = {"visible_bias": visible_bias}
        oracle = pretrain(Loader(), **STREAM, **own, backend="numpy")
        events = []
        own |= {"backend": "cupy", "observers": [events.append]}
        alike(pretrain(Loader(), **STREAM, **own), oracle)
        assert not [text for text in notices_of(events) if "launch by launch" in text]


class TestBlocking(Blocking):
    """An iterable that waits for something when the run is to stop."""

    test_a_failure_elsewhere_does_not_wait_for_it = None  # its place is beyond a ring here

    @pytest.fixture(autouse=True)
    def on_a_device(self, late):
        """Take CuPy, or the stand-in."""

    def run(self, source, **options):
        return super().run(source, **{"backend": "cupy", **options})


class TestMemory:
    @pytest.mark.parametrize("batch_size", [7, 30, 200])
    def test_the_estimate_counts_the_rings(self, bits, prompt, batch_size):
        run = on_device(bits, batch_size=batch_size)
        steps = -(-200 // batch_size)
        rows = memory.held_rows(run.settings, prompt, steps=steps, held_out=50)
        counted = 4 * memory.VERSIONS * rows * sum(LAYERS[1:-1])
        held = [layer._staged for layer in run._layers[:2]]
        for layer in run._layers[:2]:
            held += [ring.memory for ring in layer._above]
        assert sum(array.nbytes for array in held) <= counted

    def test_a_dry_run_counts_them_and_where_the_data_stay(
        self, bits, double, call, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        np.savez("x.npz", X=bits)
        own = ("--data", "x.npz", "--layers", "16,12,8", "--batch-size", 20, "--validation", 0.25)
        own += ("--handoff", "minibatch", "--dry-run", "--json", "--backend", "cupy")
        found = json.loads(call("train", *own)[0])["gpu_bytes"]
        assert found["data"] == bits.nbytes and not found["data_on_host"]
        rings = 4 * 20 * 12 * 4 + (4 // 8 + 2) * 50 * 12 * 4
        shapes = settings_from((16, 12, 8)).pretrain.shapes
        without = memory.pretraining_bytes(shapes, examples=0, batch_size=20)
        assert found["run"] - without >= rings + 2 * 20 * 12 * 4
        monkeypatch.setattr(fakecupy, "MEMORY", (found["run"] + 6_000) // 2)
        monkeypatch.setattr(kept_rows, "BLOCK_BYTES", 3 * 16 * 4)
        found = json.loads(call("train", *own)[0])["gpu_bytes"]
        room = 2 * 20 * 16 * 4
        assert found["data_on_host"] and found["data"] == 2 * 3 * 16 * 4 + room + 50 * 16 * 4

    def test_rings_of_large_minibatches_are_shorter(self, prompt, monkeypatch):
        monkeypatch.setattr(cupy_backend, "STEPS_AT_ONCE", 50)
        backend = CupyBackend(prompt.xp)
        small = settings_from((784, 1000, 500), handoff="minibatch").pretrain
        assert memory.stream_size(small, backend, 500) == (50, 25, 500)
        assert memory.stream_size(small, backend, 9) == (8, 4, 9)
        assert memory.stream_size(small, backend, 1) == (2, 1, 1)
        large = settings_from((784, 20_000, 500), handoff="minibatch", batch_size=1000).pretrain
        assert memory.stream_size(large, backend, 500) == (2, 1, 500)
