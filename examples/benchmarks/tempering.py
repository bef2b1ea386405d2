"""Jumps between two digits in equal seconds: Gibbs chains, and stacked tempering.

    SYNCPRETRAIN_DATA=FOLDER python examples/benchmarks/tempering.py

An RBM of MNIST's zeros and ones has two modes. The stack 784-64-24-10 is trained by persistent
contrastive divergence, each layer on states that are drawn from the layer below, since the levels
swap states, not means: greedily, and all layers jointly (synchronized). Then chains start at data,
and run for as many seconds by either method, in turns of a second. A jump is a change of the
nearest class mean, looked at every tenth step. The occupancy is the share of ones: in the data, in
chains from both starts, and by annealed importance sampling.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
from _timing import machine, rst_table
from numpy.typing import NDArray

from syncpretrain import pretrain
from syncpretrain.data import load_dataset
from syncpretrain.models.gibbs import Levels
from syncpretrain.models.stack import Stack
from syncpretrain.rng import Purpose, generator

Array = NDArray[np.float32]
WIDTHS = (784, 64, 24, 10)
LOOK_EVERY = 10


def digits() -> tuple[Array, NDArray[Any]]:
    """Return MNIST's training zeros and ones, grey values as means, and their labels."""
    data = load_dataset("mnist")
    assert data.train_labels is not None
    own = np.flatnonzero(data.train_labels < 2)
    return data.train[own], data.train_labels[own]


def trained(X: Array, schedule: str, epochs: int, times: int, seed: int) -> Stack:
    """Return a stack, with some times as many epochs in layers 2 and 3."""
    return pretrain(
        X,
        layers=WIDTHS,
        sample_input=True,
        schedule=schedule,
        epochs=[epochs, times * epochs, times * epochs],
        learning_rate=[0.6 / epochs, 1.2 / epochs, 1.2 / epochs],
        persistent=True,
        cd_steps=10,
        batch_size=500,
        momentum="0.5",
        weight_decay=0.0,
        visible_bias="log-odds",
        backend="numpy",
        seed=seed,
    )


def jumps(stack: Stack, X: Array, means: Array, turns: int) -> dict[str, tuple[float, float]]:
    """Return the jumps of a chain, and the steps a second; the methods take turns of a second."""
    levels: dict[str, Any] = {"gibbs": stack.layers[:1], "stacked": stack.layers}
    runs = {name: Levels(rbms, X, generator(0, Purpose.SAMPLE)) for name, rbms in levels.items()}
    before = dict.fromkeys(runs, nearest(X, means))
    total, steps = dict.fromkeys(runs, 0), dict.fromkeys(runs, 0)
    for _ in range(turns):
        for name, chains in runs.items():
            started = perf_counter()
            while perf_counter() - started < 1:
                chains.run(LOOK_EVERY)
                steps[name] += LOOK_EVERY
                now = nearest(chains.visible[0], means)
                total[name] += int(np.count_nonzero(now != before[name]))
                before[name] = now
    return {name: (total[name] / len(X), steps[name] / turns) for name in runs}


def nearest(v: Array, means: Array) -> Any:
    return (v @ means.T - np.square(means).sum(axis=1) / 2).argmax(axis=1)


def rows(options: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    grey, labels = digits()
    for seed, schedule in product(range(options.seeds), options.schedules.split(",")):
        draws = np.random.default_rng(seed)
        X = np.float32(draws.random(grey.shape) < grey)
        stack = trained(grey, schedule, options.epochs, options.upper_epochs, seed)
        means = np.stack([X[labels == label].mean(axis=0) for label in (0, 1)])
        start = X[draws.choice(len(X), options.chains, replace=False)]
        for method, (made, steps) in jumps(stack, start, means, options.seconds).items():
            found = stack.mixing(X, labels, level=1, method=method, steps=options.steps)
            shares = [
                found.occupancy[name][1] for name in ("data", "from data", "from noise", "AIS")
            ]
            accepted = ", ".join(f"{100 * x:.0f} %" for x in found.acceptance) or "-"
            yield (
                str(seed),
                schedule,
                method,
                f"{steps:.0f}",
                f"{made:.3g}",
                *(f"{x:.2f}" for x in shares),
                f"{found.annealed_samples:.0f}",
                accepted,
                "yes" if found.mixed else "no",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--upper-epochs", type=int, default=5, help="of layers 2 and 3: times")
    parser.add_argument("--schedules", default="greedy,synchronized")
    parser.add_argument("--chains", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=10, help="for each method and seed")
    parser.add_argument("--steps", type=int, default=2000, help="of the chains for the occupancy")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    head = ("seed", "schedule", "method", "steps/s", "jumps", "data", "from data", "from noise")
    print(rst_table((*head, "AIS", "of AIS", "accepted", "mixed"), list(rows(options))))
    print(machine([]))


if __name__ == "__main__":
    main()
