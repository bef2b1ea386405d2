"""Replicas of asynchronous training: in turns, or one a thread, a process or a rank."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.errors import StalledError
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.replicas.pool import (
    Failed,
    ReplicaPool,
    ReplicaThread,
    Started,
    StartedReplicas,
)
from syncpretrain.parallel.replicas.replica_count import Trial
from syncpretrain.parallel.replicas.server import ParameterServer
from syncpretrain.parallel.replicas.steps import Fleet, LocalSteps, ReplicaFactory, answer
from syncpretrain.parallel.replicas.turns import ReplicaTurns
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.settings.fields import AsyncFields
from syncpretrain.workers.child_start import sendable, serve
from syncpretrain.workers.layer_process import LayerProcess, RemoteTraceback, end_all
from syncpretrain.workers.shared_memory import SharedSplits
from syncpretrain.workers.split import Split

__all__ = ["ReplicaJob", "main", "replicas_in"]


REPLICA_CHILD = "syncpretrain.workers.replicas"


def replicas_in(
    runtime: str,
    server: ParameterServer,
    rules: AsyncFields,
    factory: ReplicaFactory,
    data: Sequence[Array],
    *,
    replicas: int,
    exchange: str = "messages",
    report: Callable[[str], None],
    times: Timeouts,
) -> Fleet:
    """Return replicas in a runtime, to be entered as a context.

    Parameters
    ----------
    runtime : str
        ``serial``, ``threads``, ``processes`` or ``mpi``.
    server : ParameterServer
    rules : AsyncFields
        Without ``simulate_staleness``, changes of ``serial`` replicas are applied ``replicas`` - 1
        changes late, as of replicas that all train at the same speed.
    factory : callable
        Returns a replica, given the data. For processes it is one that can be sent to them.
    data : sequence of ndarray of shape (rows, width)
    replicas : int
    exchange : str
        How replicas on ranks exchange parameters: by ``messages``, or through ``windows``.
    report : callable
        Given a sentence for the user.
    times : Timeouts
    """
    if runtime == "serial":
        late = replicas - 1 if rules.simulate_staleness is None else rules.simulate_staleness
        return ReplicaTurns(server, [factory(data) for _ in range(replicas)], rules, late)
    trial = Trial(replicas) if rules.trim_replicas else None
    own = _kind(runtime, exchange)(server, factory, data, replicas, times)
    return ReplicaPool(own.server, rules, own.start, own.end, report, times, trial)


def _kind(runtime: str, exchange: str) -> type[StartedReplicas]:
    if runtime == "threads":
        return _Threads
    if runtime == "processes":
        return _Processes
    from syncpretrain.workers.ranks.replicas import RankReplicas, WindowReplicas

    return WindowReplicas if exchange == "windows" else RankReplicas


class _Threads(StartedReplicas):
    """Threads of this process."""

    _threads: Sequence[ReplicaThread] = ()

    def start(self) -> Started:
        found: list[tuple[ReplicaThread, Array, Array]] = []
        threads = self._threads = list[ReplicaThread]()
        for number in range(1, self._replicas + 1):
            fetched, change = (np.empty(self._size, np.float32) for _ in range(2))
            build = partial(self._steps, fetched, change)
            thread = ReplicaThread(f"syncpretrain-replica-{number}", build)
            threads.append(thread)
            found.append((thread, fetched, change))
        return found

    def end(self) -> None:
        for thread in self._threads:
            thread.close()
        deadline = time.monotonic() + self._times.join
        alive = [t for t in self._threads if not t.join(max(0.0, deadline - time.monotonic()))]
        self._threads = ()
        if alive:
            raise StalledError(f"{len(alive)} replicas did not end their task")

    def _steps(self, fetched: Array, change: Array) -> LocalSteps:
        return LocalSteps(self._factory(self._data), fetched, change)


class _Process(LayerProcess):
    """A process; the error of a failure has the traceback in that process as its cause."""

    def receive(self) -> Any:
        found = super().receive()
        if isinstance(found, Failed) and found.trace:
            found.error.__cause__ = RemoteTraceback(found.trace)
        return found


class _Processes(StartedReplicas):
    """Processes of this machine."""

    _processes: Sequence[LayerProcess] = ()

    def start(self) -> Started:
        processes = self._processes = list[LayerProcess]()
        # The descriptors are closed once all processes have theirs; what is mapped here stays.
        with ExitStack() as descriptors:

            def shared(memory: SharedSplits) -> SharedSplits:
                descriptors.callback(memory.close)
                return memory

            vectors = shared(SharedSplits.create((1, 1), self._size, self._replicas))
            data = tuple(shared(SharedSplits.of(Split(x, x[:0]))) for x in self._data)
            passed = [memory.descriptor for memory in (vectors, *data)]
            for number in range(self._replicas):
                process = _Process(number + 1, REPLICA_CHILD, passed, 1, self._times)
                processes.append(process)
                process.send(ReplicaJob(os.getpid(), number, self._factory, data, vectors))
            pairs: list[Any] = vectors.map(write=True)
        return [
            (process, fetched[0], change[0])
            for process, (fetched, change) in zip(processes, pairs, strict=True)
        ]

    def end(self) -> None:
        alive = end_all(self._processes, self._times.join)
        self._processes = ()
        if alive:
            raise StalledError(f"{', '.join(alive)} did not end")


@dataclass(frozen=True, slots=True)
class ReplicaJob:
    """First message to the process of a replica.

    ``data`` is one shared memory an array. ``vectors`` is shared memory with two vectors for each
    replica: the parameters that it fetched, and its change. ``number`` is this replica, from 0.
    """

    parent: int
    number: int
    factory: ReplicaFactory
    data: tuple[SharedSplits, ...]
    vectors: SharedSplits


def main(descriptor: int) -> None:
    """Work for the parent at the other end of a socket, until it closes that."""
    serve(descriptor, _work, lambda error: Failed(*sendable(error, 0, 0)))


def _work(job: ReplicaJob, take: Callable[[], Any], send: Callable[[Any], None]) -> None:
    fetched, change = job.vectors.map(write=True)[job.number]
    data = [shared.map()[0].train for shared in job.data]
    with blas_limit(1):
        steps = LocalSteps(job.factory(data), fetched[0], change[0])
        while True:
            send(answer(steps, take()))
