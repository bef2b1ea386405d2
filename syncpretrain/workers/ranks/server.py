"""The loop of a rank that does not lead: it holds layers, run after run, until rank 0 is done."""

from __future__ import annotations

import faulthandler
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from syncpretrain.cluster.transport import Transport
from syncpretrain.errors import WorkerError
from syncpretrain.workers.interface import STDERR
from syncpretrain.workers.ranks.epoch_worker import EpochWorker
from syncpretrain.workers.ranks.messages import (
    CONTROL,
    DUMP,
    EpochAssignment,
    ReplicaAssignment,
    RunEnded,
    RunJob,
    RunOver,
    ServerAssignment,
    StreamAssignment,
    port,
)
from syncpretrain.workers.ranks.replicas import ReplicaWorker, ServerWorker
from syncpretrain.workers.ranks.stream_worker import StreamWorker
from syncpretrain.workers.ranks.worker import RankWorker, RankWorkers

__all__ = ["follow"]

RANK_LOOK_SECONDS = 0.25  # between two looks at rank 0 and at the progress of the layers
HELD: dict[type, type[RankWorker[Any]]] = {
    EpochAssignment: EpochWorker,
    StreamAssignment: StreamWorker,
    ReplicaAssignment: ReplicaWorker,
    ServerAssignment: ServerWorker,
}


def follow(transport: Transport) -> RunEnded:
    """Hold layers for rank 0, until it says what became of all; return that.

    Raises
    ------
    WorkerError
        If rank 0 is lost.
    """
    transport.listen(DUMP, lambda source, thing: faulthandler.dump_traceback(STDERR))
    held: RankWorkers | None = None
    with _without_signals():
        try:
            while True:
                found = transport.take(CONTROL, RANK_LOOK_SECONDS)
                if held is not None:
                    held.report_progress()
                if found is None:
                    how = transport.lost(0)
                    if how is not None:
                        raise WorkerError(f"{transport.peers.name(0)} {how}")
                    continue
                message = found[1]
                if isinstance(message, RunJob):
                    held = RankWorkers(transport, message, HELD)
                elif isinstance(message, RunOver):
                    alive = held.close() if held is not None else []
                    held = None
                    transport.send(0, port(message.run, "left"), alive)
                else:
                    ended: RunEnded = message
                    return ended
        finally:
            if held is not None:
                held.close()


@contextmanager
def _without_signals() -> Iterator[None]:
    """Leave Ctrl-C and SIGTERM, which reach every rank, to rank 0, which says what to do."""
    found: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for stopping in (signal.SIGINT, signal.SIGTERM):
                found[stopping] = signal.signal(stopping, signal.SIG_IGN)
        yield
    finally:
        for signum, handler in found.items():
            signal.signal(signum, handler)
