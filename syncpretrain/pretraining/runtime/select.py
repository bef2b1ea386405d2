"""The runtime that executes a schedule: serial, threads or processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from syncpretrain.pretraining.runtime.base import Runtime
from syncpretrain.pretraining.runtime.processes import ProcessesRuntime
from syncpretrain.pretraining.runtime.serial import SerialRuntime
from syncpretrain.pretraining.runtime.threads import ThreadsRuntime
from syncpretrain.pretraining.runtime.versions import Versions
from syncpretrain.pretraining.runtime.worker import Inputs, LayerWorker

__all__ = ["RUNTIMES", "runtime_for"]

Hire = Callable[[Inputs], LayerWorker]
Build = Callable[[Sequence[Hire], Versions, int, Callable[[], bool]], Runtime]


def _serial(
    hires: Sequence[Hire], versions: Versions, blas_threads: int, stop: Callable[[], bool]
) -> Runtime:
    return SerialRuntime([hire(versions) for hire in hires], stop)


def _threads(
    hires: Sequence[Hire], versions: Versions, blas_threads: int, stop: Callable[[], bool]
) -> Runtime:
    return ThreadsRuntime([hire(versions) for hire in hires], stop)


def _processes(
    hires: Sequence[Hire], versions: Versions, blas_threads: int, stop: Callable[[], bool]
) -> Runtime:
    return ProcessesRuntime(list(hires), versions, blas_threads)


RUNTIMES: dict[str, Build] = {"serial": _serial, "threads": _threads, "processes": _processes}


def runtime_for(
    name: str,
    hires: Sequence[Hire],
    versions: Versions,
    *,
    blas_threads: int,
    stop: Callable[[], bool],
) -> Runtime:
    """Return the runtime of a name, to be entered as a context.

    Parameters
    ----------
    name : str
        ``serial``, ``threads`` or ``processes``.
    hires : sequence of callable
        One a layer: builds its worker, here or in a process of its own.
    versions : Versions
        What the workers read.
    blas_threads : int
        BLAS threads of each process that is started.
    stop : callable
        Asked between minibatches whether to stop, by the workers of this process.
    """
    return RUNTIMES[name](hires, versions, blas_threads, stop)
