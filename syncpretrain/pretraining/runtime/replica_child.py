"""The process of a replica of asynchronous training: a task an order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.replicas.pool import Failed
from syncpretrain.parallel.replicas.steps import LocalSteps, ReplicaFactory, answer
from syncpretrain.pretraining.runtime.child_loop import sendable, serve
from syncpretrain.pretraining.runtime.shared_activations import SharedSplits

__all__ = ["ReplicaJob", "main"]


@dataclass(frozen=True, slots=True)
class ReplicaJob:
    """What the process of a replica is sent first.

    ``data`` is shared memory with an array each, ``vectors`` that with the two vectors of each
    replica, of which ``number`` is this one.
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
