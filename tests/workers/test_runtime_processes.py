"""One process a layer, by epochs and streamed: no death that is not reported, nothing left."""

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sabotage
from layerprocesses import ended, workers
from moments import At
from namedmemory import named_memory
from stackcomparisons import sound
from trialruns import pretrain_within

from syncpretrain import pretrain
from syncpretrain.errors import RunInterrupted, StalledError, WorkerError
from syncpretrain.events import EpochFinished, EpochStarted, Progress
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.pretraining import build as building
from syncpretrain.pretraining import streamed as streaming
from syncpretrain.pretraining.streamed import StreamedPretraining
from syncpretrain.schedule.schedule import Train
from syncpretrain.schedule.stream import Block, StreamPlan
from syncpretrain.settings import settings_from
from syncpretrain.workers import processes
from syncpretrain.workers.activations import Split
from syncpretrain.workers.link import Raised
from syncpretrain.workers.processes import ProcessesRuntime
from syncpretrain.workers.ranks.placement import RankShares
from syncpretrain.workers.streamed.remote import LentThreads, LinkedStream, RemoteLayer
from syncpretrain.workers.versions import Versions
from syncpretrain.workers.worker import EpochsRun

pytestmark = pytest.mark.usefixtures("forked_layers")
LAYERS = (16, 12, 8, 5)
WANTED = {"layers": LAYERS, "epochs": 3, "batch_size": 20, "workers": 2, "runtime": "processes"}
LONG = 100_000
WAIT = 20.0
HANDOFFS = pytest.mark.parametrize("handoff", ["epoch", "minibatch"])
PROGRAM = {"capture_output": True, "text": True, "timeout": 60}
DEATH_SECONDS = 8.0  # below what the end waits for processes that still run


def run(bits, **settings):
    return pretrain(bits, **(WANTED | settings))


def in_processes(worker_factories, versions):
    own = {"worker_factories": worker_factories, "versions": versions, "blas_threads": 1}
    own |= {"stop": lambda: False, "times": TIMEOUTS, "restarts": None}
    own |= {"shares": RankShares(), "below": lambda command: ()}
    return ProcessesRuntime(EpochsRun(**own))


def test_progress_is_told_across_processes():
    shares = []

    def observe(event):
        if isinstance(event, Progress):
            shares.append(event.fraction)

    X = np.random.default_rng(0).random((16_000, 200), dtype=np.float32)
    run(X, layers=(200, 300), epochs=1, batch_size=10, observers=[observe])
    assert any(0 < share < 1 for share in shares)


def test_the_time_for_a_stall_reaches_the_workers_of_a_step(bits):
    settings = settings_from((16, 12), batch_size=20, epochs=1, shards=2, replicas=2).pretrain
    given = (settings, 1, None, False, None, Timeouts(stall=0.25), None)
    factory = partial(sabotage.build_worker, "alone", 1, *given)
    with in_processes([factory], Versions(Split(bits, bits[:0]), (12,))) as runtime:
        runtime.set_workers(1, 2)
        runtime.submit(Train(1, 1, 0, 0))
        failure = runtime.wait(WAIT).failure()
    assert type(failure) is StalledError
    assert str(failure).startswith("layer 1 failed in epoch 1: StalledError: a worker of syncpre")
    assert "waited 0.25 s for the others" in str(failure)


@HANDOFFS
def test_a_process_killed_before_its_first_epoch(bits, new_interpreters, handoff):
    kill = At(EpochStarted, lambda: workers()[3].kill(), layer=1, epoch=1)
    delay = {"delay": 500} if handoff == "minibatch" else {}
    with pytest.raises(WorkerError, match=r"^layer 3 failed before its first epoch: its process"):
        run(bits, observers=[kill], epochs=2000, handoff=handoff, **delay)


def standing(bits):
    settings = settings_from((16, 12, 8, 5), batch_size=20, epochs=2).pretrain
    versions = Versions(Split(bits, bits[:0]), (12, 8, 5))
    factories = building.build_worker_factories(settings, (), False, None, Timeouts(), None)
    return in_processes(factories, versions)


