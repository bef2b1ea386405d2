"""Streamed layers in processes: the bits of threads, every death told at once, nothing left."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import sabotage
from layerprocesses import workers
from stackcomparisons import sound

from syncpretrain.errors import RunInterrupted, StalledError, WorkerError
from syncpretrain.events import EpochStarted, Event
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining import streamed as building
from syncpretrain.pretraining.streamed import StreamedPretraining
from syncpretrain.schedule.stream import Block, StreamPlan
from syncpretrain.settings import settings_from
from syncpretrain.workers.link import Raised
from syncpretrain.workers.streamed.remote import LentThreads, LinkedStream, RemoteLayer

pytestmark = pytest.mark.usefixtures("forked_layers")
LAYERS = (16, 12, 8, 5)
LONG = 2000


def streamed(bits, *, runtime="processes", observers=(), times=None, **options):
    usual = {"epochs": 2, "batch_size": 30, "seed": 3, "handoff": "minibatch", "runtime": runtime}
    settings = settings_from(LAYERS, **(usual | options)).pretrain
    limits = {} if times is None else {"times": times}
    return StreamedPretraining(settings, bits, bits[:50], observers=observers, **limits)


def test_idle_threads_are_lent_to_a_process(bits, monkeypatch):
    builder = partial(sabotage.build_streamed_layer, "helped", 1)
    monkeypatch.setattr(building, "build_streamed_layer", builder)
    told = r"^layer 1 failed in epoch \d+: ValueError: helped by syncpretrain-layer-1-2$"
    with pytest.raises(WorkerError, match=told):
        streamed(bits, workers=2, epochs=LONG, delay=500, shards=2, replicas=2).run()


def test_a_lent_thread_comes_back_when_called_or_after_a_while():
    number = np.zeros(1)
    lent = LentThreads(number, Timeouts(sleep=0.01))
    assert not lent.help(lent.calls)
    lent = LentThreads(number, Timeouts())
    before = lent.calls
    helper = threading.Thread(target=lent.help, args=(before,))
    helper.start()
    lent.call()
    helper.join(20)
    assert not helper.is_alive()
    assert lent.help(before), "called away in the meantime"
    assert number[0] == 0


def suspended(layer: int, then: Callable[[], None], stopped: list[int]):
    """Return an observer that suspends a layer's process in its second epoch, and does more."""

    def observe(event: Event) -> None:
        if isinstance(event, EpochStarted) and event.layer == layer and event.epoch > 1:
            if stopped:
                return
            stopped.append(workers()[layer].pid)
            workers()[layer].send_signal(signal.SIGSTOP)
            then()

    return observe


def test_a_suspended_process_is_a_stall(bits, capfd):
    stopped, times = [], Timeouts()

    def hurry() -> None:  # the processes may start as slowly as they like
        object.__setattr__(times, "stall", 0.7)

    observers = [suspended(2, hurry, stopped)]
    run = streamed(bits, observers=observers, epochs=LONG, workers=2, times=times)
    with pytest.raises(StalledError, match=r"no minibatch was trained for|took more than 0.7 s"):
        run.run()
    assert stopped
    told = capfd.readouterr().err
    assert re.search(r'workers/processes\.py", line \d+ in main', told), "where the others stand"


@pytest.mark.parametrize("layer", [1, 3])
def test_a_suspended_process_does_not_keep_a_signal_from_ending_the_run(bits, layer):
    stopped, saved = [], []
    interrupt = partial(signal.raise_signal, signal.SIGINT)
    observers, times = [suspended(layer, interrupt, stopped)], Timeouts(drain=0.3)
    run = streamed(bits, observers=observers, epochs=LONG, workers=3, times=times)
    run.save = lambda state, *, done, final: saved.append(final)
    with pytest.raises(RunInterrupted) as caught:
        run.run()
    assert stopped
    assert True not in saved, "no state without that of the suspended layer"
    sound(caught.value.stack, LAYERS)


class Dead:
    """A process that ended with an answer: an error."""

    channel, has_ended, offset = object(), True, 0.0

    def __init__(self, error: BaseException) -> None:
        self.left = [Raised(error)]

    def send(self, thing: object) -> None:
        pass

    def poll(self, seconds: float) -> bool:
        return True

    def receive(self) -> Raised | None:
        return self.left.pop() if self.left else None

    def ending(self) -> str:
        return "its process 1 ended with status 1"


def connected(error):
    """Return a layer with a worker that ended with an error."""
    layer = RemoteLayer(2, StreamPlan(skipped=0, steps=4), 4, None, Timeouts())
    place = SimpleNamespace(progress=np.zeros(3), stop=lambda: None)
    layer.connect(Dead(error), LinkedStream(place, [layer], list, Timeouts()))
    return layer


@pytest.mark.parametrize("error", [MemoryError("out of luck"), SystemExit("out of luck")])
def test_the_cause_is_told_whoever_takes_the_last_answer(error):
    told = rf"^layer 2 failed in epoch 1: {type(error).__name__}: out of luck$"
    layer = connected(error)
    with pytest.raises(type(error)):  # in a thread of the pool
        layer.process(Block(2, 1, 2), lambda: False)
    for one in (layer, connected(error)):
        with pytest.raises(WorkerError, match=told):
            one.check()  # in the driver
    with pytest.raises(WorkerError, match=told):
        connected(error).state(None)
