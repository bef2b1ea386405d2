"""The thread budget: how many cores a run may use, and how many threads BLAS takes.

BLAS limits belong to the whole process. Overlapping limits from two threads would leave it capped
for good (threadpoolctl issue 205), so there is one limit at a time: it is set before any worker
starts, shared by runs that want the same, refused to one that wants another, and restored when
the last of them ends.

From version 3.7 on, threadpoolctl lets only the thread that set a limit last change it, as long as
that thread lives, and silently ignores all others. So limits are set and restored by threads that
end at once: then any run can restore what another one set, and none keeps the control for good.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from syncpretrain.errors import SettingsError

__all__ = ["blas_environment", "blas_limit", "blas_threads", "usable_cores"]

_lock = threading.Lock()
_active: list[int] = []  # the limit of every run now inside blas_limit, all equal
_restore: list[Callable[[], None]] = []  # what restores the limit that was found

T = TypeVar("T")


def usable_cores() -> int:
    """Return the cores this process may use: its affinity, cut by the cgroup's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, int(min(cores or 1, _quota())))


def blas_threads(requested: int | None = None) -> int:
    """Return the BLAS threads of work that one worker does alone, such as fine-tuning.

    None takes all usable cores, or fewer where ``OPENBLAS_NUM_THREADS`` and its like set fewer.
    """
    if requested is not None:
        return requested
    return min([usable_cores(), *_counts()])


def blas_environment(threads: int) -> dict[str, str]:
    """Return the environment of a process whose BLAS is to start no more than so many threads."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


@contextmanager
def blas_limit(threads: int) -> Iterator[None]:
    """Hold BLAS at so many threads, in the whole process, as long as the context lasts.

    Raises
    ------
    SettingsError
        If another thread of this process holds it at another number.
    """
    with _lock:
        if _active and _active[0] != threads:
            raise SettingsError(
                f"blas_threads: got {threads}, but another run in this process holds BLAS at"
                f" {_active[0]}; let it end first, or start this one in a process of its own"
            )
        if not _active:
            _restore.append(_limit(threads))
        _active.append(threads)
    # With OpenMP the limit is the calling thread's own.
    openmp = ThreadpoolController().select(threading_layer="openmp")
    try:
        with openmp.limit(limits=threads, user_api="blas"):
            yield
    finally:
        with _lock:
            _active.pop()
            if not _active:
                _restore.pop()()


def _limit(threads: int) -> Callable[[], None]:
    """Set the limit of the whole process; return what restores the one that was found."""
    found = _counts()
    limits = _in_thread(lambda: threadpool_limits(limits=threads, user_api="blas"))
    if any(count > threads for count in _counts()):  # the caller may hold the control itself
        threadpool_limits(limits=threads, user_api="blas")

    def restore() -> None:
        _in_thread(limits.restore_original_limits)
        if _counts() != found:
            limits.restore_original_limits()

    held = max(_counts(), default=0)
    if held > threads:
        restore()
        raise SettingsError(
            f"blas_threads: got {threads}, but another thread of this process holds BLAS at {held}"
            " through threadpoolctl; let it end first, or start this run in a process of its own"
        )
    return restore


def _counts() -> list[int]:
    return [int(info["num_threads"]) for info in threadpool_info() if info["user_api"] == "blas"]


def _in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread that ends with it."""
    with ThreadPoolExecutor(1, thread_name_prefix="syncpretrain-blas") as pool:
        return pool.submit(function).result()


def _quota() -> float:
    """Return the CPU quota of the control group in cores, rounded up; infinite without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return math.inf
    return math.inf if quota == "max" else math.ceil(int(quota) / int(period))
