"""Train the same layers in parallel and one after another; compare time and error.

    python examples/threads_against_greedy.py

Both take the same epochs. In parallel, a layer begins as soon as the one below has finished its
first epoch; greedily, when it has finished its last.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from syncpretrain import pretrain
from syncpretrain.data import load_dataset


def main() -> None:
    digits = load_dataset("digits")
    for schedule in ("greedy", "synchronized"):
        started = perf_counter()
        stack = pretrain(
            digits.train,
            layers=[64, 256, 128, 32],
            epochs=20,
            batch_size=20,
            schedule=schedule,
            runtime="threads",
            blas_threads=1,
        )
        seconds = perf_counter() - started
        error = np.square(stack.reconstruct(digits.test) - digits.test).sum(axis=1).mean()
        print(f"{schedule:>12}: {seconds:5.2f} s, squared error {error:.2f} an unseen digit")


if __name__ == "__main__":
    main()
