"""The process of one streamed layer: a block of minibatches an order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from syncpretrain.kernels.program import PhaseRunner, Phases
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.pretraining.runtime.child_loop import sendable, serve
from syncpretrain.pretraining.runtime.restarts.streamed import KeptStream
from syncpretrain.pretraining.runtime.streamed.layer import StreamedLayer
from syncpretrain.pretraining.runtime.streamed.messages import (
    Answer,
    GiveLayer,
    GiveState,
    Processed,
    StreamJob,
    StreamOrder,
)
from syncpretrain.schedule.stream import Block

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Work for the parent at the other end of a socket, until it closes that."""
    serve(descriptor, _work, lambda error: _failed(error, 0, 1))


def _work(job: StreamJob, take: Callable[[], StreamOrder], send: Callable[[Any], None]) -> None:
    numbers = job.numbers.map()
    lent = numbers[len(numbers) // 2 + job.layer :]  # the layer's number is the first
    pool = WorkerPool(job.replicas, f"syncpretrain-layer-{job.layer}", job.times)

    def stop() -> bool:
        return bool(numbers[0])

    def run(phases: Phases, shards: int) -> None:
        pool.run(phases, shards, 1 + int(lent[0]))

    with blas_limit(1):
        layer = _layer(job)
        keeper = None if job.kept is None else KeptStream(layer, job.kept, job.reread)
        if keeper is not None:
            keeper.go_to(int(numbers[job.layer]), run)
        layer.progress = numbers[job.layer : job.layer + 1]

        def obey(order: StreamOrder) -> Any:
            return _obeyed(layer, order, stop, run)

        while True:
            order = take()
            try:
                answer = Answer(obey(order) if keeper is None else keeper.obey(order, obey))
            except BaseException as error:  # the parent raises it
                answer = _failed(error, layer.number, layer.epoch)
            send(answer)


def _layer(job: StreamJob) -> StreamedLayer:
    (below,) = job.below.map()
    above = job.above.map(write=True)[0] if job.above is not None else None
    layer: StreamedLayer = job.layer_factory(below, above)
    return layer


def _obeyed(
    layer: StreamedLayer, order: StreamOrder, stop: Callable[[], bool], run: PhaseRunner
) -> Any:
    """Do what an order says; return what is to be answered."""
    if isinstance(order, Block):
        results = tuple(layer.process(order, stop, run))
        return Processed(results, layer.current() if results else None, layer.busy_seconds)
    if isinstance(order, GiveLayer):
        return layer.current()
    if isinstance(order, GiveState):
        return layer.state(order.above)
    layer.load_state(order.state)
    return None


def _failed(error: BaseException, layer: int, epoch: int) -> Answer:
    error, trace = sendable(error, layer, epoch)
    return Answer(None, error, trace)
