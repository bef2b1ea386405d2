"""The runtime that executes a schedule: serial, threads, processes or ranks of an MPI job.

A run imports the modules of processes and of ranks only if its workers are there.
"""

from __future__ import annotations

from collections.abc import Callable

from syncpretrain.backends.base import Backend
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.pretraining.memory import pretraining_bytes, shard_bytes
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.workers.activations import Split
from syncpretrain.workers.epochs import LinkedEpochs
from syncpretrain.workers.threads import SerialRuntime, ThreadsRuntime
from syncpretrain.workers.versions import Versions
from syncpretrain.workers.worker import EpochsRun

Runtime = LinkedEpochs | SerialRuntime


def _processes(run: EpochsRun) -> Runtime:
    from syncpretrain.workers.processes import ProcessesRuntime

    return ProcessesRuntime(run)


def _mpi(run: EpochsRun) -> Runtime:
    from syncpretrain.cluster.job import member
    from syncpretrain.workers.ranks.epochs import RanksRuntime

    return RanksRuntime(run, member())


RUNTIMES: dict[str, Callable[[EpochsRun], Runtime]] = {
    "serial": lambda run: SerialRuntime(run.workers(), run.stop),
    "threads": lambda run: ThreadsRuntime(run.workers(), run.stop, run.times),
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
