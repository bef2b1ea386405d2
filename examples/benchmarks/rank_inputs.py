"""Bytes and time of the epoch hand-over between MPI ranks: activations, or parameters alone.

    mpiexec -n 4 python examples/benchmarks/rank_inputs.py
    mpiexec -n 4 python examples/benchmarks/rank_inputs.py --bandwidth 125e6 --latency 100e-6

The ways take turns, with the same bits, which the last column shows. ``--bandwidth`` in bytes a
second delays what comes to a rank, as over a link.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import median

from _links import Link, emulate

from syncpretrain.cluster.job import joined
from syncpretrain.data import load_dataset
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.pretraining.on_ranks import on_every_rank
from syncpretrain.settings import settings_from
from syncpretrain.workers.ranks import epochs
from syncpretrain.workers.ranks.epochs import layers_sent_activations

WAYS = {
    "parameters": lambda rows, hidden, parameters: frozenset[int](),
    "activations": layers_sent_activations,
}


class Counted(Link):
    """A link that counts what comes over it."""

    count = 0.0

    def due(self, sent: float, size: float) -> float:
        self.count += size
        return super().due(sent, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--layers", default="784,2000,2000,30")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bandwidth", type=float, default=1e12)
    parser.add_argument("--latency", type=float, default=0.0)
    options = parser.parse_args()
    transport = joined()
    link = Counted(options.bandwidth, options.latency)
    emulate(transport, link)
    found: dict[str, list[tuple[float, int, str]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            link.count = 0
            seconds, bits = on_every_rank(partial(timed, way, options))
            found[way].append((seconds, link.count, bits))
    from mpi4py import MPI

    counts = {way: [count for _, count, _ in own] for way, own in found.items()}
    everywhere = MPI.COMM_WORLD.gather(counts)
    if everywhere is None:
        return
    for way, own in found.items():
        times = [seconds for seconds, _, _ in own]
        received = [median(counts[way]) / 1e6 for counts in everywhere]
        print(
            f"{way:11}: {median(times):6.2f} s ({min(times):.2f} to {max(times):.2f}),"
            f" MB to each rank {', '.join(f'{mb:.1f}' for mb in received)}  {own[0][2][:8]}"
        )


def timed(way: str, options: argparse.Namespace) -> tuple[float, str]:
    """Return the seconds of a run, and the bits."""
    setattr(epochs, layers_sent_activations.__name__, WAYS[way])
    layers = tuple(map(int, options.layers.split(",")))
    settings = settings_from(layers, epochs=options.epochs, runtime="mpi").pretrain
    data = load_dataset("mnist").train[: options.examples]
    started = time.monotonic()
    stack = driver_for(settings, data).run()
    return time.monotonic() - started, stack.parameters_sha256


if __name__ == "__main__":
    main()
