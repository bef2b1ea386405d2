"""How long does a step take? Each layer alone, and all layers at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from gpu_checks.bench import Bench, BlocksOfSteps, Table, seconds_of
from syncpretrain.backends.cuda_fused import has_tensor_cores
from syncpretrain.kernels.precision import PRECISIONS

__all__ = ["all_layers", "one_layer"]

PATIENCE = 600.0  # seconds for the threads of a round
Way = Callable[[Bench, list[BlocksOfSteps]], None]


def one_layer(bench: Bench) -> Table:
    """Return the microseconds of a step of each layer alone, and of queueing it."""
    head = ("Layer", "Products", "in parts", "queued in", "recorded")
    return (*head, "whole", "queued in", "recorded"), _of_layers(bench)


def _of_layers(bench: Bench) -> Iterator[list[str]]:
    for precision, layer in product(PRECISIONS, range(1, bench.depth + 1)):
        row = [bench.name(layer), precision]
        for whole in _kinds(bench):
            for recorded in (False, True):
                own = {"whole": whole, "recorded": recorded, "precision": precision}
                name = f"{' '.join(row[:2])}, {_way(whole, recorded)}"
                row += bench.cells(name, partial(_times, bench, layer, **own), 2 - recorded)
        yield row


def _times(bench: Bench, layer: int, *, recorded: bool, **own: Any) -> list[str]:
    """Return the microseconds of a step, and of queueing it where each launch is queued."""
    queued, done = BlocksOfSteps(bench, layer, recorded=recorded, **own).times()
    return [f"{done:.1f}"] if recorded else [f"{done:.1f}", f"{queued:.1f}"]


def _kinds(bench: Bench) -> tuple[bool, ...]:
    """Return whether steps can be whole: not only in parts."""
    return (False, True) if has_tensor_cores(bench.backend.xp, bench.device) else (False,)


def _way(whole: bool, recorded: bool) -> str:
    return f"{'whole' if whole else 'in parts'}, {'recorded' if recorded else 'as they are'}"


def all_layers(bench: Bench) -> Table:
    """Return the microseconds of a round, a step of each layer, one after another and at once."""
    return ("Steps", "in turns", "at once", "by threads"), _of_rounds(bench)


def _of_rounds(bench: Bench) -> Iterator[Sequence[str]]:
    for whole, recorded in product(_kinds(bench), (False, True)):
        name = _way(whole, recorded)
        yield from bench.rows_of(name, _of_round(bench, name, whole=whole, recorded=recorded))


def _of_round(bench: Bench, name: str, *, whole: bool, recorded: bool) -> Iterator[list[str]]:
    layers = [
        BlocksOfSteps(bench, layer, whole=whole, recorded=recorded)
        for layer in range(1, bench.depth + 1)
    ]
    row = [name]
    for way in (_in_turns, _at_once, _by_threads):

        def times(way: Way = way) -> list[str]:
            seconds = seconds_of(lambda: way(bench, layers), bench.repeats)
            return [f"{layers[0].of_a_step(seconds):.1f}"]

        row += bench.cells(f"{name}, {way.__name__}", times)
    yield row


def _in_turns(bench: Bench, layers: list[BlocksOfSteps]) -> None:
    """Work a layer after another."""
    for layer in layers:
        layer.work(bench.blocks)
        layer.rbm.stream.synchronize()


def _at_once(bench: Bench, layers: list[BlocksOfSteps]) -> None:
    """Queue a block of each layer after another, and wait at the end."""
    for _ in range(bench.blocks):
        for layer in layers:
            layer.work(1)
    bench.backend.synchronize()


def _by_threads(bench: Bench, layers: list[BlocksOfSteps]) -> None:
    """Work each layer in a thread of its own."""
    failures: list[BaseException] = []

    def worker(layer: BlocksOfSteps) -> Callable[[], None]:
        def work() -> None:
            try:
                layer.work(bench.blocks)
                layer.rbm.stream.synchronize()
            except BaseException as error:  # raised by the caller
                failures.append(error)

        return work

    threads = [threading.Thread(target=worker(layer), daemon=True) for layer in layers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), f"not done in {PATIENCE:.0f} s"
