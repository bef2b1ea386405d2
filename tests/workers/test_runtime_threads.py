import threading
import time
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
from trialruns import library_threads, never

from syncpretrain.errors import StalledError
from syncpretrain.events import EpochFinished
from syncpretrain.learners.epoch import Stopped
from syncpretrain.models.layer import DenseLayer
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.schedule.schedule import Train
from syncpretrain.workers.epochs import Failed, Finished
from syncpretrain.workers.threads import SerialRuntime, ThreadsRuntime

WAIT = 20.0
Work = Callable[[Callable[[], bool]], None]


class Staged:
    """A worker that does what a test says, and tells it in which thread."""

    def __init__(self, work=lambda stop: None):
        self.work = work
        self.progress = np.ones(1)
        self.thread = None
        self.began = threading.Event()

    def execute(self, command, stop):
        self.thread = threading.current_thread()
        self.began.set()
        try:
            self.work(stop)
        except BaseException as error:
            return Failed(command, error)
        event = EpochFinished(0.0, command.layer, command.epoch, command.reads, 0.0, 0.0, 0.0, None)
        return Finished(command=command, event=event, layer=NOTHING)

    def close(self):
        return []


NOTHING = DenseLayer(*(np.zeros(shape, np.float32) for shape in ((1, 1), (1,), (1,))))


def command(layer):
    return Train(layer=layer, epoch=1, reads=0, below_reads=0)


def test_one_named_thread_a_layer_gone_at_the_end():
    workers = [Staged(), Staged(), Staged()]
    names = ["syncpretrain-layer-1", "syncpretrain-layer-2", "syncpretrain-layer-3"]
    with ThreadsRuntime(workers, never) as runtime:
        assert library_threads() == names
        for layer in (3, 1, 2):
            runtime.submit(command(layer))
            assert runtime.wait(WAIT).command == command(layer)
    assert [worker.thread.name for worker in workers] == names
    assert library_threads() == []


def test_layers_train_at_the_same_time():
    barrier = threading.Barrier(3)
    workers = [Staged(lambda stop: barrier.wait(WAIT)) for _ in range(3)]
    with ThreadsRuntime(workers, never) as runtime:
        for layer in (1, 2, 3):
            runtime.submit(command(layer))
        assert all(isinstance(runtime.wait(WAIT), Finished) for _ in range(3))


def test_a_sleeping_layer_uses_no_cpu():
    def work(stop):
        until = time.thread_time() + 0.25
        while time.thread_time() < until:
            sum(range(1000))

    busy, asleep = Staged(work), Staged()
    with ThreadsRuntime([busy, asleep], never) as runtime:
        for layer in (2, 1):  # each has worked once, and the second goes on
            runtime.submit(command(layer))
            assert isinstance(runtime.wait(WAIT), Finished)
        clocks = [time.pthread_getcpuclockid(w.thread.ident) for w in (busy, asleep)]
        before = [time.clock_gettime(clock) for clock in clocks]
        runtime.submit(command(1))
        assert isinstance(runtime.wait(WAIT), Finished)
        after = [time.clock_gettime(clock) for clock in clocks]
    used = [b - a for a, b in zip(before, after, strict=True)]
    assert used[0] >= 0.24
    assert used[1] < 0.004, f"the sleeping thread used {used[1] * 1000:.2f} ms"


def test_a_wait_without_a_message_ends_at_its_deadline():
    with ThreadsRuntime([Staged()], never) as runtime:
        assert runtime.wait(0.01) is None


def wait_for_stop(stop):
    deadline = time.monotonic() + WAIT
    while not stop():
        assert time.monotonic() < deadline
    raise Stopped


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_leaving_stops_and_joins_who_still_trains(error):
    workers = [Staged(wait_for_stop), Staged(wait_for_stop), Staged()]
    with pytest.raises(error) if error else nullcontext(), ThreadsRuntime(workers, never) as own:
        own.submit(command(1))
        own.submit(command(2))
        assert all(worker.began.wait(WAIT) for worker in workers[:2])
        if error is not None:
            raise error
    assert library_threads() == []


def test_a_request_to_stop_reaches_every_thread():
    request = threading.Event()
    with ThreadsRuntime([Staged(wait_for_stop), Staged(wait_for_stop)], request.is_set) as runtime:
        runtime.submit(command(1))
        runtime.submit(command(2))
        request.set()
        messages = [runtime.wait(WAIT), runtime.wait(WAIT)]
        assert all(isinstance(message.error, Stopped) for message in messages)


@pytest.mark.parametrize("failed", [False, True])
def test_a_thread_that_does_not_end_is_told_and_does_not_hold_up_the_caller(failed):
    times = Timeouts(join=0.05)
    release = threading.Event()
    stuck = Staged(lambda stop: release.wait(WAIT))
    expected = KeyError if failed else StalledError  # the first failure wins
    try:
        with pytest.raises(expected) as caught, ThreadsRuntime([stuck], never, times) as runtime:
            runtime.submit(command(1))
            assert stuck.began.wait(WAIT)
            if failed:
                raise KeyError
        if not failed:
            assert "syncpretrain-layer-1 did not end within 0.05 s" in str(caught.value)
    finally:
        release.set()
        stuck.thread.join(WAIT)


def test_threads_that_started_end_when_another_cannot_start(monkeypatch):
    original = threading.Thread.start

    def start(thread):
        if thread.name == "syncpretrain-layer-3":
            raise RuntimeError("can't start new thread")
        original(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    runtime = ThreadsRuntime([Staged() for _ in range(4)], never)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        runtime.__enter__()
    assert library_threads() == []


def test_a_thread_ends_when_its_caller_is_gone():
    runtime = ThreadsRuntime([Staged()], never, Timeouts(sleep=0.01))
    caller = threading.Thread(target=runtime.__enter__)
    caller.start()
    caller.join(WAIT)
    runtime.threads.links[0].thread.join(WAIT)
    assert library_threads() == []


@pytest.mark.parametrize("runtime", [ThreadsRuntime, SerialRuntime])
def test_an_epoch_that_did_not_begin_is_not_taken_for_the_one_before(runtime):
    worker = Staged()
    with runtime([worker], never) as started:
        fractions = []

        def work(stop):
            fractions.append(float(worker.progress[0]))
            worker.progress[0] = 1.0

        worker.work = work
        for _ in range(2):
            started.submit(command(1))
            started.wait(WAIT)
    assert fractions == [0.0, 0.0]


def test_serial_executes_in_the_order_of_submission_in_the_callers_thread():
    order = []
    workers = [Staged(lambda stop, i=i: order.append(i)) for i in (1, 2, 3)]
    with SerialRuntime(workers, never) as runtime:
        for layer in (2, 3, 1):
            runtime.submit(command(layer))
        for _ in range(3):
            assert isinstance(runtime.wait(WAIT), Finished)
        assert runtime.wait(WAIT) is None
    assert order == [2, 3, 1]
    assert {worker.thread for worker in workers} == {threading.current_thread()}


def test_serial_raises_what_stop_raised_as_it_is():
    def stop():
        raise KeyError("an observer's own")

    with SerialRuntime([Staged(wait_for_stop)], stop) as runtime:
        runtime.submit(command(1))
        with pytest.raises(KeyError, match="an observer's own"):
            runtime.wait(WAIT)
