"""How well ``syncpretrain plan`` predicts, and whether it chooses the fastest schedule.

    python examples/benchmarks/plan_accuracy.py --epochs 4 --examples 4000 --rounds 1

For each of five shapes: plan, run every schedule for real, as often as --rounds says, one after
another, and print the seconds predicted and measured (medians), their ratio, and whether the choice
is within 5 % of the fastest. The median ratio of a shape is how much the machine itself became
slower or faster after it was measured. About ten minutes on two cores. Random examples: what is
learned does not change how long it takes.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from datetime import date
from statistics import median

import numpy as np
from threadpoolctl import threadpool_info

from syncpretrain.parallel.blas import usable_cores
from syncpretrain.planning.bench import random_rows, run_candidate
from syncpretrain.planning.candidates import Task
from syncpretrain.planning.choice import Plan, plan_for
from syncpretrain.settings import settings_from
from syncpretrain.workers.activations import Split

SHAPES = {
    "wide first": (784, 1000, 500, 250, 30),
    "wide last": (784, 250, 500, 1000, 1500),
    "equal": (784, 500, 500, 500, 500),
    "one thin": (784, 1000, 30, 500),
    "2000 x 4": (784, 2000, 2000, 2000, 2000),
}
NEAR, WELL = 1.05, 0.15
HELD_OUT = 50  # of so many training rows one more is held out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=",".join(SHAPES), help="Names, as printed.")
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=7.0, help="To measure each shape.")
    options = parser.parse_args()
    blas = ", ".join(f"{x['internal_api']} {x['version']}" for x in threadpool_info())
    print(f"{options.epochs} epochs of {options.examples} examples, {date.today()}")
    print(f"{usable_cores()} cores, {platform.machine()}, NumPy {np.__version__}, {blas}")
    print(f"OPENBLAS_NUM_THREADS {os.environ.get('OPENBLAS_NUM_THREADS', 'unset')}", flush=True)
    ratios, relative, choices = [], [], []
    for name in options.shapes.split(","):
        found, well = shape(name, SHAPES[name], options)
        ratios += found
        relative += [ratio / median(found) for ratio in found]
        choices.append(well)
    print(
        f"\n{within(ratios)} of {len(ratios)} within {WELL:.0%}, {within(relative)} beside the"
        f" median ratio of their shape; {sum(choices)} of {len(choices)} choices good"
    )


def within(ratios: Sequence[float]) -> int:
    """Return how many of some ratios are near 1."""
    return sum(abs(ratio - 1) <= WELL for ratio in ratios)


def shape(
    name: str, layers: Sequence[int], options: argparse.Namespace
) -> tuple[list[float], bool]:
    """Plan and run one shape; return measured over predicted, and whether the choice was good."""
    settings = settings_from(
        layers, epochs=options.epochs, batch_size=options.batch_size, workers=options.workers
    ).pretrain
    rows = random_rows(options.examples + options.examples // HELD_OUT, layers[0])
    data = Split(rows[: options.examples], rows[options.examples :])
    task = Task(settings, len(data.train), len(data.validation))
    plan = plan_for(task, measure_seconds=options.seconds)
    seconds: dict[str, list[float]] = {candidate.name: [] for candidate in plan.candidates}
    for _ in range(options.rounds):
        for candidate in plan.candidates:
            seconds[candidate.name].append(run_candidate(candidate, settings, data)[0])
    return report(name, plan, {candidate: median(runs) for candidate, runs in seconds.items()})


def report(name: str, plan: Plan, measured: dict[str, float]) -> tuple[list[float], bool]:
    """Print a shape's table."""
    layers = "-".join(map(str, plan.task.settings.layers))
    print(f"\n{name}, {layers}: measured in {plan.timings.seconds:.1f} s")
    ratios = []
    for candidate in plan.candidates:
        ratios.append(measured[candidate.name] / candidate.seconds)
        mark = "*" if candidate is plan.choice else " "
        replicas = ",".join(map(str, candidate.options.get("replicas", ())))
        print(
            f"{mark} {candidate.name:<24} {replicas:<10} predicted {candidate.seconds:6.2f} s"
            f"  measured {measured[candidate.name]:6.2f} s  ratio {ratios[-1]:.2f}",
            flush=True,
        )
    fastest = min(measured, key=lambda candidate: measured[candidate])
    slower = measured[plan.choice.name] / measured[fastest]
    well = slower <= NEAR
    verdict = "good" if well else "NOT within 5 %"
    print(f"  the choice takes {slower:.2f} of the fastest, {fastest}: {verdict}", flush=True)
    return ratios, well


if __name__ == "__main__":
    main()
