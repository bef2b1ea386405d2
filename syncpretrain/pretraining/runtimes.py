"""The runtime that executes a schedule: serial, threads, processes or ranks of an MPI job.

A run imports the modules of its own runtime alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from syncpretrain.backends.base import Backend
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.memory import pretraining_bytes, shard_bytes
from syncpretrain.schedule.schedule import Train
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.workers.activations import Split
from syncpretrain.workers.epochs import LinkedEpochs
from syncpretrain.workers.ranks.placement import RankShares
from syncpretrain.workers.restarts import Restarts
from syncpretrain.workers.versions import Versions
from syncpretrain.workers.worker import LayerWorker, WorkerFactory

if TYPE_CHECKING:
    from syncpretrain.workers.threads import SerialRuntime

Runtime = Union[LinkedEpochs, "SerialRuntime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsRun:
    """All that a runtime may need of a run by epochs.

    Attributes
    ----------
    worker_factories : sequence of callable
        One a layer: builds its worker, here or in a process of its own.
    versions : Versions
        The versions that the workers read, from :func:`versions_for`.
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
    below : callable
        Returns the versions that an epoch trains on, from layer 1 up, on the host.
    """

    worker_factories: Sequence[WorkerFactory]
    versions: Versions
    blas_threads: int
    stop: Callable[[], bool]
    times: Timeouts
    restarts: Restarts | None
    shares: RankShares
    below: Callable[[Train], Sequence[Layer]]

    def workers(self) -> list[LayerWorker]:
        """Build the workers in this process."""
        return [build(self.versions) for build in self.worker_factories]


def _serial(run: EpochsRun) -> Runtime:
    from syncpretrain.workers.threads import SerialRuntime

    return SerialRuntime(run.workers(), run.stop)


def _threads(run: EpochsRun) -> Runtime:
    from syncpretrain.workers.threads import ThreadsRuntime

    return ThreadsRuntime(run.workers(), run.stop, run.times)


def _processes(run: EpochsRun) -> Runtime:
    from syncpretrain.workers.processes import ProcessesRuntime

    own = run.worker_factories, run.versions, run.blas_threads
    return ProcessesRuntime(*own, run.times, run.restarts)


def _mpi(run: EpochsRun) -> Runtime:
    from syncpretrain.cluster.job import member
    from syncpretrain.workers.ranks.epochs import RanksRuntime, RemoteVersions

    assert isinstance(run.versions, RemoteVersions)
    own = run.worker_factories, run.versions, run.blas_threads
    return RanksRuntime(*own, member(), run.below, run.times, run.shares)


RUNTIMES: dict[str, Callable[[EpochsRun], Runtime]] = {
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
    hidden = settings.layers[1:]
    if settings.runtime != "mpi":
        sizes = {"examples": sum(map(len, data)), "batch_size": settings.batch_size}
        beside = pretraining_bytes(settings.shapes, **sizes) + shard_bytes(settings)
        return Versions(data, hidden, backend=backend, beside=beside)
    from syncpretrain.cluster.job import check_ranks
    from syncpretrain.workers.ranks.epochs import RemoteVersions

    check_ranks(settings.runtime, settings.precision)
    matrices = 1 if settings.tied else 2
    numbers = [matrices * shape.weights + sum(shape.biases) for shape in settings.shapes]
    return RemoteVersions(data, hidden, parameters=numbers, backend=backend)


def workers_of(settings: PretrainSettings) -> int:
    """Return the number of workers of all layers together.

    By default there are as many as cores. On ranks, and on a device, where a worker only waits,
    there are as many as the layers can use.
    """
    if settings.runtime == "serial":
        return 1
    elsewhere = settings.runtime == "mpi" or settings.backend.startswith("cupy")
    return settings.workers or (sum(settings.replicas) if elsewhere else usable_cores())
