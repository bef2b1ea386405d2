"""Examples on a device as bytes, and those left on the host: the bits of float32 rows there."""

from itertools import product

import fakecupy
import numpy as np
import pytest
from backends import backend_of, leave_free, on_devices
from devicearrays import framed, unframed
from trialruns import notices_of, stopped_after

from syncpretrain import finetune, pretrain
from syncpretrain.backends import rows as kept_rows
from syncpretrain.backends.cupy_backend import CupyBackend
from syncpretrain.backends.rows import DeviceRows, HostRows, buffer_bytes
from syncpretrain.data import blocks
from syncpretrain.data.blocks import blocks_of, bytes_of
from syncpretrain.data.scaling import column_means
from syncpretrain.errors import SettingsError
from syncpretrain.finetuning.trainer import RESERVED_BYTES
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.pretraining.memory import pretraining_bytes
from syncpretrain.settings import settings_from

LAYERS = (16, 12, 8)
BASE = {"layers": LAYERS, "batch_size": 15, "epochs": 2}
IMAGES = {"layers": "1x4x4,conv:3x2,pool:1,conv:2x2,5", "batch_size": 20, "epochs": 2}
KINDS = {
    "rbm": {},
    "log-odds": {"visible_bias": "log-odds"},
    "denoising": {"model": "denoising", "refresh_epochs": 0},
    "untied": {"model": "autoencoder", "tied": False, "schedule": "greedy"},
    "convolution": IMAGES | {"visible_bias": "log-odds"},
    "early stopping": {"epochs": 3, "early_stopping": "free-energy-gap", "patience": 1},
    "drift": {"epochs": "auto:3", "settle": 0.2, "momentum": "0.5"},
}
TUNING = {
    "reconstruction": {},
    "dropout": {"dropout": 0.3, "input_dropout": 0.1},
    "patience": {"patience": 1, "epochs": 4},
}
TUNED = [  # layers, how they are tuned, classes: every second
    (layers, tuning, 3 * (i % 2))
    for i, (layers, tuning) in enumerate(product((LAYERS, IMAGES["layers"]), TUNING))
]

pytestmark = pytest.mark.usefixtures("unexamined")


@pytest.fixture
def runtime(device, request) -> str:
    """Turns on the stand-in that works at once, else threads."""
    return "serial" if request.node.callspec.params["device"] == "double" else "threads"


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """200 examples of 16 bytes, each about one of 4 prototypes."""
    rng = np.random.default_rng(3)
    prototypes = rng.integers(256, size=(4, 16))
    noise = rng.integers(-30, 31, size=(200, 16))
    numbers = np.clip(prototypes[rng.integers(4, size=200)] + noise, 0, 255)
    return numbers.astype(np.uint8) / np.float32(255)


@pytest.fixture(scope="module")
def numbers() -> np.ndarray:
    return np.random.default_rng(4).random((200, 16), dtype=np.float32)


