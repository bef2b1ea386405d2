"""One process a layer: the same bits as serially, and no death that is not reported at once."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import sabotage
from layerprocesses import ended, workers
from namedmemory import named_memory
from trialruns import pretrain_within

from syncpretrain import Stack, pretrain
from syncpretrain.errors import DivergedError, RunInterrupted, StalledError, WorkerError
from syncpretrain.events import EpochFinished, EpochStarted, Event, Progress
from syncpretrain.observers.history import History
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining import build as building
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.schedule.schedule import Train
from syncpretrain.settings import settings_from
from syncpretrain.workers import processes
from syncpretrain.workers.processes import ProcessesRuntime
from syncpretrain.workers.split import Split
from syncpretrain.workers.state import PretrainState
from syncpretrain.workers.versions import Versions

pytestmark = pytest.mark.usefixtures("forked_layers")
LAYERS = (16, 12, 8, 5)
WANTED = {
    "layers": LAYERS,
    "epochs": 3,
    "batch_size": 20,
    "workers": 2,
    "runtime": "processes",
}
LONG = 100_000
WAIT = 20.0
DEATH_SECONDS = 8.0  # below what the end waits for processes that still run
LAYER = pytest.mark.parametrize("layer", [1, 2, 3])


def run(bits: np.ndarray, **settings) -> Stack:
    return pretrain(bits, **(WANTED | settings))


def run_within(times: Timeouts, bits: np.ndarray, **settings) -> Stack:
    return pretrain_within(times, bits, **(WANTED | settings))


VARIANTS = {
    "uneven": {"epochs": (2, 5, 3), "refresh_epochs": (0, 2, 3)},
    "first-layer": {"epochs": (4, 2, 1), "refresh_epochs": 2, "finish": "first-layer"},
    "greedy": {"schedule": "greedy", "blas_threads": 1},
    "persistent": {"persistent": True, "cd_steps": (1, 2, 1)},
    "denoising": {"model": "denoising", "tied": False, "loss": "squared"},
    "gaussian and relu": {
        "visible_units": "gaussian",
        "hidden_units": ("relu", "gaussian", "bernoulli"),
        "learning_rate": 0.005,
    },
    "early stopping": {"early_stopping": "pseudo-likelihood", "epochs": 8, "patience": 1},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_processes_equal_the_oracle(bits, variant):
    settings = VARIANTS[variant] | {"validation": 1 - bits[:50]}
    oracle = run(bits, runtime="serial", **settings)
    found = run(bits, **settings)
    assert found.parameters_sha256 == oracle.parameters_sha256
    assert found.info["epochs"] == oracle.info["epochs"]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_so_do_other_numbers_of_workers(bits, number):
    wanted = run(bits, runtime="serial").parameters_sha256
    assert run(bits, workers=number).parameters_sha256 == wanted


def test_inputs_of_many_chunks_of_rows():
    X = np.random.default_rng(0).random((2300, 64)).astype(np.float32)
    settings = {"layers": (64, 96, 40, 10), "epochs": 2, "validation": X[:100]}
    sums = {run(X, **settings, runtime=name).parameters_sha256 for name in ("serial", "processes")}
    assert len(sums) == 1


def test_a_free_run_is_replayed_by_another_runtime_and_back(bits):
    history = History()
    settings = {"epochs": (6, 3, 2), "pace": "free", "workers": 3}
    free = run(bits, **settings, observers=[history])
    for runtime in ("serial", "processes"):
        again = run(bits, **settings, runtime=runtime, replay=history.reads)
        assert again.parameters_sha256 == free.parameters_sha256


def test_one_layer_is_a_stack_too(bits, new_interpreters):
    sums = {
        run(bits, layers=(16, 9), runtime=name).parameters_sha256
        for name in ("serial", "processes")
    }
    assert len(sums) == 1


def test_progress_is_told_across_processes(bits):
    shares = []

    def observe(event: Event) -> None:
        if isinstance(event, Progress):
            shares.append(event.fraction)

    X = np.random.default_rng(0).random((40_000, 200), dtype=np.float32)
    run(X, layers=(200, 300), epochs=1, batch_size=10, observers=[observe])
    assert any(0 < share < 1 for share in shares)


WAYS = {
    "error": "in epoch 2: ValueError: out of luck",
    "memory": "in epoch 2: MemoryError: out of luck",
    "unpicklable": r"in epoch 2: Unpicklable: Unpicklable\('out of luck'\)",
    "no way back": r"in epoch 2: OneWay: OneWay\('out of luck'",
    "exit": "in epoch 2: SystemExit: 3",
    "status 0": r"in epoch 2: its process \d+ ended with status 0",
    "status 7": r"in epoch 2: its process \d+ ended with status 7",
    "segfault": r"in epoch 2: its process \d+ was killed by SIGSEGV",
    "worker_factory": r"in epoch 1: MemoryError: out of luck",
}
EVERYWHERE = ("error", "status 0", "segfault")
FAILURES = [(kind, i) for kind in WAYS for i in ((1, 2, 3) if kind in EVERYWHERE else (2,))]


@pytest.mark.parametrize(("kind", "layer"), FAILURES)
def test_every_way_to_fail_is_told_with_layer_epoch_and_cause(bits, monkeypatch, kind, layer):
    reported = WAYS[kind]
    monkeypatch.setattr(building, "build_worker", partial(sabotage.build_worker, kind, layer))
    with pytest.raises(WorkerError, match=f"^layer {layer} failed {reported}") as caught:
        run(bits, workers=3)
    stack = caught.value.stack
    assert stack.widths == LAYERS
    assert all(np.isfinite(x).all() for part in stack.layers for _, x in part.parameters())
    if "process" not in reported:
        cause = caught.value.__cause__
        trace = str(cause.__cause__ or cause)
        assert "Traceback" in trace
        assert "sabotage.py" in trace, "where it was raised"
        assert kind != "error" or isinstance(cause, ValueError)


@pytest.mark.parametrize("layer", [1, 3])
def test_divergence_names_layer_and_epoch(bits, layer):
    rates = [0.1] * 3
    rates[layer - 1] = 1e6
    with pytest.raises(DivergedError, match=rf"layer {layer} diverged in epoch \d") as caught:
        run(bits, learning_rate=rates)
    assert isinstance(caught.value.__cause__, DivergedError)


@LAYER
@pytest.mark.parametrize("moment", [EpochStarted, EpochFinished])
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_killed_process_is_told_at_once(bits, layer, moment, epoch):
    """Busy, or idle between two epochs, it is the same."""
    killed = []

    def observe(event: Event) -> None:
        if isinstance(event, moment) and (event.layer, event.epoch) == (layer, epoch):
            child = workers()[layer]
            child.send_signal(signal.SIGSTOP)  # so that it cannot be done before it is killed
            child.kill()
            killed.append((child.pid, time.monotonic()))

    with pytest.raises(WorkerError) as caught:
        run(bits, layers=(16, 12, 8, 5, 4), observers=[observe], refresh_epochs=0)
    ((pid, since),) = killed
    assert time.monotonic() - since < DEATH_SECONDS
    reported = rf"layer {layer} failed (in|after) epoch [{epoch}{epoch + 1}]: its process {pid} was"
    assert re.fullmatch(f"{reported} killed by SIGKILL", str(caught.value))
    stack = caught.value.stack
    assert all(np.isfinite(x).all() for part in stack.layers for _, x in part.parameters())


def test_the_time_for_a_stall_reaches_the_workers_of_a_step(bits):
    settings = settings_from((16, 12), batch_size=20, epochs=1, shards=2, replicas=2).pretrain
    given = (settings, 1, None, False, None, Timeouts(stall=0.25))
    factory = partial(sabotage.build_worker, "alone", 1, *given)
    with ProcessesRuntime([factory], Versions(Split(bits, bits[:0]), (12,)), 1) as runtime:
        runtime.set_workers(1, 2)
        runtime.submit(Train(1, 1, 0, 0))
        message, deadline = None, time.monotonic() + WAIT
        while message is None and time.monotonic() < deadline:
            message = runtime.wait(0.1)
    failure = message.failure()
    assert type(failure) is StalledError
    assert str(failure).startswith("layer 1 failed in epoch 1: StalledError: a worker of syncpre")
    assert "waited 0.25 s for the others" in str(failure)


def test_a_process_killed_before_its_first_epoch(bits, new_interpreters):
    def observe(event: Event) -> None:
        if isinstance(event, EpochStarted) and (event.layer, event.epoch) == (1, 1):
            workers()[3].kill()

    with pytest.raises(WorkerError, match="layer 3 failed before its first epoch: its process"):
        run(bits, observers=[observe], epochs=200)


def standing(bits: np.ndarray) -> tuple[ProcessesRuntime, Versions]:
    settings = settings_from((16, 12, 8, 5), batch_size=20, epochs=2).pretrain
    versions = Versions(Split(bits, bits[:0]), (12, 8, 5))
    return ProcessesRuntime(
        building.build_worker_factories(settings, keep_states=False), versions, 1
    ), versions


def test_a_sleeping_process_uses_no_cpu(bits):
    runtime, _ = standing(bits)
    with runtime:
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
    runtime, _ = standing(bits)
    try:
        with runtime:
            workers()[2].kill()
            deadline = time.monotonic() + WAIT
            while (message := runtime.wait(0.05)) is None:
                assert time.monotonic() < deadline
        assert "layer 2 failed before its first epoch" in str(message.failure())
        for end in ends:
            end.close()
    finally:
        for end in ends:
            end.close()


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
        run(bits)
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2


def test_the_end_does_not_wait_for_a_process_that_is_suspended_or_still_starts(
    bits, new_interpreters
):
    runtime, _ = standing(bits)
    with runtime:
        children = workers()
        children[1].send_signal(signal.SIGSTOP)
        since = time.monotonic()
    assert time.monotonic() - since < DEATH_SECONDS
    assert not any(child.is_running() for child in children.values())


def test_a_stuck_minibatch_holds_nobody_up(bits, monkeypatch):
    monkeypatch.setattr(building, "build_worker", partial(sabotage.build_worker, "stuck", 1))

    def observe(event: Event) -> None:
        if isinstance(event, Progress) and event.layer == 1 and event.epoch == 2 and not asked:
            asked.append(event)
            signal.raise_signal(signal.SIGINT)

    asked: list[Event] = []
    since = time.monotonic()
    with pytest.raises(RunInterrupted):
        run_within(Timeouts(drain=0.2), bits, observers=[observe], layers=(16, 12))
    assert time.monotonic() - since < WAIT


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_and_keeps_what_was_learned(bits, signum):
    sent: list[int] = []

    def observe(event: Event) -> None:
        if isinstance(event, EpochFinished) and event.layer == 2 and not sent:
            sent.append(signum)  # a second one would end the run at once
            for child in workers().values():  # a terminal sends it to all
                child.send_signal(signum)
            signal.raise_signal(signum)

    with pytest.raises(RunInterrupted, match="pretraining was stopped") as caught:
        run(bits, epochs=LONG, observers=[observe])
    assert caught.value.signum == signum
    assert caught.value.stack.info["epochs"][1] >= 1


def test_a_signal_at_the_very_start_ends_no_process(bits, new_interpreters):
    def observe(event: Event) -> None:
        if isinstance(event, EpochStarted) and event.layer == 1 and event.epoch == 1:
            for child in workers().values():
                child.send_signal(signal.SIGINT)
                child.send_signal(signal.SIGTERM)

    wanted = run(bits, runtime="serial").parameters_sha256
    assert run(bits, observers=[observe]).parameters_sha256 == wanted


def test_many_runs_leave_nothing(bits):
    for _ in range(5):
        run(bits, layers=(16, 4), epochs=1)  # what each left is counted after the test
    assert not workers()


SCRIPT = """
import numpy as np
from syncpretrain import pretrain
X = np.random.default_rng(0).random((100, 16)).astype(np.float32)
stack = pretrain(X, layers=(16, 8, 4), epochs=EPOCHS, batch_size=20, runtime="processes",
    workers=2, warn=False, observers=[lambda e: print(type(e).__name__, flush=True)])
