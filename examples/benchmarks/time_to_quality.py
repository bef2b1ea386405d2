"""Seconds to the paper's test error of 8.19, beside an end-to-end ReLU autoencoder in PyTorch.

    pip install torch
    python examples/benchmarks/time_to_quality.py --pairs 2

In turns: ``train --preset fast``, everything included; then the same shape in PyTorch from random
weights, rectified units with a sigmoid output, Adam 0.001, batch 100, squared error, all cores,
until its test error is at most 8.19 (its time without loading the data and without measuring).
Prints seconds and errors. The test digits only tell when PyTorch is there.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from syncpretrain.data import load_dataset
from syncpretrain.runs.run import train_run
from syncpretrain.settings import preset_path, read_settings

TARGET = 8.19
LAYERS = (784, 1000, 500, 250, 30)
MOST_EPOCHS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=2)
    options = parser.parse_args()
    ours, theirs = [], []
    for _ in range(options.pairs):
        seconds, error = fast()
        ours.append(seconds)
        print(f"syncpretrain, preset fast   {seconds:6.1f} s   test {error:.2f}", flush=True)
        seconds, error, epochs = end_to_end()
        theirs.append(seconds)
        print(
            f"PyTorch, end to end         {seconds:6.1f} s   test {error:.2f}, {epochs} epochs",
            flush=True,
        )
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    print(f"medians {median(ours):.1f} and {median(theirs):.1f} s, ratio {median(ratios):.2f}")


def fast() -> tuple[float, float]:
    started = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = train_run(read_settings(preset_path("fast")), out=Path(folder) / "fast")
    return perf_counter() - started, float(report["reconstruction_error"]["test"])


def end_to_end() -> tuple[float, float, int]:
    data = load_dataset("mnist")
    X, test = torch.from_numpy(data.train), torch.from_numpy(data.test)
    torch.manual_seed(0)
    network = autoencoder()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
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
    return seconds, error, epochs


def autoencoder() -> nn.Sequential:
    parts: list[nn.Module] = []
    widths = [*LAYERS, *reversed(LAYERS[:-1])]
    for below, above in pairwise(widths):
        parts += [nn.Linear(below, above), nn.ReLU()]
    parts[-1] = nn.Sigmoid()
    return nn.Sequential(*parts)


def measured(network: nn.Sequential, X: torch.Tensor) -> float:
    with torch.no_grad():
        difference: NDArray[np.float32] = (network(X) - X).numpy()
    return float(np.square(difference).sum() / len(X))


if __name__ == "__main__":
    main()