@pytest.fixture
def as_bytes(monkeypatch):
    """Keep small data as bytes too."""
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 40 rows of 16 columns."""
    monkeypatch.setattr(kept_rows, "BLOCK_BYTES", 40 * 16 * 4)


def same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


def all_bytes() -> np.ndarray:
    """Return every byte twice, divided by 255, in rows of 32."""
    return np.tile(np.arange(256, dtype=np.uint8), 2).reshape(-1, 32) / np.float32(255)


class TestByteRows:
    """Rows on the device that are bytes there."""

    def test_they_are_like_an_array_in_a_quarter_of_the_memory(self, backend, as_bytes):
        X = all_bytes()
        kept, array = backend.examples(X), backend.asarray(X)
        assert isinstance(kept, DeviceRows)
        assert (len(kept), kept.shape, kept.dtype) == (len(X), X.shape, X.dtype)
        assert bytes_of(kept) == kept.nbytes == X.nbytes // 4 == bytes_of(array) // 4
        for part in (slice(None), slice(3, 9), slice(0, 0), slice(10, 99), slice(-2, None)):
            same_bits(backend.tohost(kept[part]), X[part])
            assert len(kept.run(part)) == len(X[part])
        for actual, expected in zip(blocks_of(kept), blocks_of(array), strict=True):
            same_bits(backend.tohost(actual), backend.tohost(expected))
        means = [backend.tohost(column_means(rows)) for rows in (kept, array)]
        np.testing.assert_array_equal(*means)

    def test_rows_are_gathered_into_a_part_of_an_array(self, backend, as_bytes, monkeypatch):
        monkeypatch.setattr("syncpretrain.backends.cuda_source.MOST_BLOCKS", 1)
        X = np.tile(all_bytes(), (2, 1))
        out, frame = framed(backend, X[:29])
        rows = np.array([31, 0, 99, -5, *range(25)])  # clipped, as NumPy does
        for given in (rows, backend.asarray(rows)):
            out[...] = 7
            backend.gather(backend.examples(X), given, out=out)
            same_bits(unframed(backend, frame), X[np.clip(rows, 0, 31)])

    def test_what_the_kernel_does_not_take_is_refused(self, backend, as_bytes):
        kept = backend.examples(all_bytes())
        for rows, out in (
            (np.zeros(2, np.int32), backend.empty((2, 32))),
            (np.zeros(2, np.int64), backend.empty((2, 31))),
            (np.zeros(2, np.int64), backend.empty((2, 32), np.float64)),
        ):
            with pytest.raises(TypeError, match="expected int64 of float32"):
                backend.gather(kept, rows, out=out)
        with pytest.raises(TypeError, match="expected contiguous rows"):
            kept[::2]

    def test_another_device_divides_what_it_got_as_bytes(self, stand_in, as_bytes):
        X, other = all_bytes(), stand_in.for_layer(2)
        kept = stand_in.examples(X)
        stand_in.synchronize()
        stream = other.stream()
        with stream:
            fakecupy.log.clear()
            run = other.asarray(kept.run(slice(3, 9)))
            assert run.device.id == 1
            assert [entry[::2] for entry in fakecupy.log] == [(1, "copy"), (1, "values_of_bytes")]
            same_bits(other.tohost(run), X[3:9])

    def test_another_device_gets_a_version_in_one_copy(self, stand_in, as_bytes, monkeypatch):
        X, other = all_bytes(), stand_in.for_layer(2)
        kinds = {"bytes": stand_in.examples(X), "floats": stand_in.asarray(X)}
        stand_in.synchronize()
        with other.stream() as stream:
            for name, kept in kinds.items():
                fakecupy.log.clear()
                brought = other.to_device_if_fits(kept)
                assert [entry[::2] for entry in fakecupy.log] == [(1, "copy")]
                assert type(brought) is type(kept)
                assert other.to_device_if_fits(brought) is brought
                same_bits(other.tohost(brought[:]), X)
                assert stand_in.to_device_if_fits(kept) is kept and other.to_device_if_fits(X) is X
                monkeypatch.setattr(fakecupy, "MEMORY", X.nbytes // 4 - 1)
                assert other.to_device_if_fits(kept) is kept, f"{name}: without room"
                monkeypatch.setattr(fakecupy, "MEMORY", 1 << 30)
            stream.synchronize()

    @pytest.mark.parametrize("odd", [0.1, -0.0, np.nan])
    def test_other_values_stay_float32(self, backend, as_bytes, odd):
        X = all_bytes()
        X[-1, -1] = odd
        kept = backend.examples(X)
        assert isinstance(kept, backend.array_type)
        same_bits(backend.tohost(kept), X)

    def test_small_arrays_stay_float32(self, backend):
        assert isinstance(backend.examples(all_bytes()), backend.array_type)

    def test_numpy_keeps_what_it_is_given(self, as_bytes):
        backend, X = backend_of("numpy", None), all_bytes()
        assert backend.examples(X) is X


class TestTrainingOnBytes:
    def test_standardized_examples_are_no_bytes(self, device, images, as_bytes, queued):
        own = {"model": "autoencoder", "visible_units": "gaussian"}  # without fused steps
        pretrain(images, **BASE, **own, backend="cupy")
        assert {"gather_bytes", "gather_rows"} & {*queued} == {"gather_rows"}

    @pytest.mark.parametrize(("device", "case"), on_devices(TUNED), indirect=["device"])
    def test_fine_tuning_comes_to_the_same_bits(self, device, images, case, monkeypatch, queued):
        layers, tuning, classes = case
        stack = pretrain(images, layers=layers, epochs=1, batch_size=20, backend="numpy")
        settings = {"epochs": 2, "batch_size": 15, "validation": images[:50]} | TUNING[tuning]
        y = np.arange(200) % 3 if classes else None
        if classes:
            settings["validation_y"] = y[:50]
        expected = finetune(stack, images, y, **settings, backend="cupy").parameters_sha256
        assert "gather_bytes" not in queued
        monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
        actual = finetune(stack, images, y, **settings, backend="cupy").parameters_sha256
        assert "gather_bytes" in queued
        assert actual == expected

    def test_a_stopped_run_computes_its_activations_again(self, device, images, as_bytes, queued):
        settings = settings_from((16, 12, 8, 5), epochs=3, batch_size=25, backend="cupy").pretrain
        whole = Pretraining(settings, images).run()
        state, _ = stopped_after(30, settings, images)
        queued.clear()
        resumed = Pretraining(settings, images, resume=state).run()
        assert resumed.parameters_sha256 == whole.parameters_sha256
        assert "values_of_bytes" in queued

    def test_a_quarter_is_uploaded(self, stand_in, images, as_bytes):
        fakecupy.uploads.clear()
        pretrain(images, **BASE, backend="cupy")
        assert fakecupy.uploads.count(images.size) == 1
        assert images.nbytes not in fakecupy.uploads
        stack = pretrain(images, **BASE, backend="numpy")
        fakecupy.uploads.clear()
        finetune(stack, images, epochs=1, batch_size=20, backend="cupy")
        assert fakecupy.uploads.count(images.size) == 1
        assert images.nbytes not in fakecupy.uploads


def gathered(backend, kept, X, rows, batch: int = 15) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows in an order, minibatch by minibatch, and those of the host."""
    stream = backend.stream()
    with stream:
        order, out = backend.order(kept, rows), backend.empty((len(rows), X.shape[1]))
        for start in range(0, len(rows), batch):
            own = order[start : start + batch]
            backend.gather(kept, own, out=out[start : start + len(own)])
        stream.synchronize()
        return backend.tohost(out), X[rows]


