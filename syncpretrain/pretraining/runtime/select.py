"""The runtime that executes a schedule: serial, threads, processes or ranks of an MPI job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from syncpretrain.backends.base import Backend
from syncpretrain.cluster.job import check_ranks, member
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.pretraining.runtime.base import Runtime
from syncpretrain.pretraining.runtime.processes import ProcessesRuntime
from syncpretrain.pretraining.runtime.ranks.chain_versions import ChainVersions
from syncpretrain.pretraining.runtime.ranks.placement import UNSHARED, RankShares
from syncpretrain.pretraining.runtime.ranks.runtime import RanksRuntime
from syncpretrain.pretraining.runtime.restarts.restarts import Restarts
from syncpretrain.pretraining.runtime.serial import SerialRuntime
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.threads import ThreadsRuntime
from syncpretrain.pretraining.runtime.versions import Versions
from syncpretrain.pretraining.runtime.worker import WorkerFactory
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["RUNTIMES", "runtime_for", "versions_for", "workers_of"]

Build = Callable[
    [Sequence[WorkerFactory], Versions, int, Callable[[], bool], Timeouts, Restarts, RankShares],
    Runtime,
]


def _serial(
    worker_factories: Sequence[WorkerFactory],
    versions: Versions,
    blas_threads: int,
    stop: Callable[[], bool],
    times: Timeouts,
    restarts: Restarts,
    shares: RankShares,
) -> Runtime:
    return SerialRuntime([build(versions) for build in worker_factories], stop)


def _threads(
    worker_factories: Sequence[WorkerFactory],
    versions: Versions,
    blas_threads: int,
    stop: Callable[[], bool],
    times: Timeouts,
    restarts: Restarts,
    shares: RankShares,
) -> Runtime:
    return ThreadsRuntime([build(versions) for build in worker_factories], stop, times)


def _processes(
    worker_factories: Sequence[WorkerFactory],
    versions: Versions,
    blas_threads: int,
    stop: Callable[[], bool],
    times: Timeouts,
    restarts: Restarts,
    shares: RankShares,
) -> Runtime:
    return ProcessesRuntime(list(worker_factories), versions, blas_threads, times, restarts)


def _mpi(
    worker_factories: Sequence[WorkerFactory],
    versions: Versions,
    blas_threads: int,
    stop: Callable[[], bool],
    times: Timeouts,
    restarts: Restarts,
    shares: RankShares,
) -> Runtime:
    assert isinstance(versions, ChainVersions)
    return RanksRuntime(list(worker_factories), versions, blas_threads, member(), times, shares)


RUNTIMES: dict[str, Build] = {
    "serial": _serial,
    "threads": _threads,
    "processes": _processes,
    "mpi": _mpi,
}


def versions_for(settings: PretrainSettings, data: Split, backend: Backend) -> Versions:
    """Return the versions of a run, in the form that its runtime needs.

    Raises
    ------
    SettingsError
        If it is MPI, and there are no ranks.
    """
    check_ranks(settings.runtime)
    kind = ChainVersions if settings.runtime == "mpi" else Versions
    return kind(data, settings.layers[1:], backend=backend)


def workers_of(settings: PretrainSettings) -> int:
    """Return the number of workers of all layers together; on ranks as many as they can use."""
    if settings.runtime == "serial":
        return 1
    usual = sum(settings.replicas) if settings.runtime == "mpi" else usable_cores()
    return settings.workers or usual


def runtime_for(
    name: str,
    worker_factories: Sequence[WorkerFactory],
    versions: Versions,
    *,
    blas_threads: int,
    stop: Callable[[], bool],
    times: Timeouts = TIMEOUTS,
    restarts: Restarts | None = None,
    shares: RankShares = UNSHARED,
) -> Runtime:
    """Return the runtime of a name, to be entered as a context.

    Parameters
    ----------
    name : str
        ``serial``, ``threads``, ``processes`` or ``mpi``.
    worker_factories : sequence of callable
        One a layer: builds its worker, here or in a process of its own.
    versions : Versions
        What the workers read, as of :func:`versions_for`.
    blas_threads : int
        BLAS threads of each process that is started.
    stop : callable
        Asked between minibatches whether to stop, by the workers of this process.
    times : Timeouts
        How long the caller and the workers wait for each other.
    restarts : Restarts, optional
        For processes that die.
    shares : RankShares
        How many ranks may share a layer.
    """
    own = restarts or Restarts()
    return RUNTIMES[name](worker_factories, versions, blas_threads, stop, times, own, shares)
