import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from syncpretrain import finetune, pretrain
from syncpretrain.errors import RunInterrupted, SettingsError
from syncpretrain.events import EpochFinished
from syncpretrain.parallel import blas, signals
from syncpretrain.parallel.blas import at_once, blas_limit, blas_threads, usable_cores

CPU_MAX = "/sys/fs/cgroup/cpu.max"


def limits():
    return [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]


needs_threads = pytest.mark.skipif(set(limits()) == {1}, reason="BLAS has one thread here")


@pytest.fixture(autouse=True)
def restored():
    """After every test, also of one that fails or stops, the limits are those from before."""
    before = limits()
    yield
    assert limits() == before


def test_a_limit_is_restored_after_a_failure():
    with pytest.raises(KeyError), blas_limit(1):
        raise KeyError


def test_the_same_limit_may_be_nested_or_shared():
    with blas_limit(1):
        with blas_limit(1):
            assert set(limits()) == {1}
        assert set(limits()) == {1}, "the outer one still holds"


def test_overlapping_equal_limits_of_two_threads_are_restored_by_the_last():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with blas_limit(1):
            entered.set()
            leave.wait(20)

    with ThreadPoolExecutor(1) as pool:
        with blas_limit(1):
            pool.submit(other)
            assert entered.wait(20)
        assert set(limits()) == {1}, "the first to come left first"
        leave.set()


def in_thread(function):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result(20)


def test_a_run_that_is_over_leaves_the_limit_free_for_any_thread():
    seen = []

    def other():
        with blas_limit(1):
            seen.append(limits())
        seen.append(limits())

    before = limits()
    with blas_limit(1):
        pass
    in_thread(other)
    assert seen == [[1] * len(before), before]


@needs_threads
def test_a_limit_within_one_that_the_caller_set_itself():
    with threadpool_limits(2, user_api="blas"):
        with blas_limit(1):
            assert set(limits()) == {1}
        assert set(limits()) == {2}


@needs_threads
def test_a_limit_that_another_thread_holds_through_threadpoolctl_is_told():
    refused = []

    def other():
        with pytest.raises(SettingsError, match="another thread of this process holds BLAS at 2"):
            blas_limit(1).__enter__()
        refused.append(True)

    with threadpool_limits(2, user_api="blas"):
        in_thread(other)
        if not refused:
            pytest.skip("this version of threadpoolctl lets any thread set a limit")
    with blas_limit(1):
        assert set(limits()) == {1}


def test_another_limit_is_refused_and_the_first_still_holds():
    with blas_limit(1):
        with pytest.raises(SettingsError, match=r"got 2, but another run .* holds BLAS at 1"):
            blas_limit(2).__enter__()
        assert set(limits()) == {1}


def test_a_run_holds_blas_at_one_thread_and_restores_it():
    seen = []

    def observe(event):
        if isinstance(event, EpochFinished):
            seen.append(limits())

    X = np.eye(8, dtype=np.float32)
    pretrain(X, layers=[8, 4], epochs=2, batch_size=4, observers=[observe])
    assert {count for found in seen for count in found} == {1}


@contextmanager
def interrupted(module, number):
    """Raise KeyboardInterrupt before a line of a module, by how many of them this thread ran.

    Not before those of ``with``: they are also traced on the way out, where no signal is handled.
    """
    lines = count()
    source = Path(module.__file__).read_text().splitlines()

    def trace(frame, event, argument):
        if frame.f_code.co_filename != module.__file__:
            return None
        statement = source[frame.f_lineno - 1].lstrip()
        if event == "line" and not statement.startswith("with ") and next(lines) == number:
            raise KeyboardInterrupt
        return trace

    found = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(found)


@needs_threads
@pytest.mark.parametrize(("leaving", "least"), [(False, 20), (True, 3)])
def test_an_interrupt_at_any_step_of_entering_or_leaving_restores_what_was_found(leaving, least):
    before = limits()
    for number in range(leaving, 1000):  # line 0 of leaving is the try, which protects all others
        limit = blas_limit(1)
        steps = [limit.__enter__, partial(limit.__exit__, None, None, None)]
        if leaving:
            steps.pop(0)()
        try:
            with interrupted(blas, number):
                steps.pop(0)()
        except KeyboardInterrupt:
            assert limits() == before, f"after line {number}"
            with blas_limit(2):
                assert set(limits()) == {2}
            continue
        break
    for step in steps:
        step()
    assert least < number < 999, "each line was interrupted once"