class TestHostRows:
    """Rows that the device has no room for."""

    @pytest.mark.parametrize("batch", [15, 40, 90])
    def test_they_come_in_their_order(self, backend, numbers, small_blocks, batch):
        kept, draws = HostRows(numbers, backend), np.random.default_rng(0)
        assert (len(kept), kept.shape, kept.dtype) == (200, (200, 16), np.float32)
        assert kept.nbytes == buffer_bytes(200, 16) == 2 * 40 * 16 * 4
        for _ in range(3):
            same_bits(*gathered(backend, kept, numbers, draws.permutation(200), batch))

    def test_a_part_of_an_order_may_be_left_out(self, backend, numbers, small_blocks):
        kept, stream = HostRows(numbers, backend), backend.stream()
        rows = np.random.default_rng(0).permutation(200)
        out = backend.empty((20, 16))
        with stream:  # a slice of a slice is one of the order
            first, second = backend.order(kept, rows), backend.order(kept, rows[::-1].copy())
            for order, start in ((first, 60), (second, 0), (first, 180), (first, 0)):
                backend.gather(kept, order[start:][:20], out=out)
                same_bits(backend.tohost(out), numbers[order.numbers[start : start + 20]])

    def test_other_rows_and_runs_of_them(self, backend, numbers, small_blocks):
        kept, out = HostRows(numbers, backend), backend.empty((3, 16))
        rows = np.array([199, 0, 7])
        for given in (rows, backend.asarray(rows)):
            same_bits(backend.tohost(backend.gather(kept, given, out=out)), numbers[rows])
        same_bits(backend.tohost(kept[20:30]), numbers[20:30])
        same_bits(backend.tohost(backend.asarray(kept.run(slice(5, 9)))), numbers[5:9])
        means = [column_means(rows) for rows in (kept, backend.asarray(numbers))]
        np.testing.assert_array_equal(*map(backend.tohost, means))

    def test_targets_on_the_device_are_gathered_by_the_same_order(self, backend, numbers):
        kept, targets = HostRows(numbers, backend), backend.asarray(numbers[:, :4].copy())
        order = backend.order(kept, np.arange(200)[::-1].copy())
        out = backend.gather(targets, order[10:20], out=backend.empty((10, 4)))
        same_bits(backend.tohost(out), numbers[189:179:-1, :4])

    @pytest.mark.parametrize(
        "fault", ["copied.synchronize", "copied.hold_back", "used.hold_back", "used.record"]
    )
    def test_a_missing_wait_is_found_out(self, monkeypatch, numbers, small_blocks, fault):
        backend = backend_of("deferred", monkeypatch)
        kept, rows = HostRows(numbers, backend), np.random.default_rng(0).permutation(200)
        same_bits(*gathered(backend, kept, numbers, rows))
        event, name = fault.split(".")
        for buffer in kept._buffers:
            monkeypatch.setattr(getattr(buffer, event), name, lambda: None)
        actual, expected = gathered(backend, kept, numbers, rows)
        assert not np.array_equal(actual, expected)

    def test_the_next_block_is_copied_on_another_stream_before_the_last_is_read(
        self, monkeypatch, numbers, small_blocks
    ):
        backend = backend_of("deferred", monkeypatch)
        kept, own = HostRows(numbers, backend), backend.stream()
        fakecupy.log.clear()
        with own:
            order = backend.order(kept, np.arange(200))
            for start, copies in ((0, 2), (20, 2), (40, 3), (60, 3), (80, 4), (160, 5)):
                backend.gather(kept, order[start : start + 20], out=backend.empty((20, 16)))
                uploads = [stream for _, stream, what in fakecupy.log if what == "upload"]
                assert len(uploads) == copies
            assert own._stream.name not in uploads