"""


def script(epochs: int) -> str:
    return SCRIPT.replace("EPOCHS", str(epochs))


@pytest.mark.parametrize("way", ["file", "-c", "stdin"])
def test_a_script_without_a_guard_runs_once(tmp_path, way):
    code = script(1)
    file = tmp_path / "guardless.py"
    file.write_text(code)
    arguments = {"file": [str(file)], "-c": ["-c", code], "stdin": ["-"]}[way]
    done = subprocess.run(
        [sys.executable, *arguments],
        input=code if way == "stdin" else "",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.count("RunStarted") == 1
    assert done.stdout.count("RunFinished") == 1
    assert done.stderr == ""


def test_the_command_line_has_it(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((60, 16), dtype=np.float32))
    (tmp_path / "numpy.py").write_text("raise ImportError('not from the working folder')")
    program = Path(sys.executable).with_name("syncpretrain")
    command = [program, "train", "--data", "x.npy", "--layers", "16,8,4", "--epochs", "1"]
    done = subprocess.run(
        [*command, "--runtime", "processes", "--batch-size", "20", "--quiet", "--out", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert 'runtime = "processes"' in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize("moment", [EpochStarted, EpochFinished])
def test_the_processes_of_a_killed_parent_end_by_themselves(moment):
    names = named_memory()
    with subprocess.Popen(
        [sys.executable, "-c", script(LONG)], stdout=subprocess.PIPE, text=True
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


def test_a_state_of_any_runtime_is_resumed_by_any(bits):
    settings = settings_from(LAYERS, batch_size=20, epochs=4, workers=2)
    states: list[PretrainState] = []

    def save(state, *, done, final):
        states.append(state())

    wanted = run(bits, runtime="serial", epochs=4).parameters_sha256
    own = msgspec.structs.replace(settings.pretrain, runtime="processes")
    assert Pretraining(own, bits, save=save).run().parameters_sha256 == wanted
    middle = next(state for state in states if state.computed)
    for runtime in ("serial", "processes"):
        again = msgspec.structs.replace(own, runtime=runtime)
        assert Pretraining(again, bits, resume=middle).run().parameters_sha256 == wanted


def test_a_stall_is_told_with_the_stacks_of_all_processes(bits, monkeypatch, capfd):
    monkeypatch.setattr(building, "build_worker", partial(sabotage.build_worker, "stuck", 1))
    # As long as a process may take to start on a busy machine.
    with pytest.raises(StalledError, match="no minibatch was trained for 10 s, by layer 1"):
        run_within(Timeouts(stall=10.0), bits)
    written = capfd.readouterr().err
    assert "sabotage.py" in written, "where layer 1 is stuck"
    assert written.count("Current thread") + written.count("Thread 0x") >= 4
