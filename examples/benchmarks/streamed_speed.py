"""How much faster a streamed run is with all cores than with one, however few its epochs.

    python examples/benchmarks/streamed_speed.py --epochs 1 3 10 --pairs 3

Pretrains 784-1000-500-250-30 on real digits, minibatches of 100, in turns: with one worker, with
one a core, with one a core that share the steps of layer 1, and with own products with one a core
that take no pieces of steps; by whole versions too. Prints medians, and ratios turn by turn.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

from _timing import machine, rst_table, spread

from syncpretrain import pretrain
from syncpretrain.data import load_dataset
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.pretraining import build

LAYERS = (784, 1000, 500, 250, 30)
USUAL, NEVER = build.WORTH_A_PIECE, 1 << 60


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 3, 10])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--products", choices=("blas", "own"), default="blas")
    parser.add_argument("--only", default="", metavar="TEXT", help="Ways with this in their name.")
    options = parser.parse_args()

    cores = usable_cores()
    X = load_dataset("mnist").train[: options.rows]
    shared = {"split": "units", "replicas": (cores, 1, 1, 1)}
    ways: dict[str, dict[str, Any]] = {
        "streamed, 1 worker": {"handoff": "minibatch", "workers": 1},
        f"streamed, {cores} workers": {"handoff": "minibatch", "workers": cores},
        f"streamed, {cores} workers, layer 1 shared": {
            "handoff": "minibatch",
            "workers": cores,
            **shared,
        },
        "pipeline, 1 worker": {"workers": 1},
        f"pipeline, {cores} workers": {"workers": cores},
    }
    if options.products == "own":
        for kind in ("streamed", "pipeline"):
            ways[f"{kind}, {cores} workers, no pieces"] = ways[f"{kind}, {cores} workers"]
    ways = {name: how for name, how in ways.items() if options.only in name}
    first = next(iter(ways))
    rows = []
    for epochs in options.epochs:
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(options.pairs):
            for name, how in ways.items():
                worth = NEVER if "no pieces" in name else USUAL
                with patch.object(build, "WORTH_A_PIECE", worth):
                    started = perf_counter()
                    pretrain(X, layers=LAYERS, epochs=epochs, products=options.products, **how)
                    seconds[name].append(perf_counter() - started)
            print(f"{epochs} epochs, turn {turn + 1}", file=sys.stderr, flush=True)
        for name, own in seconds.items():
            faster = [one / other for one, other in zip(seconds[first], own, strict=True)]
            rows.append([str(epochs), name, f"{median(own):.2f}", spread(faster)])
    print(rst_table(["epochs", "", "seconds", "times one worker's speed"], rows))
    print(f"\n({len(X):,} digits; medians of {options.pairs} turns; {machine(())})")


if __name__ == "__main__":
    main()
