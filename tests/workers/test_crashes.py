"""Ways to fail x layers x runtimes: one clear error, the layers' last good state, nothing left."""

import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from disturbedsteps import before_steps
from stackcomparisons import sound
from trialruns import pretrain_within

from syncpretrain import pretrain
from syncpretrain.errors import RunInterrupted, StalledError, WorkerError
from syncpretrain.events import Progress
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.pretraining import driver
from syncpretrain.pretraining import training as watch
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.settings import settings_from
from syncpretrain.workers import threads

LAYERS = (16, 12, 8, 5)
WAIT = 20.0
WANTED = {"layers": LAYERS, "epochs": 3, "batch_size": 20, "workers": 2}
SHORT = WANTED | {"layers": (16, 12), "epochs": 1}


def run(bits, **settings):
    return pretrain(bits, **(WANTED | settings))


@pytest.fixture
def closing(monkeypatch):
    """Set as soon as the driver has been told of a failure."""
    told, original = threading.Event(), threads.ThreadsRuntime._close

    def close(self):
        told.set()
        return original(self)

    monkeypatch.setattr(threads.ThreadsRuntime, "_close", close)
    return told


@pytest.fixture
def ticks():
    """An observer of the driver's ticks, and what waits for one more of them."""
    reported = threading.Semaphore(0)

    def observe(event):
        if isinstance(event, Progress):
            reported.release()

    def wait():
        assert reported.acquire(timeout=WAIT)

    return SimpleNamespace(observe=observe, wait=wait)


@pytest.mark.parametrize("runtime", ["serial", "threads"])
def test_a_keyboard_interrupt_stays_one(bits, monkeypatch, runtime):
    """A second Ctrl-C, which is no longer a request: at once, without a stack."""

    def interrupt(rbm, epoch, step):
        if (rbm.layer, epoch) == (2, 1):
            raise KeyboardInterrupt

    before_steps(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(bits, runtime=runtime)


def test_the_first_of_two_failures_wins(bits, monkeypatch, closing):

    def fail(rbm, epoch, step):
        if (rbm.layer, epoch) == (1, 2):
            raise ValueError("the first")
        if rbm.layer == 2:
            assert closing.wait(WAIT)
            raise ValueError("the second")

    before_steps(monkeypatch, fail)
    with pytest.raises(WorkerError, match="layer 1 failed in epoch 2: ValueError: the first"):
        run(bits)


def test_a_layer_stopped_on_the_brink_of_divergence_is_taken_back_too(bits, monkeypatch, closing):
    """Layer 1 holds parameters that are not finite when the failure of layer 2 stops it."""
    broken = threading.Event()

    def fail(rbm, epoch, step):
        if (rbm.layer, epoch) == (2, 1):
            assert broken.wait(WAIT)
            raise RuntimeError
        if (rbm.layer, epoch, step) != (1, 2, 1):
            return None
        rbm.weight[0, 0] = np.inf
        broken.set()
        assert closing.wait(WAIT)
        return 0.0

    before_steps(monkeypatch, fail)
    with pytest.raises(WorkerError, match="layer 2 failed in epoch 1") as caught:
        run(bits)
    sound(caught.value.stack, LAYERS)


def test_a_stop_in_the_middle_of_an_epoch_keeps_the_minibatches_so_far(bits, monkeypatch):
    def interrupt(rbm, epoch, step):
        if (epoch, step) == (2, 4):
            signal.raise_signal(signal.SIGINT)

    one_epoch = run(bits, layers=(16, 12), epochs=1)
    two_epochs = run(bits, layers=(16, 12), epochs=2)
    before_steps(monkeypatch, interrupt)
    with pytest.raises(RunInterrupted, match="epochs finished: layer 1: 1") as caught:
        run(bits, layers=(16, 12), epochs=2, runtime="serial")
    sums = {x.parameters_sha256 for x in (caught.value.stack, one_epoch, two_epochs)}
    assert len(sums) == 3


def test_a_stall_is_told_and_does_not_hold_up_the_caller(bits, monkeypatch, capfd):
    release, stuck = threading.Event(), []

    def block(rbm, epoch, step):
        if (rbm.layer, epoch, step) == (1, 1, 2):
            stuck.append(threading.current_thread())
            release.wait(WAIT)

    before_steps(monkeypatch, block)
    try:
        with pytest.raises(StalledError, match=r"no minibatch .* for 0\.2 s, by layer 1$") as end:
            pretrain_within(Timeouts(stall=0.2, tick=0.02, join=0.05), bits, **WANTED)
        sound(end.value.stack, LAYERS)
        assert "in block" in capfd.readouterr().err, "where the stuck thread stands"
    finally:
        release.set()
        for thread in stuck:
            thread.join(WAIT)


def test_a_worker_that_waits_for_ever_for_another_one_is_a_stall(bits, monkeypatch, capfd):
    """Of a layer that two share; the driver's own watch is off."""
    monkeypatch.setattr(WorkerPool, "_wake", lambda self, rank: None)
    monkeypatch.setattr(driver, "Watch", lambda *args: SimpleNamespace(tick=lambda *args: None))
    shared = {"shards": 2, "replicas": 2, "workers": 2}
    settings = settings_from((16, 12), batch_size=20, epochs=1, **shared).pretrain
    with pytest.raises(StalledError, match=r"^layer 1 failed in epoch 1: .* waited 0\.25 s for"):
        Pretraining(settings, bits, times=Timeouts(stall=0.25)).run()
    assert "in serve" in capfd.readouterr().err, "where the threads stand"


def test_a_slow_layer_is_no_stall(bits, monkeypatch, ticks):
    """Each minibatch waits for two ticks of the driver, longer in all than a stall would be."""

    def slow(rbm, epoch, step):
        ticks.wait()
        ticks.wait()

    before_steps(monkeypatch, slow)
    pretrain_within(Timeouts(stall=0.15, tick=0.01), bits, **SHORT, observers=[ticks.observe])


def test_a_suspended_process_is_no_stall(bits, monkeypatch, ticks):
    """The clock jumps by an hour, as after a suspension, while a minibatch is under way."""
    jumped = threading.Event()
    real = time.monotonic
    clock = SimpleNamespace(monotonic=lambda: real() + 3600 * jumped.is_set())
    monkeypatch.setattr(watch, "time", clock)

    def suspend(rbm, epoch, step):
        for _ in range(3):  # ticks without a minibatch, the clock's jump among them
            ticks.wait()
            jumped.set()

    before_steps(monkeypatch, suspend)
    pretrain_within(Timeouts(tick=0.01), bits, **SHORT, observers=[ticks.observe])
