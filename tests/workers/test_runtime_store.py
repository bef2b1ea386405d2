import gc
import threading
import weakref

import numpy as np
import pytest
from trialruns import never

from syncpretrain import pretrain
from syncpretrain.errors import ScheduleError
from syncpretrain.models.layer import DenseLayer
from syncpretrain.workers.activations import CHUNK_ROWS, CHUNKS_AT_ONCE, Split
from syncpretrain.workers.versions import Versions

WIDTHS = (6, 5, 4, 3)


def snapshot(layer, seed):
    rng = np.random.default_rng([layer, seed])
    visible, hidden = WIDTHS[layer - 1 : layer + 1]
    shapes = ((visible, hidden), (hidden,), (visible,))
    return DenseLayer(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return Split(*(rng.random((n, WIDTHS[0])).astype(np.float32) for n in (30, 7)))


@pytest.fixture
def versions(data):
    return Versions(data, WIDTHS[1:])


def test_version_0_of_the_layer_below_all_is_the_data(versions, data):
    found = versions.activations(0, 0, 0, never)
    assert found.train is data.train and found.validation is data.validation


def test_never_more_than_three_buffers_and_freed_ones_are_used_again(versions):
    for version in (1, 2, 3):
        versions.publish(1, version, snapshot(1, version))
    made = [versions.activations(1, version, 0, never) for version in (1, 2, 3)]
    versions.publish(1, 4, snapshot(1, 4))
    with pytest.raises(ScheduleError, match="layer 1 needs more than 3 buffers"):
        versions.activations(1, 4, 0, never)
    versions.release(1, 2)
    again = versions.activations(1, 4, 0, never)
    assert again.train is made[1].train, "the array of the forgotten version"


def test_reading_what_was_freed_or_never_published_is_an_error(versions):
    versions.publish(1, 1, snapshot(1, 1))
    versions.publish(1, 2, snapshot(1, 2))
    versions.release(1, 1)
    with pytest.raises(ScheduleError, match=r"version 1 of layer 1 was .* only \[2\] are held"):
        versions.activations(1, 1, 0, never)
    with pytest.raises(ScheduleError, match=r"version 3 of layer 1"):
        versions.activations(1, 3, 0, never)
    with pytest.raises(ScheduleError, match=r"version 1 of layer 1"):
        versions.release(1, 1)


def test_a_source_that_was_not_made_is_an_error(versions):
    versions.publish(1, 1, snapshot(1, 1))
    versions.publish(2, 1, snapshot(2, 1))
    with pytest.raises(ScheduleError, match="version 1 of layer 1 was read before it was computed"):
        versions.activations(2, 1, 1, never)


def test_a_version_that_nobody_reads_costs_no_array(versions):
    for version in range(1, 10):
        versions.publish(1, version, snapshot(1, version))
    assert versions._allocated == [0, 0, 0, 0]


def test_a_stop_leaves_the_version_unmade():
    rows = 3 * CHUNK_ROWS * CHUNKS_AT_ONCE
    train, validation = (np.ones((n, WIDTHS[0]), np.float32) for n in (rows, 7))
    versions = Versions(Split(train, validation), WIDTHS[1:])
    versions.publish(1, 1, snapshot(1, 1))
    asked = iter([False, False, True])
    assert versions.activations(1, 1, 0, lambda: next(asked)) is None
    assert versions.computed() == []
    assert versions.activations(1, 1, 0, never) is not None
    assert versions._allocated[1] == 1, "the array that it was given at first"


def test_no_computation_under_the_lock(versions):
    held = []

    class Probing(DenseLayer):
        def up(self, X, *, out=None):
            held.append(versions._lock.locked())
            return super().up(X, out=out)

    s = snapshot(1, 1)
    versions.publish(1, 1, Probing(s.weight, s.hidden_bias, s.visible_bias))
    assert versions.activations(1, 1, 0, never) is versions.activations(1, 1, 0, never)
    assert held == [False, False], "once for each split"


@pytest.mark.parametrize("pace", ["lockstep", "free"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_run_holds_at_most_three_activations_and_five_snapshots(bits, monkeypatch, pace, workers):
    most = {"allocated": 0, "held": 0}
    lock = threading.Lock()
    publish = Versions.publish

    def watched(self, layer, version, snapshot):
        publish(self, layer, version, snapshot)
        with lock:
            most["allocated"] = max(most["allocated"], *self._allocated)
            most["held"] = max(most["held"], *map(len, self._held))

    monkeypatch.setattr(Versions, "publish", watched)
    own = {"layers": (16, 12, 8, 4), "epochs": (6, 3, 5), "refresh_epochs": (0, 1, 2)}
    pretrain(bits, batch_size=20, pace=pace, workers=workers, **own)
    assert 1 <= most["allocated"] <= 3
    assert 1 <= most["held"] <= 5


def test_a_run_leaves_no_arrays_behind(bits, monkeypatch):
    made = []
    original = Versions.__init__

    def watched(self, *args, **named):
        original(self, *args, **named)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Versions, "__init__", watched)
    pretrain(bits, layers=(16, 8, 4), epochs=2, batch_size=20)
    gc.collect()
    assert len(made) == 1
    assert made[0]() is None
