"""How near an RBM comes to spins of known probability: plain and centred gradients by updates.

    python examples/benchmarks/ising.py
    python examples/benchmarks/ising.py --seeds 1 --updates 500

The truth is the Ising model on a torus of 3 x 4 spins at the critical temperature of the square
lattice. An RBM of 12 hidden units trains on 10,000 draws by PCD-10 with 500 chains of its own,
rate 0.05, no momentum and no decay. The table has the Kullback-Leibler divergence of the model from
the truth, exact by the sum over all 4,096 states; the lowest and the highest of the seeds. It ends
with the same of the frequencies of the draws.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import numpy as np
from _timing import machine, rst_table

from syncpretrain import pretrain

SHAPE, HIDDEN, ROWS, BATCH = (3, 4), 12, 10_000, 500
SPINS = SHAPE[0] * SHAPE[1]
STATES = (np.arange(2**SPINS)[:, None] >> np.arange(SPINS) & 1).astype(np.float64)


def truth() -> Any:
    """Return the probability of each state: each spin has four neighbours."""
    spins = (2 * STATES - 1).reshape(-1, *SHAPE)
    bonds = sum((spins * np.roll(spins, 1, axis)).sum(axis=(1, 2)) for axis in (1, 2))
    p = np.exp(bonds * np.log(1 + np.sqrt(2)) / 2)
    return p / p.sum()


def divergence(p: Any, layer: Any) -> float:
    """Return sum p log(p / q), q of an RBM of binary units."""
    W, a, b = (np.float64(x) for x in (layer.weight, layer.visible_bias, layer.hidden_bias))
    log_q = STATES @ a + np.logaddexp(0, STATES @ W + b).sum(axis=1)
    log_q -= np.logaddexp.reduce(log_q)
    return float(p @ (np.log(p) - log_q))


def trained(X: Any, updates: int, *, centred: bool, seed: int) -> Any:
    """Return the layer after so many updates."""
    stack = pretrain(
        X,
        hidden=[HIDDEN],
        epochs=updates * BATCH // len(X),
        batch_size=BATCH,
        learning_rate=0.05,
        momentum="0",
        weight_decay=0,
        persistent=True,
        chains=500,
        cd_steps=10,
        centred=centred,
        seed=seed,
        warn=False,
    )
    return stack.layers[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", default="500,1000,4000")
    options = parser.parse_args()

    p, rows, of_draws = truth(), [], []
    updates = list(map(int, options.updates.split(",")))
    draws = [np.random.default_rng(seed).choice(len(p), ROWS, p=p) for seed in range(options.seeds)]
    for drawn in draws:
        share = np.bincount(drawn, minlength=len(p)) / ROWS
        seen = share > 0
        of_draws.append(float(share[seen] @ np.log(share[seen] / p[seen])))
    for centred in (False, True):
        row, started = [], perf_counter()
        for count in updates:
            found = [
                divergence(p, trained(np.float32(STATES[x]), count, centred=centred, seed=seed))
                for seed, x in enumerate(draws)
            ]
            row.append(f"{min(found):.3f} to {max(found):.3f}")
        seconds = (perf_counter() - started) / options.seeds
        rows.append(["centred" if centred else "plain", *row, f"{seconds:.1f}"])
    print(rst_table(["gradient", *(f"{n} updates" for n in updates), "s a seed"], rows))
    print(f"\n{options.seeds} seeds; draws {np.mean(of_draws):.3f} from the truth; {machine(())}")


if __name__ == "__main__":
    main()
