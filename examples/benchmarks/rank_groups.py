"""Time of a layer's steps on a group of MPI ranks, beside threads of one process.

    mpiexec -n 3 python examples/benchmarks/rank_groups.py
    mpiexec -n 3 python examples/benchmarks/rank_groups.py --batch-sizes 100,1000 --rounds 5
    mpiexec -n 5 python examples/benchmarks/rank_groups.py --ranks 1,2,4
    mpiexec -n 3 python examples/benchmarks/rank_groups.py --cpu

Every minibatch is cut into as many shards, whoever computes them, so that all have the same bits;
the last column shows them. Times are medians over the epochs of all rounds, which take turns.
``--cpu`` prints the CPU time of each rank instead, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import median

from syncpretrain.cluster.job import joined
from syncpretrain.data import load_dataset
from syncpretrain.events import EpochFinished, Event
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.pretraining.on_ranks import on_every_rank
from syncpretrain.settings import settings_from

LAYERS = (784, 1000)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=10000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-sizes", type=numbers, default=[100, 1000])
    parser.add_argument("--ranks", type=numbers, default=[1, 2])
    parser.add_argument("--split", choices=["examples", "units"], default="examples")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    cases = [
        (batch_size, runtime, workers)
        for batch_size in options.batch_sizes
        for runtime in ("threads", "mpi")
        for workers in options.ranks
    ]
    if options.cpu:
        show_cpu(cases, options)
    else:
        show_times(cases, options)


def show_cpu(cases: list[tuple[int, str, int]], options: argparse.Namespace) -> None:
    """Print the CPU time of a step on each rank: that of more epochs less that of one."""
    for case in cases:
        spent = []
        for epochs in (1, 1 + options.epochs):
            before = time.process_time()
            on_every_rank(partial(timed, case, options, epochs))
            spent.append(time.process_time() - before)
        ms = 1e3 * (spent[1] - spent[0]) * case[0] / (options.epochs * options.examples)
        print(f"{case}: rank {joined().rank}: {ms:.2f} ms of CPU a step", flush=True)


def show_times(cases: list[tuple[int, str, int]], options: argparse.Namespace) -> None:
    """Print the time of a step."""
    found: dict[tuple[int, str, int], list[float]] = {}
    bits: dict[tuple[int, str, int], str] = {}
    for _ in range(options.rounds):
        for case in cases:
            seconds, bits[case] = on_every_rank(partial(timed, case, options, options.epochs))
            found.setdefault(case, []).extend(seconds)
    if joined().rank:
        return
    for case, times in found.items():
        batch_size, runtime, workers = case
        ms = [1e3 * x * batch_size / options.examples for x in times]
        place = "ranks" if runtime == "mpi" else "threads"
        print(
            f"batch {batch_size:5}, {workers} {place:7}: {median(ms):7.2f} ms a step"
            f" ({min(ms):.2f} to {max(ms):.2f})  {bits[case][:8]}"
        )


def timed(
    case: tuple[int, str, int], options: argparse.Namespace, epochs: int
) -> tuple[list[float], str]:
    """Return the seconds of each epoch, and the bits."""
    batch_size, runtime, workers = case
    settings = settings_from(
        LAYERS,
        epochs=epochs,
        batch_size=batch_size,
        replicas=workers,
        workers=workers,
        shards=max(options.ranks),
        split=options.split,
        runtime=runtime,
        backend="numpy",
    ).pretrain
    seconds: list[float] = []

    def observe(event: Event) -> None:
        if isinstance(event, EpochFinished):
            seconds.append(event.time - event.started)

    data = load_dataset("mnist").train[: options.examples]
    stack = driver_for(settings, data, observers=[observe]).run()
    return seconds, stack.parameters_sha256


if __name__ == "__main__":
    main()
