"""The thread budget: how many cores a run may use, and how many threads BLAS takes.

Guarantees:

* BLAS limits belong to the whole process. Overlapping limits from two threads would leave it capped
  for good (threadpoolctl issue 205), so there is one limit at a time: it is set before any worker
  starts, shared by runs that need the same, refused to one that needs another, and restored when
  the last of them ends.
* An interrupt at any moment leaves no limit behind: what is to be restored is recorded before the
  limit is set, and forgotten after it is restored.

Assumptions:

* From version 3.7 on, threadpoolctl lets only the thread that set a limit last change it, as long
  as that thread lives, and silently ignores all others. So limits are set and restored by threads
  that end at once: then any run can restore what another one set, and none keeps the control for
  good.
* A library of BLAS is loaded by the import of a module. So the process is looked through, for some
  ms, once after imports and not in every run.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from syncpretrain.errors import SettingsError

_lock = threading.Lock()
_active: list[blas_limit] = []  # of every run now inside one, all of the same number
# What restores the counts, the libraries that have them, and the counts found.
_restore: list[tuple[Callable[[], None], ThreadpoolController, list[int]]] = []

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
    return min([usable_cores(), *_counts(loaded_libraries())])


def loaded_libraries() -> ThreadpoolController:
    """Return the libraries with threads of their own that the process has loaded."""
    return _libraries_beside(len(sys.modules))


@lru_cache(maxsize=1)
def _libraries_beside(modules: int) -> ThreadpoolController:
    return ThreadpoolController()


def blas_environment(threads: int) -> dict[str, str]:
    """Return environment variables by which BLAS starts at most ``threads`` threads."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


class blas_limit:  # noqa: N801 - used like a function, in a with statement
    """Limit the number of BLAS threads, in the whole process, as long as the context lasts.

    An interrupt at any moment of entering it leaves no limit behind.

    Raises
    ------
    SettingsError
        If another thread of this process holds it at another number.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._openmp = ExitStack()

    def __enter__(self) -> None:
        # Not a generator: between its yield and the with block an interrupt would find no handler.
        try:
            self._set()
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *ended: object) -> None:
        try:
            self._restore()
        except BaseException:  # an interrupt, which must not keep it from being restored
            self._restore()
            raise

    def _set(self) -> None:
        with _lock:
            held = next((limit._threads for limit in _active), self._threads)
            if held != self._threads:
                raise SettingsError(
                    f"blas_threads: got {self._threads}, but another run in this process holds"
                    f" BLAS at {held}; let it end first, or start this one in a process of its own"
                )
            # Before the limit is set, so that an interrupt in between restores it.
            _active.append(self)
            if len(_active) == 1:
                _limit(self._threads)
        # With OpenMP a limit belongs to the thread that sets it, so each run sets its own, behind
        # the shared one, and restores it in the thread that leaves.
        for library in loaded_libraries().select(threading_layer="openmp").lib_controllers:
            if library.user_api == "blas":
                self._openmp.callback(library.set_num_threads, library.num_threads)
                library.set_num_threads(self._threads)

    def _restore(self) -> None:
        self._openmp.close()
        with _lock:
            if self in _active:
                _active.remove(self)
            if not _active:
                _restore_found()


@contextmanager
def openmp_limit(threads: int) -> Iterator[None]:
    """Limit the threads of OpenMP that this thread starts, such as in scikit-learn's code."""
    with ExitStack() as found:
        for library in loaded_libraries().select(user_api="openmp").lib_controllers:
            found.callback(library.set_num_threads, library.num_threads)
            library.set_num_threads(threads)
        yield


def _limit(threads: int) -> None:
    """Set the limit of the whole process, which :func:`_restore_found` undoes."""
    # An interrupt may have kept the last limit from being restored: what is found below must be the
    # caller's own counts.
    _restore_found()
    libraries = loaded_libraries()
    found = _counts(libraries)

    def limit() -> None:  # where no signal is handled
        unlimited = libraries.limit(limits=None)  # knows what to restore
        _restore.append((unlimited.restore_original_limits, libraries, found))
        libraries.limit(limits=threads, user_api="blas")

    _in_thread(limit)
    # The caller may hold the control by a limit of its own: then only its thread can set another.
    if any(n > threads for n in _counts(libraries)):
        libraries.limit(limits=threads, user_api="blas")
    held = max(_counts(libraries), default=0)
    if held > threads:
        raise SettingsError(
            f"blas_threads: got {threads}, but another thread of this process holds BLAS at {held}"
            " through threadpoolctl; let it end first, or start this run in a process of its own"
        )


def _restore_found() -> None:
    while _restore:
        restore, libraries, found = _restore[-1]
        _in_thread(restore)
        if _counts(libraries) != found:
            restore()
        _restore.pop()  # last, so that after an interrupt the next limit tries again


def _counts(libraries: ThreadpoolController) -> list[int]:
    return [int(info["num_threads"]) for info in libraries.info() if info["user_api"] == "blas"]


def _in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread that ends with it; an interrupt waits until it has ended."""
    with ThreadPoolExecutor(1, thread_name_prefix="syncpretrain-blas") as pool:
        return pool.submit(function).result()


def _quota() -> float:
    """Return the CPU quota of the control group in cores, rounded up; infinite without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return math.inf
    return math.inf if quota == "max" else math.ceil(int(quota) / int(period))


def at_once(threads: int, calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return what functions return; they are called in threads of their own, the last ones first.

    After an error or an interrupt the others are left out. Both are raised when the functions that
    have begun have ended, so that none of them still holds a limit; a second interrupt at once.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="syncpretrain-call") as pool:
        found = [pool.submit(call) for call in reversed(calls)]
        try:
            wait(found, return_when=FIRST_EXCEPTION)  # done are then all, or the one that failed
            return [future.result() for future in found if future.done()][::-1]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
