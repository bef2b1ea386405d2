"""Train somebody else's model with several processes: their gradient, averaged in shared memory.

python examples/average_gradients.py --workers 2

The model is a softmax regression in plain NumPy on scikit-learn's 8 x 8 digits. Nothing in it knows
of workers, shards or shared memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.parallel import GradientAverager, Handle

SHARDS = 4  # of every minibatch; the result depends on it, and not on the number of workers
BATCH = 200
RATE = np.float32(0.5)
WAIT_SECONDS = 600

Array = NDArray[np.float32]


def loss_and_gradients(
    W: Array, b: Array, X: Array, labels: NDArray[Any]
) -> tuple[float, Array, Array]:
    """Return the mean cross-entropy of softmax(X W + b), and its gradients for W and b."""
    scores = X @ W + b  # (B, 64) @ (64, 10) -> (B, 10)
    scores -= scores.max(axis=1, keepdims=True)
    p = np.exp(scores)
    p /= p.sum(axis=1, keepdims=True)
    rows = np.arange(len(X))
    loss = -np.log(p[rows, labels]).mean()
    p[rows, labels] -= 1
    p /= len(X)
    return float(loss), X.T @ p, p.sum(axis=0)


def descend(parameters: Array, mean_gradient: Array, where: slice) -> None:
    """Move one worker's slice of all parameters."""
    parameters -= RATE * mean_gradient


def work(handle: Handle, X: Array, labels: NDArray[Any], steps: int) -> None:
    """Be one worker; the first one reports."""
    with handle as worker:
        W, b = worker.parameters
        for step in range(steps):
            batch = np.random.default_rng(step).permutation(len(X))[:BATCH]
            for shard in worker.shards:
                rows = batch[shard::SHARDS]
                loss, of_W, of_b = loss_and_gradients(W, b, X[rows], labels[rows])
                worker.gradients[shard][0][...] = of_W
                worker.gradients[shard][1][...] = of_b
            worker.average(descend)
            if worker.rank == 0 and step % max(1, steps // 5) == 0:
                print(f"step {step}: loss {loss:.3f}", flush=True)
        if worker.rank == 0:
            print(f"step {steps}: loss {loss_and_gradients(W, b, X, labels)[0]:.3f}", flush=True)


def train(workers: int, X: Array, labels: NDArray[Any], steps: int) -> list[Array]:
    """Return the parameters after some steps of so many processes."""
    spawn = multiprocessing.get_context("spawn")
    with GradientAverager([(64, 10), (10,)], shards=SHARDS, workers=workers) as averager:
        processes = [
            spawn.Process(target=work, args=(averager.worker(rank), X, labels, steps))
            for rank in range(workers)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(WAIT_SECONDS)
        if any(process.exitcode != 0 for process in processes):
            raise SystemExit("a process failed, or is not done yet")  # the others hear of it
        return [array.copy() for array in averager.parameters]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="processes, at most 4")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()

    from sklearn.datasets import load_digits  # here: the processes do without

    digits = load_digits()
    X, labels = (digits.data / 16).astype(np.float32), digits.target
    several = train(options.workers, X, labels, options.steps)
    one = train(1, X, labels, options.steps)
    same = all(np.array_equal(a, b) for a, b in zip(several, one, strict=True))
    print(f"1 and {options.workers} workers: {'the same' if same else 'DIFFERENT'} bits")


if __name__ == "__main__":
    main()
