"""Measure what drift saves: epochs of pretraining, and the test error after fine-tuning.

    python examples/benchmarks/drift.py

Layers that refresh for every new version below, and layers that do so by drift; then fixed numbers
of epochs, and epochs that end when the outputs settle. Work is counted in passes: epochs, each by
its layer's share of the weights, so that the table does not depend on the machine's speed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from syncpretrain.data import load_dataset
from syncpretrain.data.dataset import Dataset
from syncpretrain.runs.compare import compare, summarized
from syncpretrain.settings import settings_from

LAYERS = (784, 300, 100, 30)
WAKING: dict[str, dict[str, Any]] = {
    "every version": {},
    "drift:0.2": {"refresh_when": "drift:0.2"},
    "drift:0.3": {"refresh_when": "drift:0.3"},
    "drift:0.4": {"refresh_when": "drift:0.4"},
    "no refreshes": {"refresh_epochs": 0},
}
EPOCHS: dict[str, dict[str, Any]] = {
    "10": {"epochs": 10},
    "20": {"epochs": 20},
    "40": {"epochs": 40},
    "auto:40, settle 0.2": {"epochs": "auto:40", "settle": 0.2},
    "auto:40, settle 0.15": {"epochs": "auto:40", "settle": 0.15},
    "auto:40, settle 0.1": {"epochs": "auto:40", "settle": 0.1},
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12, help="of layer 1; the others have a 3rd")
    parser.add_argument("--finetune-epochs", type=int, default=5)
    given = parser.parse_args(arguments)
    data = load_dataset("mnist")
    data = replace(data, train=data.train[: given.examples], train_labels=None)
    upper = [max(1, given.epochs // 3)] * (len(LAYERS) - 2)
    uneven: dict[str, Any] = {"epochs": [given.epochs, *upper]}
    groups: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any]]] = {
        "1 epoch a refresh": (WAKING, uneven | {"refresh_epochs": 1}),
        "3 epochs a refresh": (WAKING, uneven | {"refresh_epochs": 3}),
        "epochs": (EPOCHS, {"refresh_epochs": 0}),
    }
    for title, (variants, common) in groups.items():
        print(f"{title:22}  error  spread  passes  epochs of each layer, seed by seed")
        for name, options in variants.items():
            print(row(name, data, common | options, given))


def row(name: str, data: Dataset, options: dict[str, Any], given: argparse.Namespace) -> str:
    tuning = {"objective": "reconstruction", "epochs": given.finetune_epochs, "replicas": 1}
    settings = settings_from(LAYERS, finetune=tuning, backend="numpy", **options)
    seeds = range(given.seeds)
    outcomes = compare(settings, data, starts=["synchronized"], seeds=seeds)
    mean = summarized(outcomes)[0]
    epochs = "  ".join(",".join(map(str, outcome.epochs)) for outcome in outcomes)
    spread = mean.spread or 0.0
    return f"{name:22} {mean.test:6.2f}  {spread:6.2f}  {mean.passes:6.1f}  {epochs}"


if __name__ == "__main__":
    main(sys.argv[1:])
