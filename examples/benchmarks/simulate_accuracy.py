"""How well ``syncpretrain simulate`` predicts real runs on the cores of this machine.

    python examples/benchmarks/simulate_accuracy.py --rows 4000 --epochs 4 --rounds 3
    python examples/benchmarks/simulate_accuracy.py --emulated

Each round measures the layers' costs, then trains by each schedule for real, one after another,
with one worker and with all cores, on random examples. The cores share their memory, so messages
are free; what the cores take from each other is measured with the steps that they share, and beside
other layers. Prints predicted and measured seconds (medians), their ratio, and how many are within
15 %. Some minutes on two cores.

With ``--emulated`` a step sleeps for a given time instead of computing, in the same drivers,
schedules and threads, so that there are as many devices as layers on any machine, however busy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import sleep
from typing import Any
from unittest.mock import patch

from _timing import machine, rst_table

from syncpretrain.events import Event, RunFinished
from syncpretrain.learners.steps import ByUnits
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.planning.bench import random_rows
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.scaling.curves import Options, Way, curve
from syncpretrain.planning.scaling.work import LayerCosts, Network, machine_costs
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.settings import settings_from
from syncpretrain.workers.activations import Split

SHAPES = {
    "wide first": (784, 1000, 500, 250, 30),
    "equal": (784, 500, 500, 500, 500),
    "wide last": (784, 250, 500, 1000),
}
WELL = 0.15
EMULATED_STEPS = (0.085, 0.055, 0.037, 0.021)  # seconds; no two end together for long
EMULATED_ROWS, EMULATED_BATCH = 64, 8
BATCH, HELD_OUT = 100, 50


@dataclass(frozen=True)
class Case:
    """A way to train on a number of workers."""

    name: str
    way: Way
    workers: int
    stack: dict[str, Any]


def cases(cores: int, depth: int) -> list[Case]:
    """Return the ways to train that fit a number of cores."""
    pure, streamed = (1,) * depth, {"delay": 0.0}
    shared = Way("greedy", replicas=(cores,) * depth)
    return [
        Case("greedy, 1 worker", Way("greedy", replicas=pure), 1, {}),
        Case("pipeline, 1 worker", Way("synchronized", replicas=pure), 1, {}),
        Case(f"pipeline, {cores}", Way("synchronized", replicas=pure), cores, {}),
        Case(f"streamed, {cores}", Way("synchronized", "minibatch", pure), cores, streamed),
        Case(f"groups of 2, {cores}", Way("rounds", replicas=pure), cores, {"group_size": 2}),
        Case(f"data parallel, {cores}", shared, cores, {}),
    ]


@contextmanager
def sleeping(steps: Sequence[float]) -> Iterator[None]:
    """Let a step of each layer sleep for a number of seconds, and learn nothing."""

    def train_step(own: ByUnits, X: Any, rows: Any, **options: Any) -> float:
        sleep(steps[own.learner.layer - 1])
        return 0.0

    with patch.object(ByUnits, "train_step", train_step):
        yield


def emulated(epochs: int) -> list[list[str]]:
    """Return the rows of runs whose steps sleep, by the way to train and the number of workers."""
    depth = len(EMULATED_STEPS)
    layers = (8,) * (depth + 1)
    X = random_rows(EMULATED_ROWS, layers[0])
    costs = [LayerCosts(step=step, forward=0.0) for step in EMULATED_STEPS]
    shape = ", ".join(f"{1000 * step:g}" for step in EMULATED_STEPS)
    rows = []
    for workers in range(1, depth + 1):
        for case in cases(workers, depth)[2:-1]:
            stack = {"epochs": epochs, "batch_size": EMULATED_BATCH, **case.stack}
            job = Options(layers=layers, stack=stack, network=Network(), examples=len(X))
            predicted = curve(case.name, case.way, job, costs, [workers]).runs[0].seconds
            with sleeping(EMULATED_STEPS):
                measured = run(layers, case, stack, Split(X, X[:0]))
            seconds = (predicted, measured, measured / predicted)
            rows.append([f"{shape} ms", case.name, *(f"{s:.2f}" for s in seconds)])
    return rows


def costs_here(layers: Sequence[int], options: argparse.Namespace) -> list[LayerCosts]:
    """Return the costs of this machine's cores."""
    stack = settings_from(layers, epochs=options.epochs, batch_size=BATCH).pretrain
    task = Task(stack, options.rows, HELD_OUT)
    return machine_costs(task, workers=options.workers, seconds=options.seconds)


def shape(name: str, options: argparse.Namespace) -> list[list[str]]:
    """Return the rows of one shape: predicted and measured seconds of each case."""
    layers = SHAPES[name]
    X = random_rows(options.rows + HELD_OUT, layers[0])
    own = cases(options.workers, len(layers) - 1)
    predicted: dict[str, list[float]] = {case.name: [] for case in own}
    measured: dict[str, list[float]] = {case.name: [] for case in own}
    for _ in range(options.rounds):
        costs = costs_here(layers, options)
        for case in own:
            stack = {"epochs": options.epochs, "batch_size": BATCH, **case.stack}
            job = Options(
                layers=layers,
                stack=stack,
                network=Network(),
                examples=options.rows,
                held_out=HELD_OUT,
            )
            found = curve(case.name, case.way, job, costs, [case.workers])
            predicted[case.name].append(found.runs[0].seconds)
            data = Split(X[: options.rows], X[options.rows :])
            measured[case.name].append(run(layers, case, stack, data))
    rows = []
    for case in own:
        pairs = zip(measured[case.name], predicted[case.name], strict=True)
        ratio = median(real / foretold for real, foretold in pairs)
        seconds = (median(predicted[case.name]), median(measured[case.name]))
        rows.append([name, case.name, *(f"{s:.2f}" for s in seconds), f"{ratio:.2f}"])
    return rows


def run(layers: Sequence[int], case: Case, stack: dict[str, Any], data: Split) -> float:
    """Return the seconds of a real run."""
    seconds: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, RunFinished):
            seconds.append(event.seconds)

    settings = settings_from(
        layers,
        schedule=case.way.schedule,
        handoff=case.way.handoff,
        workers=case.workers,
        replicas=case.way.replicas,
        blas_threads=1,
        **stack,
    ).pretrain
    driver_for(settings, data.train, data.validation, observers=[note]).run()
    return seconds[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--shapes", default=",".join(SHAPES), help="Names, as printed.")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="To measure each shape.")
    parser.add_argument("--emulated", action="store_true", help="Steps sleep instead.")
    options = parser.parse_args()
    if options.emulated:
        rows = emulated(options.epochs)
    else:
        rows = [row for name in options.shapes.split(",") for row in shape(name, options)]
    print(rst_table(["shape", "way", "predicted, s", "measured, s", "ratio"], rows))
    ratios = [float(row[-1]) for row in rows]
    near = sum(abs(ratio - 1) <= WELL for ratio in ratios)
    share = near / len(ratios)
    print(f"\n{near} of {len(ratios)} ({share:.0%}) within {WELL:.0%} ({machine([])})")


if __name__ == "__main__":
    main()
