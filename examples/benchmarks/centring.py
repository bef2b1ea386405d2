"""Log-likelihood of MNIST under plain and centred gradients, by updates and by seconds.

    export SYNCPRETRAIN_DATA=FOLDER
    python examples/benchmarks/centring.py RUNS --only 0 --temperatures 0
    python examples/benchmarks/centring.py RUNS

An RBM of 784-500 trains on states drawn once from MNIST's 50,000 training digits by persistent
contrastive divergence: minibatches of 100, 100 chains, a constant rate, no momentum and no decay;
visible biases start at the log-odds. The table has the mean log-likelihood of states of the 10,000
test digits in nats, by annealed importance sampling from the uniform distribution, as a mean over
the seeds, with the largest standard error of one log Z. The seconds are of training alone, with one
thread. The folder RUNS keeps the runs: what it has is not trained again, so that a first call
without temperatures trains, on a quiet machine, and a later one anneals.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from _timing import machine, rst_table
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from syncpretrain import load
from syncpretrain.data import load_dataset
from syncpretrain.events import EpochFinished
from syncpretrain.models.layer import Layer
from syncpretrain.models.likelihood import free_energy, log_z_ais
from syncpretrain.runs.run import train_run
from syncpretrain.settings import settings_from

Array = NDArray[np.float32]
HIDDEN, BATCH = 500, 100
COUNTS, FIRST = 13, 30  # models of a run, spaced by the logarithm of updates, and the first of use
GRADIENTS = ("plain", "centred")


def train(X: Array, folder: Path, options: argparse.Namespace, *, centred: bool, seed: int) -> None:
    """Train an RBM; keep it after some updates, and the seconds after each epoch."""
    folder.mkdir(parents=True)
    np.save(folder / "states.npy", X)
    settings = settings_from(
        (X.shape[1], HIDDEN),
        data={"name": str(folder / "states.npy"), "validation": 0.0},
        run={"checkpoint_every": f"log:{COUNTS}"},
        epochs=-(-options.updates * BATCH // len(X)),
        batch_size=BATCH,
        learning_rate=options.rate,
        momentum="0",
        weight_decay=0.0,
        visible_bias="log-odds",
        persistent=True,
        chains=BATCH,
        cd_steps=options.steps,
        centred=centred,
        seed=seed,
        backend="numpy",
    )
    ends = [0.0]

    def observe(event: Any) -> None:
        if isinstance(event, EpochFinished):
            ends.append(ends[-1] + event.time - event.started)

    train_run(settings, out=folder / "run", observers=[observe])
    np.save(folder / "seconds.npy", ends)
    (folder / "states.npy").unlink()


def points(
    folder: Path, held_out: Array, options: argparse.Namespace
) -> dict[int, tuple[float, float, float]]:
    """Return seconds, log-likelihood and its error by the number of updates."""
    ends, found = np.load(folder / "seconds.npy"), {}
    for path in sorted((folder / "run" / "updates").iterdir()):
        stack = load(path)
        updates = int(stack.info["updates"])
        if updates >= FIRST:
            at = np.linspace(0, options.updates, len(ends))
            seconds = float(np.interp(updates, at, ends))
            found[updates] = (seconds, *likelihood(stack.layers[0], held_out, options))
            print(folder.name, updates, *(f"{x:.2f}" for x in found[updates]), flush=True)
    return found


def likelihood(layer: Layer, held_out: Array, options: argparse.Namespace) -> tuple[float, float]:
    """Return the mean log-likelihood of held-out rows, and the standard error of log Z."""
    if not options.temperatures:
        return np.nan, np.nan
    found = log_z_ais(layer, chains=options.chains, steps=options.temperatures)
    return float(-free_energy(layer, held_out).mean() - found.value), (found.high - found.value) / 3


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", type=int, help="this seed alone")
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1, help="the k of PCD-k")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--chains", type=int, default=100, help="of the annealing")
    parser.add_argument("--temperatures", type=int, default=1000)
    options = parser.parse_args()

    data, draws = load_dataset("mnist"), np.random.default_rng(0)
    X, held_out = (np.float32(draws.random(x.shape) < x) for x in (data.train, data.test))
    seeds = range(options.seeds) if options.only is None else [options.only]
    table: dict[str, list[dict[int, tuple[float, float, float]]]] = {}
    with threadpool_limits(1, user_api="blas"):
        for name, seed in ((name, seed) for seed in seeds for name in GRADIENTS):
            folder = options.runs / f"{name}-{options.steps}-{options.rate:g}-{seed}"
            if not folder.exists():
                train(X, folder, options, centred=name == "centred", seed=seed)
            table.setdefault(name, []).append(points(folder, held_out, options))
    rows = []
    for updates in table["plain"][0]:
        found = np.array([[one[updates] for one in table[name]] for name in GRADIENTS])
        means = found.mean(axis=1)
        cells = [f"{x:.1f}" for seconds, nats, _ in means for x in (seconds, nats)]
        rows.append([f"{updates:,}", *cells, f"{found[..., 2].max():.2f}"])
    head = ("updates", "plain s", "plain nats", "centred s", "centred nats", "error of log Z")
    print(rst_table(head, rows))
    print(f"\n{len(seeds)} seeds, PCD-{options.steps}, rate {options.rate:g}; {machine(())}")


if __name__ == "__main__":
    main()
