"""Runtimes, hand-overs and learners of the contract suite: a new runtime is a line of RUNTIMES."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from layerprocesses import workers
from localranks import LocalRanks, local_ranks

from syncpretrain.cluster.transport import last_beat
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.pretraining.runtimes import RUNTIMES as KNOWN
from syncpretrain.pretraining.training import Driver
from syncpretrain.schedule.schedule import Train
from syncpretrain.settings import settings_from
from syncpretrain.workers.interface import Message
from syncpretrain.workers.state import ASYNC_STATE, EPOCHS_STATE, STREAM_STATE
from syncpretrain.workers.worker import LayerWorker

HANDOFFS = {
    "epoch": {"handoff": "epoch", "workers": 3},
    "minibatch": {"handoff": "minibatch", "delay": 0.4, "workers": 3},
    "async": {"schedule": "async"},  # one replica, which reads what it wrote
    "async minibatch": {"schedule": "async", "handoff": "minibatch", "push_every": 4},
}
STATES = {
    "epoch": EPOCHS_STATE,
    "minibatch": STREAM_STATE,
    "async": ASYNC_STATE,
    "async minibatch": ASYNC_STATE,
}
EPOCH, STREAM, ASYNC = ("epoch",), ("epoch", "minibatch"), ("async", "async minibatch")
LEARNERS: dict[str, dict[str, Any]] = {
    "rbm": {},
    "autoencoder": {"model": "autoencoder", "hidden_units": "tanh", "learning_rate": 0.01},
    "denoising": {"model": "denoising", "tied": False, "loss": "squared"},
    "convolutional": {"layers": "1x4x4,conv:4x2,10,5"},
    "convolutional autoencoder": {"layers": "1x4x4,conv:3x3,10,5", "model": "autoencoder"},
}
OF_DRIVERS = {"observers", "replay", "times", "restarts"}
USUAL = {"layers": (16, 12, 8, 5), "epochs": (2, 1, 2), "batch_size": 40, "seed": 3}


def kill_process(around: None, layer: int) -> None:
    """Kill the process of a layer."""
    child = workers()[layer]
    child.send_signal(signal.SIGSTOP)  # so that it cannot be done before it is killed
    child.kill()


def lose_rank(around: LocalRanks, layer: int) -> None:
    """Have the rank of a layer seem to have ended."""
    peers = around.own.transport.peers
    peers.record(layer, last_beat(peers.beats[layer]))


@dataclass(frozen=True)
class Runtime:
    """A runtime, with what surrounds its runs, and what its errors say."""

    name: str
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    options: Mapping[str, Any] = field(default_factory=dict)
    handoffs: Sequence[str] = tuple(HANDOFFS)
    place: str = ""  # in an error of a layer, behind its epoch
    kill: Callable[[Any, int], None] | None = None
    death: str = ""  # in the error where a worker of a layer was killed
    replaces: bool = False  # whether it starts another in place of a worker that was killed


class Futures:
    """The toy: a runtime of the standard library's futures."""

    def __init__(self, workers: Sequence[LayerWorker], stop: Callable[[], bool]) -> None:
        self._workers, self._asked, self._stops = workers, stop, False
        self._pool = ThreadPoolExecutor(len(workers))
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def __enter__(self) -> Futures:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._pool.shutdown()

    def submit(self, command: Train) -> None:
        self._pool.submit(self._execute, command)

    def _execute(self, command: Train) -> None:
        worker = self._workers[command.layer - 1]
        self._messages.put(worker.execute(command, lambda: self._stops or self._asked()))

    def set_workers(self, layer: int, workers: int) -> None:
        pass

    def fraction(self, layer: int) -> float:
        return self._workers[layer - 1].fraction

    def stop(self) -> None:
        self._stops = True

    def dump_stacks(self) -> None:
        pass

    def wait(self, timeout: float) -> Message | None:
        try:
            return self._messages.get(timeout=timeout)
        except queue.Empty:
            return None


@contextmanager
def futures() -> Iterator[None]:
    """Add the toy to the table of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KNOWN, "futures", lambda run: Futures(run.workers(), run.stop))
        yield


SHARED = {"shards": (4, 2, 1), "replicas": (4, 2, 1)}
ON_RANK = {"place": r" on rank \d on .*", "kill": lose_rank}
ON_RANK["death"] = r"rank \d on .* \(process \d+\) has left"
IN_PROCESS = {"kill": kill_process, "death": r"its process \d+ was killed by SIGKILL"}
IN_PROCESS["replaces"] = True
RUNTIMES = {
    "threads": Runtime("threads"),
    "threads that share layers": Runtime(
        "threads", options=SHARED | {"workers": 4}, handoffs=STREAM
    ),
    "processes": Runtime("processes", **IN_PROCESS),
    "processes that share layers": Runtime(
        "processes", options=SHARED, handoffs=STREAM, **IN_PROCESS
    ),
    "ranks": Runtime("mpi", partial(local_ranks, 4), **ON_RANK),
    "ranks that share layers": Runtime(
        "mpi", partial(local_ranks, 7), options=SHARED, handoffs=STREAM, **ON_RANK
    ),
    "layers that share ranks": Runtime("mpi", partial(local_ranks, 3), handoffs=STREAM, **ON_RANK),
    "futures": Runtime("futures", futures, handoffs=EPOCH),
}


def runs_of(
    *handoffs: str,
    serial: bool = False,
    shared: bool = True,
    mortal: bool = False,
    replaced: bool = False,
) -> Any:
    """Parametrize a test by every runtime, and by those of some hand-overs that it has.

    ``serial`` adds the oracle itself, and without ``shared`` no layer has several workers.
    ``mortal`` leaves out the runtimes whose workers cannot be killed alone, ``replaced`` those
    that start no other worker then.
    """
    rows = ({"serial": Runtime("serial")} if serial else {}) | RUNTIMES
    found = [
        pytest.param(row, handoff, id=f"{name}-{handoff}")
        for (name, row), handoff in product(rows.items(), handoffs or HANDOFFS)
        if handoff in row.handoffs
        and (shared or not row.options)
        and (row.kill is not None or not mortal)
        and (row.replaces or not replaced)
    ]
    return pytest.mark.parametrize(("runtime", "handoff"), found)


def driver(bits: np.ndarray, runtime: Runtime, handoff: str, **options: Any) -> Driver:
    """Return what pretrains; some options are the driver's own."""
    own = {name: options.pop(name) for name in OF_DRIVERS & options.keys()}
    given = USUAL | HANDOFFS[handoff] | runtime.options | options
    settings = settings_from(given.pop("layers"), **given).pretrain
    settings = msgspec.structs.replace(settings, runtime=runtime.name)  # unchecked: or no toy
    return driver_for(settings, bits, bits[:50], **own)
