"""Plain and centred gradients on MNIST: log-likelihood by updates and by seconds.

    python examples/benchmarks/centred.py
    python examples/benchmarks/centred.py --epochs 1,4 --rows 10000

Trains an RBM of 500 hidden units by PCD-1 with 500 chains of its own in minibatches of 500, on
binary digits (above a half), rate 0.05, no momentum, no decay. The log-likelihood is the mean over
the test digits; log Z is estimated by annealed importance sampling, with its error bar. The two
gradients take turns.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np
from _timing import machine, rst_table

from syncpretrain import pretrain
from syncpretrain.data import load_dataset
from syncpretrain.models.likelihood import free_energy, log_z_ais

BATCH = CHAINS = HIDDEN = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--epochs", default="1,4,16")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--steps", type=int, default=2000, help="Of the annealing.")
    options = parser.parse_args()

    data, rows = load_dataset("mnist"), []
    train, test = (np.float32(X > 0.5) for X in (data.train[: options.rows], data.test))
    for epochs in map(int, options.epochs.split(",")):
        for centred in (False, True):
            started = perf_counter()
            stack = pretrain(
                train,
                hidden=[HIDDEN],
                epochs=epochs,
                batch_size=BATCH,
                learning_rate=0.05,
                momentum="0",
                weight_decay=0,
                persistent=True,
                chains=CHAINS,
                centred=centred,
                warn=False,
            )
            seconds = perf_counter() - started
            found = log_z_ais(stack.layers[0], chains=100, steps=options.steps)
            mean = -float(free_energy(stack.layers[0], test).mean())
            rows.append(
                [
                    str(epochs * -(-len(train) // BATCH)),
                    "centred" if centred else "plain",
                    f"{mean - found.value:.1f}",
                    f"{mean - found.high:.1f} to {mean - found.low:.1f}",
                    f"{seconds:.1f}",
                ]
            )
            print(*rows[-1], flush=True)
    print(rst_table(["updates", "gradient", "log-likelihood", "3 standard errors", "s"], rows))
    print(f"\n{len(train):,} digits; {machine(())}")


if __name__ == "__main__":
    main()
