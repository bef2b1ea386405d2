"""Streamed layers in processes: the bits of threads, every death told at once, nothing left."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import sabotage
from layerprocesses import ended, workers
from namedmemory import named_memory

from syncpretrain.errors import (
    CheckpointError,
    DivergedError,
    RunInterrupted,
    SettingsError,
    StalledError,
    WorkerError,
)
from syncpretrain.events import EpochFinished, EpochStarted, Event
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.streamed import driver as building
from syncpretrain.pretraining.streamed.driver import StreamedPretraining
from syncpretrain.schedule.stream import Block, StreamPlan
from syncpretrain.settings import settings_from
from syncpretrain.workers import processes
from syncpretrain.workers.link import Raised
from syncpretrain.workers.state import STREAM_STATE
from syncpretrain.workers.streamed.remote import LentThreads, RemoteLayer, Stopping

pytestmark = pytest.mark.usefixtures("forked_layers")
LAYERS = (16, 12, 8, 5)
LONG = 2000
DEATH_SECONDS = 8.0  # below what the end waits for processes that still run
ENDING_SECONDS = 5.0  # of a process that may still be starting when its parent is killed
GAUSSIAN = {"visible_units": "gaussian", "hidden_units": ("relu", "bernoulli", "gaussian")}


def streamed(bits, *, runtime="processes", observers=(), times=None, **options):
    usual = {"epochs": 2, "batch_size": 30, "seed": 3, "handoff": "minibatch", "runtime": runtime}
    settings = settings_from(LAYERS, **(usual | options)).pretrain
    limits = {} if times is None else {"times": times}
    return StreamedPretraining(settings, bits, bits[:50], observers=observers, **limits)


def finite(stack) -> bool:
    assert stack.widths == LAYERS
    return all(np.isfinite(x).all() for part in stack.layers for _, x in part.parameters())


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (1, {"epochs": (3, 1, 2), "delay": 0.4}),
        (2, GAUSSIAN | {"seed": 1, "delay": 1.5}),
        (3, {"shards": 2, "replicas": (2, 1, 1), "split": "units", "seed": 7}),
        (4, {"model": "denoising", "tied": False, "shards": 2, "replicas": 2, "delay": 2.5}),
        (2, {"persistent": True, "visible_bias": "log-odds", "hidden_dropout": 0.2}),
    ],
)
def test_the_bits_are_those_of_one_thread(bits, workers, options):
    wanted = streamed(bits, runtime="serial", **options).run().parameters_sha256
    assert streamed(bits, workers=workers, **options).run().parameters_sha256 == wanted


def test_one_layer_is_a_stack_too_and_a_layer_that_diverges_goes_on(bits):
    options = GAUSSIAN | {"layers": (16, 12), "hidden_units": "relu", "learning_rate": 3.0}
    sums, told = set(), []
    for runtime in ("serial", "processes"):
        settings = settings_from(handoff="minibatch", runtime=runtime, epochs=3, **options).pretrain
        run = StreamedPretraining(settings, bits, observers=[told.append])
        sums.add(run.run().parameters_sha256)
    assert len(sums) == 1
    assert sum("Back to the end" in getattr(e, "message", "") for e in told) >= 2


def test_a_state_of_any_runtime_is_resumed_by_any(bits, tmp_path):
    options = {"epochs": (8, 5, 6), "delay": 0.3, "persistent": True, "workers": 3}
    wanted = streamed(bits, runtime="serial", **options).run().parameters_sha256
    path = tmp_path / "state.safetensors"
    for first, second in (("processes", "threads"), ("threads", "processes")):
        states = []
        for _ in range(20):  # a run may end before the driver comes to save
            run = streamed(bits, runtime=first, **options)
            run.save = lambda state, *, done, final, states=states: states.append(state())
            assert run.run().parameters_sha256 == wanted
            if states:
                break
        middle = max(states, key=lambda state: sum(len(x.ring) for x in state.layers))
        STREAM_STATE.write(path, middle, {})
        again = streamed(bits, runtime=second, **options)
        again.resume = STREAM_STATE.read(path)
        assert again.run().parameters_sha256 == wanted


def test_the_state_of_another_stack_is_refused(bits):
    states = []
    run = streamed(bits, runtime="serial")
    run.save = lambda state, *, done, final: states.append(state())
    run.run()
    other = streamed(bits, model="autoencoder")
    other.resume = states[0]
    other.resume.layers[1].state.step_state.clear()
    with pytest.raises(CheckpointError, match="the state of layer 2 is of another layer"):
        other.run()


WAYS = {
    "error": "in epoch 2: ValueError: out of luck",
    "no way back": r"in epoch 2: OneWay: OneWay\('out of luck'",
    "exit": "in epoch 2: SystemExit: 3",
    "status 7": r"in epoch 2: its process \d+ ended with status 7",
    "worker_factory": r"in epoch 1: MemoryError: out of luck",
}


@pytest.mark.parametrize(("kind", "layer"), list(zip(WAYS, (1, 2, 3, 1, 2), strict=True)))
def test_every_way_to_fail_is_told_with_layer_epoch_and_cause(bits, monkeypatch, kind, layer):
    builder = partial(sabotage.build_streamed_layer, kind, layer)
    monkeypatch.setattr(building, "build_streamed_layer", builder)
    with pytest.raises(WorkerError, match=f"^layer {layer} failed {WAYS[kind]}") as caught:
        streamed(bits, workers=3).run()
    assert finite(caught.value.stack)
    if "process" not in WAYS[kind]:
        cause = caught.value.__cause__
        assert "sabotage.py" in str(cause.__cause__ or cause), "where it was raised"


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


def test_divergence_names_layer_and_epoch(bits):
    with pytest.raises(DivergedError, match=r"^layer 2 diverged in epoch \d") as caught:
        streamed(bits, learning_rate=(0.1, 1e6, 0.1), epochs=8).run()
    assert finite(caught.value.stack)


@pytest.mark.parametrize(("layer", "moment"), [(1, EpochFinished), (3, EpochStarted)])
def test_a_killed_process_is_told_at_once_and_the_run_resumed(bits, layer, moment):
    killed, states = [], []

    def observe(event: Event) -> None:
        if isinstance(event, moment) and event.layer == layer and event.epoch > 1 and not killed:
            child = workers()[layer]
            child.send_signal(signal.SIGSTOP)  # so that it cannot be done before it is killed
            child.kill()
            killed.append((child.pid, time.monotonic()))

    run = streamed(bits, observers=[observe], epochs=100, workers=3)
    run.save = lambda state, *, done, final: states.append(state())
    with pytest.raises(WorkerError) as caught:
        run.run()
    ((pid, since),) = killed
    assert time.monotonic() - since < DEATH_SECONDS
    reported = rf"layer {layer} failed (in|after) epoch \d+: its process {pid} was"
    assert re.fullmatch(f"{reported} killed by SIGKILL", str(caught.value))
    assert finite(caught.value.stack)
    again = streamed(bits, runtime="threads", epochs=100, workers=2)
    again.resume = states[-1] if states else None
    wanted = streamed(bits, runtime="serial", epochs=100).run().parameters_sha256
    assert again.run().parameters_sha256 == wanted


def test_a_process_killed_before_its_first_epoch(bits, new_interpreters):
    def observe(event: Event) -> None:
        if isinstance(event, EpochStarted) and (event.layer, event.epoch) == (1, 2):
            workers()[3].kill()

    with pytest.raises(WorkerError, match=r"^layer 3 failed before its first epoch: its process"):
        streamed(bits, observers=[observe], epochs=LONG, delay=500).run()


@pytest.mark.parametrize("runtime", ["serial", "threads", "processes"])
def test_every_epoch_is_told_to_begin_and_then_to_end(bits, runtime):
    told = []

    def observe(event: Event) -> None:
        if isinstance(event, EpochStarted | EpochFinished):
            told.append((event.layer, event.epoch, type(event)))

    streamed(bits, runtime=runtime, observers=[observe], epochs=40, delay=1).run()
    for layer in (1, 2, 3):
        wanted = [(layer, i + 1, kind) for i in range(40) for kind in (EpochStarted, EpochFinished)]
        assert [event for event in told if event[0] == layer] == wanted


def test_a_signal_to_all_processes_keeps_what_was_learned(bits):
    """One like SIGTERM in the middle of the run; the parent alone says what to do."""
    sent, states = [], []

    def observe(event: Event) -> None:
        if isinstance(event, EpochFinished) and event.layer == 2 and not sent:
            sent.append(event)
            for child in workers().values():
                child.send_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    run = streamed(bits, observers=[observe], epochs=100, workers=2)
    run.save = lambda state, *, done, final: states.append(state()) if final else None
    with pytest.raises(RunInterrupted, match="epochs finished: layer 1: ") as caught:
        run.run()
    assert caught.value.signum == signal.SIGTERM
    assert finite(caught.value.stack)
    (state,) = states
    for layer, of_state in zip(caught.value.stack.layers, state.layers, strict=True):
        np.testing.assert_array_equal(layer.weight, of_state.state.layer.weight)
    again = streamed(bits, runtime="threads", epochs=100)
    again.resume = state
    wanted = streamed(bits, runtime="serial", epochs=100).run().parameters_sha256
    assert again.run().parameters_sha256 == wanted


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
    assert finite(caught.value.stack)


def test_a_start_that_fails_half_way_leaves_nothing(bits, monkeypatch):
    started = []
    original = subprocess.Popen

    def popen(*args, **named):
        if len(started) == 2:
            raise BlockingIOError("no more processes")
        started.append(original(*args, **named))
        return started[-1]

    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    with pytest.raises(BlockingIOError, match="no more processes"):
        streamed(bits).run()
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2


def test_a_system_without_nameless_memory_is_told_to_take_threads(bits, monkeypatch):
    monkeypatch.delattr("os.memfd_create")
    with pytest.raises(SettingsError, match=r"^runtime: got processes, which .* take threads$"):
        streamed(bits)


KILLED = """
import os, sys
from pathlib import Path
from syncpretrain.events import EpochFinished
from syncpretrain.runs.run import train_run
from syncpretrain.settings import read_settings

