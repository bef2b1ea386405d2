"""Seconds to the paper's test error of 8.19, beside an end-to-end ReLU autoencoder in PyTorch.

    pip install torch
    python examples/benchmarks/time_to_quality.py --pairs 2

In turns, each in a process of its own: ``train --preset fast``, everything included; then the same
shape in PyTorch from random weights, rectified units with a sigmoid output, fused Adam 0.001, batch
100, squared error, all cores, until its test error is at most 8.19 (its time without loading the
data and without measuring). Prints seconds and errors. The test digits only tell when PyTorch is
there.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from _timing import busy, in_a_process, in_turns, machine, ratios, spread

from syncpretrain.data import load_dataset
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.runs.run import train_run
from syncpretrain.settings import preset_path, read_settings

if TYPE_CHECKING:
    import torch

TARGET = 8.19
LAYERS = (784, 1000, 500, 250, 30)
MOST_EPOCHS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        seconds, error = CASES[options.measure]()
        print(json.dumps({"seconds": seconds, "error": error}))
        return
    others, script = busy(), Path(__file__)
    outcomes = in_turns(
        CASES, options.pairs, lambda name: in_a_process(script, ["--measure", name])
    )
    for name, runs in outcomes.items():
        errors = ", ".join(f"{run['error']:.2f}" for run in runs)
        print(f"{name}: {median(run['seconds'] for run in runs):.1f} s, test errors {errors}")
    ours, theirs = outcomes.values()
    print(f"PyTorch's time over its own: {spread(ratios(theirs, ours))}")
    print(f"({machine(['torch'])}; load before {others:.1f})")


def fast() -> tuple[float, float]:
    started = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = train_run(read_settings(preset_path("fast")), out=Path(folder) / "fast")
    return perf_counter() - started, float(report["reconstruction_error"]["test"])


def end_to_end() -> tuple[float, float]:
    import torch

    data = load_dataset("mnist")
    X, test = torch.from_numpy(data.train), torch.from_numpy(data.test)
    torch.set_num_threads(usable_cores())
    torch.manual_seed(0)
    network = autoencoder()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001, fused=True)
    seconds, epochs, error = 0.0, 0, math.inf
    while error > TARGET and epochs < MOST_EPOCHS:
        epochs += 1
        started = perf_counter()
        order = torch.randperm(len(X))
        for start in range(0, len(X), 100):
            x = X[order[start : start + 100]]
            loss = (network(x) - x).square().sum() / len(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds += perf_counter() - started
        error = measured(network, test)
    return seconds, error


def autoencoder() -> torch.nn.Sequential:
    from torch import nn

    parts: list[nn.Module] = []
    widths = [*LAYERS, *reversed(LAYERS[:-1])]
    for below, above in pairwise(widths):
        parts += [nn.Linear(below, above), nn.ReLU()]
    parts[-1] = nn.Sigmoid()
    return nn.Sequential(*parts)


def measured(network: torch.nn.Sequential, X: torch.Tensor) -> float:
    import torch

    with torch.no_grad():
        difference: Any = (network(X) - X).numpy()
    return float(np.square(difference).sum() / len(X))


CASES = {"syncpretrain, preset fast": fast, "PyTorch, end to end": end_to_end}


if __name__ == "__main__":
    main()
