"""Does streaming cost accuracy? Test errors of stacks after the same fine-tuning, as a table.

    python examples/benchmarks/streamed_quality.py --epochs 2 --seeds 3

Pretrains 784-1000-500-250-30 greedily, by whole epochs (lockstep) and streamed, each layer that
many epochs behind the one below, unrolls it and fine-tunes it with Adam. The error is squared and
summed over pixels, the mean over the 10,000 digits of the test set.
"""

from __future__ import annotations

import argparse
import sys
from statistics import mean
from typing import Any

from _timing import machine, rst_table

from syncpretrain import finetune, pretrain
from syncpretrain.data import load_dataset
from syncpretrain.models.diagnosis import stack_error


def settings_of(way: str) -> dict[str, Any]:
    """Return the settings of a way: greedy, lockstep, or a delay in epochs."""
    if way == "greedy":
        return {"schedule": "greedy"}
    if way == "lockstep":
        return {}
    return {"handoff": "minibatch", "delay": float(way)}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--ways", default="greedy,lockstep,0,0.1,0.25,0.5")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--finetune-epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()

    data = load_dataset("mnist")
    train = data.train[: options.rows]
    layers = (784, 1000, 500, 250, 30)
    ways = options.ways.split(",")
    errors: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for seed in range(options.seeds):
        for way in ways:
            stack = pretrain(
                train, layers=layers, epochs=options.epochs, seed=seed, **settings_of(way)
            )
            tuned = finetune(stack, train, epochs=options.finetune_epochs, seed=seed)
            found = [stack_error(x, data.test) or 0.0 for x in (stack, tuned)]
            errors[way].append((found[0], found[1]))
            print(f"{way}: seed {seed}: {errors[way][-1]}", file=sys.stderr, flush=True)
    rows = [
        [
            way if way in ("greedy", "lockstep") else f"streamed, {way} epochs behind",
            f"{mean(before for before, _ in pairs):.2f}",
            f"{mean(after for _, after in pairs):.3f}",
            ", ".join(f"{after:.2f}" for _, after in pairs),
        ]
        for way, pairs in errors.items()
    ]
    print(rst_table(["pretraining", "before", "after, mean", "seeds"], rows))
    print(
        f"\n({options.rows:,} digits, {options.epochs} + {options.finetune_epochs} epochs;"
        f" {machine(())})"
    )


if __name__ == "__main__":
    main()