def die(event):
    if isinstance(event, EpochFinished) and (event.layer, event.epoch) == (2, 5):
        here = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
        print(here, flush=True)
        os.kill(os.getpid(), 9)

train_run(read_settings(Path("config.toml")), out=Path("run"), observers=[die])
"""


def test_a_killed_parent_leaves_nothing_and_is_resumed_to_the_same_bits(
    call, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).random((900, 64), dtype=np.float32))
    options = ("--layers", "64,20,12,5", "--data", "x.npy", "--epochs", 9, "--quiet")
    options += ("--handoff", "minibatch", "--delay", 0.5, "--workers", 2, "--json")
    out, _ = call("train", *options, "--out", "whole")
    whole = json.loads(out)["parameters_sha256"]
    config = Path("whole/config.toml").read_text()
    assert 'runtime = "threads"' in config
    Path("config.toml").write_text(
        config.replace('runtime = "threads"', 'runtime = "processes"', 1)
    )
    names = named_memory()
    command = [sys.executable, "-c", KILLED]
    died = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
    children = [int(number) for number in died.stdout.split()]
    assert len(children) == 3
    deadline = time.monotonic() + ENDING_SECONDS
    while any(map(lives, children)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert named_memory() == names
    out, _ = call("train", "--resume", "run", "--json")
    assert json.loads(out)["parameters_sha256"] == whole


def lives(pid: int) -> bool:
    """Return whether a process lives that is none of this one's children."""
    try:
        return not ended(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


class Dead:
    """A process that ended with an answer: an error."""

    channel, has_ended, offset = object(), True, 0.0

    def __init__(self) -> None:
        self.left = [Raised(MemoryError("out of luck"))]

    def send(self, thing: object) -> None:
        pass

    def poll(self, seconds: float) -> bool:
        return True

    def receive(self) -> Raised | None:
        return self.left.pop() if self.left else None

    def ending(self) -> str:
        return "its process 1 ended with status 1"


def test_the_cause_is_told_whoever_takes_the_last_answer():
    layer = RemoteLayer(2, StreamPlan(skipped=0, steps=4), 4, None, Timeouts())
    stopping = Stopping(lambda: None, Timeouts())
    layer.connect(Dead(), stopping, np.zeros(1), np.zeros(1))
    with pytest.raises(MemoryError):  # in a thread of the pool
        layer.process(Block(2, 1, 2), lambda: False)
    with pytest.raises(WorkerError, match=r"^layer 2 failed in epoch 1: MemoryError: out of luck$"):
        layer.check()  # in the driver