def pretraining_memory(settings, rows: int) -> int:
    own = settings_from(**settings).pretrain
    return pretraining_bytes(own.shapes, examples=rows, batch_size=own.batch_size)


class TestRoom:
    """Where the data stay, by the memory that is free."""

    @pytest.mark.parametrize("place", ["bytes", "the host"])
    @pytest.mark.parametrize(("device", "kind"), on_devices(KINDS), indirect=["device"])
    def test_pretraining_comes_to_the_same_bits_wherever_its_data_are(
        self, device, images, small_blocks, kind, place, runtime, monkeypatch, queued
    ):
        settings = BASE | {"backend": "cupy:0", "runtime": runtime} | KINDS[kind]
        own, events = settings | {"validation": images[:50]}, []
        expected = pretrain(images, **own).parameters_sha256
        assert not {"gather_bytes", "rows of the host"} & {*queued}
        if place == "bytes":
            monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
            own["backend"] = "cupy"
        else:
            room = buffer_bytes(250, 16)
            leave_free(monkeypatch, pretraining_memory(settings, 250) + room)
        stack = pretrain(images, **own, observers=[events.append])
        assert stack.parameters_sha256 == expected
        assert ("gather_bytes" in queued) == (place == "bytes")
        assert ("rows of the host" in queued) == (place == "the host")
        told = [text for text in notices_of(events) if "no room for the data" in text]
        assert bool(told) == (place == "the host")

    def test_what_does_not_fit_is_refused_with_what_it_needs(
        self, device, images, numbers, small_blocks, as_bytes, monkeypatch, queued
    ):
        settings = BASE | {"backend": "cupy:0"}
        beside = pretraining_memory(settings, 200)
        for X, least in ((images, images.size), (numbers, buffer_bytes(200, 16))):
            leave_free(monkeypatch, beside + least - 1)
            with pytest.raises(SettingsError, match=r"^layers: .* are free on the GPU"):
                pretrain(X, **settings)
            leave_free(monkeypatch, beside + least)
            queued.clear()
            pretrain(X, **settings)
            where = "gather_bytes" if X is images else "rows of the host"
            assert {"gather_bytes", "rows of the host"} & {*queued} == {where}

    def test_rows_leave_room_for_the_parameters_that_a_trainer_keeps(
        self, stand_in, numbers, monkeypatch
    ):
        besides, examples = [], CupyBackend.examples

        def noted(self, X, beside=0):
            besides.append(beside)
            return examples(self, X, beside)

        monkeypatch.setattr(CupyBackend, "examples", noted)
        stack = pretrain(numbers, **BASE, backend="numpy")
        own = {"epochs": 2, "batch_size": 15, "patience": 1, "validation": numbers[:50]}
        tuned = finetune(stack, numbers, **own, backend="cupy")
        sizes = [x.size for layer in tuned.layers for _, x in layer.parameters()]
        good_best_and_checkpoint = 3 * 4 * sum(sizes)
        assert len(besides) == 2, "of the rows to train on and to validate with"
        assert min(besides) >= good_best_and_checkpoint + RESERVED_BYTES

    @pytest.mark.parametrize(
        ("device", "case"), on_devices([(0, False), (3, True)]), indirect=["device"]
    )
    def test_fine_tuning_with_its_data_on_the_host_comes_to_the_same_bits(
        self, device, numbers, small_blocks, case, monkeypatch, tmp_path, queued
    ):
        classes, is_file = case
        stack = pretrain(numbers, **BASE, backend="numpy")
        y = np.arange(200) % 3 if classes else None
        weights = np.linspace(0.5, 1.5, 200) if classes else None
        settings = {"epochs": 2, "batch_size": 15, "backend": "cupy:0", "weights": weights}
        expected = finetune(stack, numbers, y, **settings).parameters_sha256
        assert "rows of the host" not in queued
        np.save(tmp_path / "x.npy", numbers)
        X = np.load(tmp_path / "x.npy", mmap_mode="r") if is_file else numbers
        leave_free(monkeypatch, 1 << 24)  # less than is reserved
        assert finetune(stack, X, y, **settings).parameters_sha256 == expected
        assert "rows of the host" in queued

    def test_a_second_device_has_a_part_of_the_rest(self, stand_in, numbers, monkeypatch):
        monkeypatch.setattr(fakecupy, "MEMORY", numbers.nbytes + 1_000)
        for beside, on_host in ((2_000, False), (2_002, True)):  # of two devices
            assert isinstance(stand_in.examples(numbers, beside=beside), HostRows) == on_host