def test_the_process_is_looked_through_once_until_a_module_is_imported(monkeypatch):
    looked = []
    find = blas.ThreadpoolController
    monkeypatch.setattr(blas, "ThreadpoolController", lambda: looked.append(find()) or looked[-1])
    monkeypatch.setitem(sys.modules, "one_more", sys)
    for _ in range(3):
        with blas_limit(1):
            assert set(limits()) == {1}
    assert len(looked) == 1
    monkeypatch.setitem(sys.modules, "yet_another", sys)
    assert blas_threads() >= 1
    assert len(looked) == 2


def test_ctrl_c_at_the_very_start_of_a_run_is_a_request(monkeypatch):
    """It comes while the limit is set, when the run has just begun to listen to signals."""
    set_limit = blas._limit

    def interrupt(threads):
        signal.raise_signal(signal.SIGINT)
        set_limit(threads)

    monkeypatch.setattr(blas, "_limit", interrupt)
    X = np.eye(8, dtype=np.float32)
    with pytest.raises(RunInterrupted, match="pretraining was stopped"):
        pretrain(X, layers=[8, 4], epochs=2, batch_size=4)
    monkeypatch.setattr(blas, "_limit", set_limit)
    stack = pretrain(X, layers=[8, 4], epochs=1, batch_size=4)
    monkeypatch.setattr(blas, "_limit", interrupt)
    with pytest.raises(RunInterrupted, match="fine-tuning was stopped"):
        finetune(stack, X, epochs=2, batch_size=4)


def test_an_interrupt_while_signals_are_taken_over_leaves_them_as_they_were():
    taken = [signal.SIGINT, signal.SIGTERM]
    before = [signal.getsignal(signum) for signum in taken]
    for number in range(100):
        context = signals.stop_on_signals()
        try:
            with interrupted(signals, number):
                context.__enter__()
        except KeyboardInterrupt:
            assert [signal.getsignal(signum) for signum in taken] == before
            continue
        context.__exit__(None, None, None)
        break
    assert 5 < number < 99
    assert [signal.getsignal(signum) for signum in taken] == before


def with_quota(monkeypatch, text, cores=8):
    original = Path.read_text

    def read_text(path, *args, **named):
        if str(path) != CPU_MAX:
            return original(path, *args, **named)
        if text is None:
            raise FileNotFoundError(CPU_MAX)
        return text

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)


@pytest.mark.parametrize(
    ("quota", "cores", "expected"),
    [
        (None, 8, 8),
        ("max 100000\n", 8, 8),
        ("200000 100000\n", 8, 2),
        ("150000 100000\n", 8, 2),
        ("50000 100000\n", 8, 1),
        ("1600000 100000\n", 8, 8),
        ("nonsense", 3, 3),
        ("max 100000\n", 1, 1),
    ],
)
def test_usable_cores_are_the_affinity_cut_by_the_quota(monkeypatch, quota, cores, expected):
    with_quota(monkeypatch, quota, cores)
    assert usable_cores() == expected


def test_usable_cores_where_there_is_no_affinity(monkeypatch):
    with_quota(monkeypatch, None)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


def test_blas_threads_are_those_asked_for_or_the_cores_at_most(monkeypatch):
    with_quota(monkeypatch, "100000 100000\n")
    assert blas_threads(3) == 3
    assert blas_threads() == 1
    with_quota(monkeypatch, None, cores=10_000)
    assert blas_threads() == min(limits()), "no more than the environment set"


class TestAtOnce:
    def test_the_results_are_in_order(self):
        assert at_once(2, [partial(int, n) for n in range(9)]) == list(range(9))

    def test_an_error_is_raised_when_what_has_begun_has_ended(self):
        begun, failed, ended = threading.Event(), threading.Event(), []

        def fail():
            assert begun.wait(10)
            failed.set()
            raise ZeroDivisionError

        def first():
            begun.set()
            assert failed.wait(10)
            ended.append("first")

        with pytest.raises(ZeroDivisionError):
            at_once(2, [fail, first])
        assert ended == ["first"]
