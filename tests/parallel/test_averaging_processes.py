"""Members that are processes, and ways for them to die."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import pytest
from averagedtraining import SECONDS, assert_equal_bits, beginning, train, trained

from syncpretrain.parallel import AveragingError, GradientAverager
from syncpretrain.parallel import barrier as lives
from syncpretrain.parallel.barrier import ended, started

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="processes need memfd_create of Linux"
)
SPAWN = multiprocessing.get_context("spawn")
START_SECONDS = 60  # a process that imports NumPy and pytest, on a busy machine
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_tracker():
    """End the process that the standard library starts beside the first spawned one."""
    yield
    resource_tracker._resource_tracker._stop()


@contextmanager
def processes(averager, ranks, work, *args):
    """Run ``work(handle, *args)`` in a process a worker, and end those that are left."""
    begun = [SPAWN.Process(target=work, args=(averager.worker(r), *args)) for r in ranks]
    try:
        for process in begun:
            process.start()
        yield begun
    finally:
        for process in begun:
            process.kill()
            process.join(SECONDS)
            process.close()


def for_ever(handle):
    with handle as worker:
        while True:
            worker.average(lambda *_: None)


def leave_by(handle, way):
    if way == "early":
        os.kill(os.getpid(), signal.SIGKILL)
    with handle as worker:
        worker.average(lambda *_: None)
        if way == "exception":
            raise OverflowError("the loss is nan")
        if way == "exit":
            os._exit(3)
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def use_twice(handle, same):
    with handle as a, same as b:
        assert a.parameters[0][0] == b.parameters[0][0] == 0
        a.parameters[0][0] = 5
        assert b.parameters[0][0] == 5, "the same memory"
        assert sum(b.gradients[1][0]) == 0


def report(handle, connection):
    """Average until it fails; tell why."""
    try:
        for_ever(handle)
    except AveragingError as error:
        connection.send(str(error))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_processes_give_the_bits_of_threads(workers):
    with GradientAverager(beginning(), shards=4, workers=workers, timeout=SECONDS) as averager:
        with processes(averager, range(workers), train) as running:
            for process in running:
                process.join(START_SECONDS)
            assert [process.exitcode for process in running] == [0] * workers
        assert_equal_bits(averager.parameters, trained(1))


def test_a_process_and_a_thread_can_be_members_of_one_averager():
    with GradientAverager(beginning(), shards=4, workers=2, timeout=START_SECONDS) as averager:
        with processes(averager, [1], train) as (process,):
            train(averager.worker(0))
            process.join(START_SECONDS)
        assert_equal_bits(averager.parameters, trained(1))


def test_one_process_can_be_two_workers():
    with GradientAverager([(40,)], shards=2, workers=2) as averager:
        process = SPAWN.Process(target=use_twice, args=(averager.worker(0), averager.worker(1)))
        process.start()
        process.join(START_SECONDS)
        assert process.exitcode == 0
        process.close()
        assert averager.parameters[0][0] == 5


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("kill", r"died: killed by SIGKILL"),
        ("early", r"died"),
        ("exit", r"died: exit status 3"),
        ("exception", r"failed: OverflowError: the loss is nan"),
        ("return", r"has left"),
    ],
)
def test_ways_to_go(way, text):
    with GradientAverager([(40,)], shards=2, workers=2, timeout=START_SECONDS) as averager:
        with processes(averager, [1], leave_by, way) as (process,):
            with pytest.raises(AveragingError) as caught:
                for_ever(averager.worker(0))
            pid = process.pid
        found = str(caught.value)
    assert found.startswith(f"rank 1 (process {pid}) ")
    assert text in found


@pytest.mark.parametrize("seconds", np.random.default_rng(0).uniform(0, 0.05, 2))
def test_a_process_killed_at_any_moment_ends_all_others(seconds):
    with GradientAverager([(100, 100)], shards=3, workers=3, timeout=START_SECONDS) as averager:
        receiver, sender = SPAWN.Pipe(duplex=False)
        with (
            receiver,
            sender,
            processes(averager, [1], for_ever) as (victim,),
            processes(averager, [2], report, sender),
        ):
            with averager.worker(0) as worker:
                worker.average(lambda *_: None)  # all are here
                moment = time.monotonic() + seconds
                with pytest.raises(AveragingError) as caught:
                    while True:
                        worker.average(lambda *_: None)
                        if time.monotonic() > moment:
                            victim.kill()
            left = moment + 10 - time.monotonic()
            assert left > 0
            assert receiver.poll(left), "the other process has heard of it"
            text = receiver.recv()
    for found in (str(caught.value), text):
        assert found.startswith("rank 1 (process ")
        assert ") died" in found


def test_a_member_is_one_process_s():
    with GradientAverager([(40,)], shards=1, workers=1) as averager:
        handle = averager.worker(0)
        process = SPAWN.Process(target=leave_by, args=(handle, "early"))
        process.start()
        process.join(START_SECONDS)
        with pytest.raises(AveragingError, match=f"given to process {process.pid} and to"), handle:
            pass
        process.close()


@pytest.fixture
def sleeper():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


class TestLives:
    def test_a_process_lives_is_a_zombie_and_is_gone(self, sleeper):
        since = started(sleeper.pid)
        assert since > 0
        assert ended(sleeper.pid, since) is None
        sleeper.kill()
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
        assert ended(sleeper.pid, since) == "died: killed by SIGKILL"
        sleeper.wait(SECONDS)
        assert ended(sleeper.pid, since) == "died"

    def test_a_number_that_is_another_process_s_now_is_a_death(self, sleeper):
        assert ended(sleeper.pid, started(sleeper.pid) - 1) == "died"

    def test_the_own_process_lives(self):
        assert ended(os.getpid(), started(os.getpid())) is None


def test_without_any_knowledge_of_processes_a_number_must_do(sleeper, monkeypatch):
    monkeypatch.setattr(lives, "_fields", lambda pid: None)
    assert started(sleeper.pid) == 0
    assert ended(sleeper.pid, 0) is None
    sleeper.kill()
    sleeper.wait(SECONDS)
    assert ended(sleeper.pid, 0) == "died"


def test_the_example():
    command = [sys.executable, str(ROOT / "examples" / "average_gradients.py"), "--steps", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    losses = [float(line.split()[3]) for line in lines if line.startswith("step")]
    assert losses[-1] < 0.6 < 2 < losses[0] < 2.4, "the log of 10 classes is 2.30"
    assert lines[-1] == "1 and 2 workers: the same bits"
    assert np.isfinite(losses).all()