def test_a_sleeping_process_uses_no_cpu(bits):
    with standing(bits) as runtime:
        for epoch in (1, 2):
            runtime.submit(Train(1, epoch, 0, 0))
            assert runtime.wait(WAIT) is not None
        sleeping = workers()[1]
        before = sleeping.cpu_times()
        assert runtime.wait(1.0) is None
        after = sleeping.cpu_times()
    assert after.user + after.system - before.user - before.system <= 0.01


def test_a_death_is_seen_though_a_copy_of_its_socket_is_open(bits, monkeypatch):
    """As one may be in a process that the caller forked at the wrong moment."""
    ends = []
    original = socket.socketpair

    def socketpair():
        pair = original()
        ends.append(pair[1].dup())
        return pair

    monkeypatch.setattr(processes.socket, "socketpair", socketpair)
    try:
        with standing(bits) as runtime:
            workers()[2].kill()
            deadline = time.monotonic() + WAIT
            while (message := runtime.wait(0.05)) is None:
                assert time.monotonic() < deadline
        assert "layer 2 failed before its first epoch" in str(message.failure())
    finally:
        for end in ends:
            end.close()


def test_the_end_waits_for_no_process_that_is_suspended_or_still_starts(bits, new_interpreters):
    with standing(bits):
        children = workers()
        children[1].send_signal(signal.SIGSTOP)
        since = time.monotonic()
    assert time.monotonic() - since < DEATH_SECONDS
    assert not any(child.is_running() for child in children.values())


def test_a_stuck_minibatch_holds_nobody_up(bits, monkeypatch):
    monkeypatch.setattr(building, "build_worker", partial(sabotage.build_worker, "stuck", 1))

    interrupt = At(Progress, partial(signal.raise_signal, signal.SIGINT), layer=1, epoch=2)
    since = time.monotonic()
    with pytest.raises(RunInterrupted):
        settings = WANTED | {"layers": (16, 12), "observers": [interrupt]}
        pretrain_within(Timeouts(drain=0.2), bits, **settings)
    assert time.monotonic() - since < WAIT


def test_a_signal_at_the_very_start_ends_no_process(bits, new_interpreters):
    def signal_all():
        for child in workers().values():
            child.send_signal(signal.SIGINT)
            child.send_signal(signal.SIGTERM)

    observe = At(EpochStarted, signal_all, layer=1, epoch=1)
    wanted = run(bits, runtime="serial").parameters_sha256
    assert run(bits, observers=[observe]).parameters_sha256 == wanted


SCRIPT = """
import numpy as np
from syncpretrain import pretrain
X = np.random.default_rng(0).random((100, 16)).astype(np.float32)
stack = pretrain(X, layers=(16, 8, 4), epochs=EPOCHS, batch_size=20, runtime="processes",
    workers=2, handoff="HANDOFF", warn=False,
    observers=[lambda e: print(type(e).__name__, flush=True)])
"""


def script(epochs, handoff="epoch"):
    return SCRIPT.replace("EPOCHS", str(epochs)).replace("HANDOFF", handoff)


@pytest.mark.parametrize("way", ["file", "-c", "stdin"])
def test_a_script_without_a_guard_runs_once(tmp_path, way):
    code = script(1)
    file = tmp_path / "guardless.py"
    file.write_text(code)
    arguments = {"file": [str(file)], "-c": ["-c", code], "stdin": ["-"]}[way]
    how = {"input": code if way == "stdin" else "", "check": True}
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, **PROGRAM, **how)
    assert done.stdout.count("RunStarted") == 1
    assert done.stdout.count("RunFinished") == 1
    assert done.stderr == ""


def test_the_command_line_has_it(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((60, 16), dtype=np.float32))
    (tmp_path / "numpy.py").write_text("raise ImportError('not from the working folder')")
    program = Path(sys.executable).with_name("syncpretrain")
    command = [program, "train", "--data", "x.npy", "--layers", "16,8,4", "--epochs", "1"]
    command += ["--runtime", "processes", "--batch-size", "20", "--quiet", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, check=False, **PROGRAM)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'runtime = "processes"' in (tmp_path / "run" / "config.toml").read_text()


