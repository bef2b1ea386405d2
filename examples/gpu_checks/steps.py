"""How long does a step take? Each layer alone, and all layers at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from gpu_checks.bench import Bench, BlocksOfSteps, Table, seconds_of

__all__ = ["all_layers", "one_layer"]

PATIENCE = 600.0  # seconds for the threads of a round


def one_layer(bench: Bench) -> Table:
    """Return the microseconds of a step of each layer alone, and of those to queue it."""
    head = ("Layer", "in parts", "queued in", "recorded", "whole", "queued in", "recorded")
    return head, _of_layers(bench)


def _of_layers(bench: Bench) -> Iterator[list[str]]:
    for layer in range(1, bench.depth + 1):
        row = [bench.name(layer)]
        for whole in (False, True):
            eager = BlocksOfSteps(bench, layer, whole=whole, recorded=False)
            if eager.is_whole != whole:  # a GPU without tensor cores for TF32
                row += ["", "", ""]
                continue
            queued, done = eager.times()
            graph = BlocksOfSteps(bench, layer, whole=whole, recorded=True).times()
            row += [f"{done:.1f}", f"{queued:.1f}", f"{graph.done:.1f}"]
        yield row


def all_layers(bench: Bench) -> Table:
    """Return the microseconds of a round, a step of each layer, one after another and at once."""
    return ("Steps", "in turns", "at once", "by threads"), _of_rounds(bench)


def _of_rounds(bench: Bench) -> Iterator[list[str]]:
    for whole, recorded in ((False, False), (False, True), (True, False), (True, True)):
        layers = [
            BlocksOfSteps(bench, layer, whole=whole, recorded=recorded)
            for layer in range(1, bench.depth + 1)
        ]
        if not all(layer.is_whole == whole for layer in layers):
            continue
        name = f"{'whole' if whole else 'in parts'}, {'recorded' if recorded else 'as they are'}"
        ways = (_in_turns, _at_once, _by_threads)
        times = [seconds_of(lambda way=way: way(bench, layers), bench.repeats) for way in ways]  # type: ignore[misc]  # noqa: B023
        yield [name, *(f"{layers[0].of_a_step(seconds):.1f}" for seconds in times)]


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
