"""Data, model and hybrid parallelism in the steps of a ConvNet, as Yadan et al. 2013 compare them.

    python examples/benchmarks/yadan.py --pairs 5

Times steps of supervised training (cross-entropy, Adam) on random images with one worker and with
two, in turns. Examples are the paper's data parallelism, filters its model parallelism; hybrid
splits convolutions by examples and dense layers by units (Krizhevsky 2014). A net in two columns is
also split by columns, the paper's own model parallelism: with four workers, two share the examples
of each column, which is the paper's hybrid. With ``--curves`` it
also trains each on the same digits and prints the errors by epoch, which coincide.

For more workers than there are cores it predicts the time of a step: the operations of each shard
are timed alone on one core, and of each phase the slowest shard counts. What workers take from each
other, memory bandwidth and shared caches, and their waits are left out, so it is a lower bound.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from statistics import median
from time import perf_counter

import numpy as np
from _timing import machine, rst_table, spread

from syncpretrain import finetune
from syncpretrain.data import load_dataset
from syncpretrain.events import FinetuneEpochFinished
from syncpretrain.finetuning.network import Network
from syncpretrain.finetuning.optimizers import At, adam
from syncpretrain.finetuning.tasks import Examples, Supervised
from syncpretrain.kernels.operations import Operation
from syncpretrain.kernels.program import Phases, Program, in_turn
from syncpretrain.learners.first_layers import untrained_stack
from syncpretrain.models.layer import Head
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.worker_pool import WorkerPool
from syncpretrain.settings import settings_from

NETS = {
    "LeNet": ("1x28x28,conv:20x5,pool:2,conv:50x5,pool:2,500", 10),
    # Krizhevsky et al. 2012 at a reduced size: five convolutions and two dense layers.
    "AlexNet-like": (
        "3x32x32,conv:48x5:2,pool:2,conv:128x5:2,pool:2,conv:192x3:1,conv:192x3:1,"
        "conv:128x3:1,pool:2,512,512",
        100,
    ),
    # With the columns of that net, which meet at the third convolution.
    "AlexNet-like, 2 columns": (
        "3x32x32,conv:48x5:2,pool:2,conv:128x5:2/2,pool:2,conv:192x3:1,conv:192x3:1/2,"
        "conv:128x3:1/2,pool:2,512,512",
        100,
    ),
}
SPLITS = ("examples", "filters", "hybrid", "columns")
NONE = "-"  # of a net that has no columns
SECONDS = 2.0  # of a round of one case
PAPER = [
    ["1 GPU", "10.5", "1.0"],
    ["2 GPUs, model", "6.6", "1.6"],
    ["2 GPUs, data", "7.0", "1.5"],
    ["4 GPUs, data", "7.2", "1.5"],
    ["4 GPUs, model and data", "4.8", "2.2"],
]


def stack_of(net: str) -> tuple[Stack, int]:
    """Return a net of rectified units with random weights, and its number of classes."""
    text, classes = NETS[net]
    settings = settings_from(text, model="autoencoder", hidden_units="relu").pretrain
    return untrained_stack(settings.shapes, settings.hidden_units), classes


def splits_of(net: str) -> tuple[str, ...]:
    """Return the ways in which a net can be split."""
    return SPLITS if "/" in NETS[net][0] else SPLITS[:-1]


class Steps:
    """Steps of one net on one random minibatch, cut into shards in one way."""

    def __init__(
        self, net: str, batch: int, shards: int, split: str, precision: str = "float32"
    ) -> None:
        stack, classes = stack_of(net)
        draws = np.random.default_rng(0)
        weight = draws.standard_normal((stack.widths[-1], classes), dtype=np.float32)
        head = Head(weight * np.float32(0.01), np.zeros(classes, "f4"), "classification")
        task = Supervised(stack, head, "classification")
        x = draws.random((batch, stack.widths[0]), dtype=np.float32)
        target = np.eye(classes, dtype=np.float32)[draws.integers(classes, size=batch)]
        self.examples, self.rows = Examples(x, target), np.arange(batch)
        self.network = Network(
            task.chain(),
            loss=task.loss,
            batch_size=batch,
            shards=shards,
            split=split,
            precision=precision,
        )
        self.optimizer, self.count = adam(self.network), 0

    def seconds(self, pool: WorkerPool, workers: int, at_least: int = 5) -> float:
        """Return the median time of a step."""

        def run(phases: Phases, shards: int) -> None:
            pool.run(phases, shards, workers)

        took: list[float] = []
        while sum(took) < SECONDS or len(took) < at_least:
            started = perf_counter()
            self.optimizer.train(self.examples, self.rows, At(1e-6, 1, len(took)), run)
            took.append(perf_counter() - started)
        return median(took[1:])

    def predicted(self) -> float:
        """Return the time of a step with a core for each shard."""
        self.network.begin(self.examples, self.rows)
        program = self.network.program(self.optimizer.moves)
        times = ([self._alone(own) for own in shards] for shards in program.operations)
        return sum(map(max, times), start=0.0)

    def _alone(self, operations: Sequence[Operation]) -> float:
        """Return the median time of the operations of one shard of one phase."""
        if not operations:
            return 0.0
        alone = Program([[operations]], 2 * self.network.shards)
        alone.prepare(rate=1e-6, steps=1)
        took = []
        for _ in range(12):
            started = perf_counter()
            in_turn(alone, 1)
            took.append(perf_counter() - started)
        return median(took[2:])


def turns(net: str, batch: int, workers: int) -> Iterator[dict[str, float]]:
    """Yield the seconds of a step with one worker, and with several by each split."""
    cases = {"1 worker": Steps(net, batch, 1, "examples")}
    cases |= {split: Steps(net, batch, workers, split) for split in splits_of(net)}
    with blas_limit(1), closing(WorkerPool(workers, "benchmark")) as pool:
        while True:
            yield {name: steps.seconds(pool, workers) for name, steps in cases.items()}


def timed(pairs: int, batches: list[int], workers: int) -> list[list[str]]:
    """Return the rows of the table of times."""
    rows = []
    for net in NETS:
        for batch in batches:
            print(f"{net}, batch {batch}", file=sys.stderr, flush=True)
            stream = turns(net, batch, workers)
            found = [next(stream) for _ in range(pairs)]
            one = [turn["1 worker"] for turn in found]
            row = [net, str(batch), f"{1000 * median(one):.1f}"]
            for split in SPLITS:
                own = [turn["1 worker"] / turn[split] for turn in found if split in turn]
                row.append(spread(own) if own else NONE)
            rows.append(row)
    return rows


def foretold(batches: list[int], workers: int) -> list[list[str]]:
    """Return the rows of the table of predictions."""
    rows = []
    for net in NETS:
        for batch in batches:
            own = foretold_times(net, batch, workers, splits_of(net))
            times = (f"{own[split]:.2f}" if split in own else NONE for split in SPLITS)
            rows.append([net, str(batch), *times])
    return rows


def foretold_times(net: str, batch: int, workers: int, splits: Sequence[str]) -> dict[str, float]:
    """Return how many times faster than one worker several are predicted to be, by the split."""
    with blas_limit(1):
        one = Steps(net, batch, 1, "examples").predicted()
        return {split: one / Steps(net, batch, workers, split).predicted() for split in splits}


def curves(rows: int, epochs: int) -> list[list[str]]:
    """Return the errors by epoch of LeNet on digits, trained by each split, as rows."""
    data = load_dataset("mnist")
    found = []
    for split in splits_of("LeNet"):
        errors: list[str] = []

        def note(event: object, errors: list[str] = errors) -> None:
            if isinstance(event, FinetuneEpochFinished):
                errors.append(f"{100 * event.train_error:.2f}")

        finetune(
            stack_of("LeNet")[0],
            data.train[:rows],
            None if data.train_labels is None else data.train_labels[:rows],
            epochs=epochs,
            split=split,
            shards=2,
            replicas=2,
            observers=[note],
        )
        found.append([split, *errors])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[100, 256])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--predict", type=int, default=4, help="workers to predict, 0 for none")
    parser.add_argument("--curves", type=int, default=0, help="digits to train on, 0 for none")
    options = parser.parse_args()

    head = ["net", "batch", "1 worker, ms", *(f"{name}, times" for name in SPLITS)]
    print(f"{options.workers} workers, measured")
    print(rst_table(head, timed(options.pairs, options.batches, options.workers)))
    if options.predict:
        head = ["net", "batch", *SPLITS]
        print(f"\n{options.predict} workers, predicted: times one worker's speed")
        print(rst_table(head, foretold(options.batches, options.predict)))
    if options.curves:
        epochs = 3
        head = ["split", *(f"epoch {n}" for n in range(1, epochs + 1))]
        print("\nPer cent of the training digits wrong")
        print(rst_table(head, curves(options.curves, epochs)))
    print("\nYadan et al. 2013, table 1: days of 100 epochs of ImageNet, times one GPU")
    print(rst_table(["\\", "days", "times"], PAPER))
    print(f"\n({machine([])})")


if __name__ == "__main__":
    main()