@HANDOFFS
@pytest.mark.parametrize("moment", [EpochStarted, EpochFinished])
def test_the_processes_of_a_killed_parent_end_by_themselves(moment, handoff):
    names = named_memory()
    with subprocess.Popen(
        [sys.executable, "-c", script(LONG, handoff)], stdout=subprocess.PIPE, text=True
    ) as parent:
        try:
            while (line := parent.stdout.readline().strip()) != moment.__name__:
                assert line
            children = list(workers(parent.pid).values())
        finally:
            parent.kill()
    deadline = time.monotonic() + 30.0
    while not all(map(ended, children)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert named_memory() == names


def test_a_stall_is_told_with_the_stacks_of_all_processes(bits, monkeypatch, capfd):
    monkeypatch.setattr(building, "build_worker", partial(sabotage.build_worker, "stuck", 1))
    times = Timeouts()  # the processes may start as slowly as they like
    hurry = At(EpochFinished, partial(object.__setattr__, times, "stall", 0.7), layer=2)
    with pytest.raises(StalledError, match=r"no minibatch was trained for 0\.7 s, by layer 1"):
        pretrain_within(times, bits, **WANTED, observers=[hurry])
    written = capfd.readouterr().err
    assert "sabotage.py" in written, "where layer 1 is stuck"
    assert written.count("Current thread") + written.count("Thread 0x") >= 4


def streamed(bits, *, observers=(), times=TIMEOUTS, **options):
    usual = {"epochs": 2, "batch_size": 30, "seed": 3, "handoff": "minibatch"}
    settings = settings_from(LAYERS, runtime="processes", **(usual | options)).pretrain
    return StreamedPretraining(settings, bits, bits[:50], observers=observers, times=times)


def test_idle_threads_are_lent_to_a_process(bits, monkeypatch):
    builder = partial(sabotage.build_streamed_layer, "helped", 1)
    monkeypatch.setattr(streaming, "build_streamed_layer", builder)
    told = r"^layer 1 failed in epoch \d+: ValueError: helped by syncpretrain-layer-1-2$"
    with pytest.raises(WorkerError, match=told):
        streamed(bits, workers=2, epochs=2000, delay=500, shards=2, replicas=2).run()


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


def suspended(layer, then):
    """Return an observer that suspends a layer's process in its second epoch, and does more."""

    def act():
        workers()[layer].send_signal(signal.SIGSTOP)
        then()

    return At(EpochStarted, act, layer=layer, epoch=2)


def test_a_suspended_process_is_a_stall(bits, capfd):
    times = Timeouts()  # the processes may start as slowly as they like
    suspend = suspended(2, partial(object.__setattr__, times, "stall", 0.7))
    run = streamed(bits, observers=[suspend], epochs=LONG, workers=2, times=times)
    with pytest.raises(StalledError, match=r"no minibatch was trained for|took more than 0.7 s"):
        run.run()
    assert suspend.since
    told = capfd.readouterr().err
    assert re.search(r'workers/processes\.py", line \d+ in main', told), "where the others stand"


@pytest.mark.parametrize("layer", [1, 3])
def test_a_suspended_process_does_not_keep_a_signal_from_ending_the_run(bits, layer):
    suspend, saved = suspended(layer, partial(signal.raise_signal, signal.SIGINT)), []
    times = Timeouts(drain=0.3)
    run = streamed(bits, observers=[suspend], epochs=LONG, workers=3, times=times)
    run.save = lambda state, *, done, final: saved.append(final)
    with pytest.raises(RunInterrupted) as caught:
        run.run()
    assert suspend.since
    assert True not in saved, "no state without that of the suspended layer"
    sound(caught.value.stack, LAYERS)


def connected(error):
    """Return a layer whose process ended with an answer: an error."""
    left, ending = [Raised(error)], "its process 1 ended with status 1"
    dead = SimpleNamespace(channel=object(), has_ended=True, offset=0.0, ending=lambda: ending)
    dead.receive = lambda: left.pop() if left else None
    dead.send, dead.poll = lambda thing: None, lambda seconds: True
    layer = RemoteLayer(2, StreamPlan(skipped=0, steps=4), 4, None, Timeouts())
    place = SimpleNamespace(progress=np.zeros(3), stop=lambda: None)
    layer.connect(dead, LinkedStream(place, [layer], list, Timeouts()))
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
