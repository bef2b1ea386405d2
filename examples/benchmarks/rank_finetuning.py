"""Time of the steps of fine-tuning on MPI ranks, beside threads of one process.

    mpiexec -n 2 python examples/benchmarks/rank_finetuning.py
    mpiexec -n 2 python examples/benchmarks/rank_finetuning.py --batch-sizes 100,1000 --rounds 5

Every minibatch is cut into as many shards as there are ranks, whoever computes them, so that all
have the same bits; the last column shows them. Times are medians over the epochs of all rounds,
which take turns.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median

from syncpretrain.cluster.job import joined
from syncpretrain.data import load_dataset
from syncpretrain.events import Event, FinetuneEpochFinished
from syncpretrain.finetuning.options import tuning_options
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.finetuning.tasks import Form, Part
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.pretraining.on_ranks import on_every_rank
from syncpretrain.settings import settings_from

LAYERS = (784, 1000, 500, 250, 30)
WAYS = ("one thread", "threads", "ranks")


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-sizes", type=numbers, default=[100, 1000])
    options = parser.parse_args()
    found: dict[tuple[int, str], list[float]] = {}
    bits: dict[tuple[int, str], str] = {}
    for _ in range(options.rounds):
        for case in [(size, way) for size in options.batch_sizes for way in WAYS]:
            seconds, bits[case] = on_every_rank(partial(timed, *case, options))
            found.setdefault(case, []).extend(seconds)
    if joined().rank:
        return
    for (batch_size, way), times in found.items():
        ms = [1e3 * x * batch_size / options.examples for x in times]
        print(
            f"batch {batch_size:5}, {way:10}: {median(ms):7.1f} ms a step"
            f" ({min(ms):.1f} to {max(ms):.1f})  {bits[batch_size, way][:8]}"
        )


def timed(batch_size: int, way: str, options: argparse.Namespace) -> tuple[list[float], str]:
    """Return the seconds of each epoch, and the bits."""
    data = load_dataset("mnist").train[: options.examples]
    stack = driver_for(settings_from(LAYERS).pretrain, data).stack()
    size = joined().size
    own = tuning_options(
        {"objective": "reconstruction", "split": "examples", "shards": size},
        epochs=options.epochs,
        batch_size=batch_size,
        replicas=1 if way == "one thread" else size,
        runtime="mpi" if way == "ranks" else "threads",
    )
    seconds: list[float] = []

    def observe(event: Event) -> None:
        if isinstance(event, FinetuneEpochFinished):
            seconds.append(event.seconds)

    tuned = Finetuning(Form.of(stack), own, Part(data, None, "y")).run(stack, observers=[observe])
    return seconds, tuned.parameters_sha256


if __name__ == "__main__":
    main()
