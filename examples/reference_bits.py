"""Print the hash of the parameters of 12 short runs, to compare two versions of the library.

    python examples/reference_bits.py

Models, schedules, runtimes and replicas vary. The hashes depend on the kind of CPU, on NumPy, its
BLAS and the kernels; on one machine they must not change with a change that claims to change none.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from syncpretrain import finetune, pretrain
from syncpretrain.errors import PoorResultWarning

LAYERS = (64, 48, 32, 16)
RUNS: dict[str, dict[str, Any]] = {
    "rbm, synchronized, threads": {},
    "rbm, synchronized, processes": {"runtime": "processes", "workers": 2},
    "rbm, greedy, serial": {"schedule": "greedy", "runtime": "serial", "blas_threads": 1},
    "rbm, rounds, refreshes": {"schedule": "rounds", "refresh_epochs": (0, 2, 1)},
    "rbm, by examples, 2 replicas": {"replicas": 2},
    "rbm, by units, 2 replicas": {"replicas": 2, "split": "units"},
    "rbm, persistent, sparse, dropout": {
        "persistent": True,
        "sparsity_cost": 0.1,
        "hidden_dropout": 0.2,
    },
    "rbm, gaussian, relu, first-layer": {
        "visible_units": "gaussian",
        "hidden_units": ("relu", "bernoulli", "gaussian"),
        "finish": "first-layer",
        "epochs": (4, 2, 2),
    },
    "rbm, early stopping": {"early_stopping": "pseudo-likelihood", "patience": 1, "epochs": 5},
    "autoencoder, tied, processes": {"model": "autoencoder", "runtime": "processes"},
    "denoising, untied, 3 shards": {"model": "denoising", "tied": False, "shards": 3},
    "contractive, greedy": {"model": "contractive", "schedule": "greedy", "blas_threads": 1},
}


def main() -> None:
    warnings.simplefilter("ignore", PoorResultWarning)  # three epochs learn little
    rng = np.random.default_rng(0)
    prototypes = rng.random((8, LAYERS[0])) < 0.3
    X = prototypes[rng.integers(8, size=600)] ^ (rng.random((600, LAYERS[0])) < 0.05)
    train, held_out = np.float32(X[:500]), np.float32(X[500:])
    classes = np.arange(500) % 3
    for number, (name, options) in enumerate(RUNS.items()):
        settings = {"epochs": 3, "batch_size": 50, "seed": number} | options
        stack = pretrain(train, layers=LAYERS, validation=held_out, **settings)
        y = classes if number % 2 else None
        tuned = finetune(stack, train, y, epochs=2, batch_size=50, seed=number, replicas=2)
        print(f"{name:34} {stack.parameters_sha256[:16]} {tuned.parameters_sha256[:16]}")


if __name__ == "__main__":
    main()
