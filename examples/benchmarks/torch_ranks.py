"""PyTorch blocks on the ranks of an MPI job, over a link of less and less bandwidth.

    mpiexec -n 4 python examples/benchmarks/torch_ranks.py --latency 100e-6

Every rank has one block. Its linear layers are as wide as ``--units``, and a minibatch takes
``--seconds`` in which it computes nothing, as if every rank had a core of its own: what is measured
is the hand-over. The first column is the bandwidth into a rank, as a share of what the outputs of
one block need to arrive in the time of a step. Beside it stands what a pipeline of the same blocks
takes that is trained end to end, with a forward and a backward pass of each microbatch in turn
(1F1B) and a flush after each minibatch, from a model that has no other cost.
"""

from __future__ import annotations

import argparse
import math
import time
from statistics import median
from typing import Any

import numpy as np
import torch
from _links import Link, emulate, only_take_time, pipeline_seconds
from _timing import rst_table
from torch import nn

from syncpretrain.cluster.job import using
from syncpretrain.cluster.mpi import MPIEngine
from syncpretrain.cluster.transport import Transport
from syncpretrain.events import EpochFinished
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.learners.steps import WholeStep
from syncpretrain.torch import LocalTrainer

SHARES = (4.0, 2.0, 1.5, 1.1, 1.0, 0.5)  # of the bandwidth that is needed
PARTS = 4, 8, 16  # of a minibatch, in the pipeline


def epoch_seconds(units: int, batch_size: int, steps: int, blocks: int, epochs: int = 3) -> float:
    """Return the seconds of an epoch of the last block after its first one, on the first rank."""
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(units, units) for _ in range(blocks)))
    X = np.zeros((batch_size * steps, units), np.float32)
    ends: list[float] = []

    def tell(event: object) -> None:
        if isinstance(event, EpochFinished) and event.layer == blocks:
            ends.append(time.monotonic())

    how: dict[str, Any] = {"loss": "reconstruction", "runtime": "mpi", "workers": blocks}
    trainer = LocalTrainer(network, observers=[tell], **how)
    trainer.fit(X, batch_size=batch_size, epochs=epochs)
    return (ends[-1] - ends[0]) / max(1, len(ends) - 1) if ends else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--units", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10e-3)
    parser.add_argument("--latency", type=float, default=100e-6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    options = parser.parse_args()
    transport = Transport(MPIEngine())
    only_take_time(WholeStep, [options.seconds] * transport.size)
    size = FLOAT_BYTES * options.batch_size * options.units
    needed = size / options.seconds
    found: dict[float, list[float]] = {share: [] for share in (math.inf, *options.shares)}
    how = options.units, options.batch_size
    with using(transport):
        epoch_seconds(*how, 1, transport.size, epochs=1)  # in which PyTorch imports its optimizers
        for _ in range(options.rounds):
            for share, times in found.items():
                is_free = share == math.inf
                emulate(transport, None if is_free else Link(share * needed, options.latency))
                times.append(epoch_seconds(*how, options.steps, transport.size))
                emulate(transport, None)
                # A short run ends behind all that is still on its way.
                epoch_seconds(*how, 1, transport.size, epochs=1)
    if transport.rank:
        return
    rows, free = [], median(found[math.inf])
    ideal = options.steps * options.seconds
    for share, times in found.items():
        link = Link() if share == math.inf else Link(share * needed, options.latency)
        pipelines = [
            pipeline_seconds(transport.size, n, step=options.seconds, size=size, link=link)
            for n in PARTS
        ]
        rows.append(
            (
                f"{share:g}",
                f"{median(times):.2f}",
                f"{median(times) / free:.2f} ({min(times) / free:.2f} to {max(times) / free:.2f})",
                *(f"{seconds / options.seconds:.2f}" for seconds in pipelines),
            )
        )
    names = ["bandwidth", "epoch, s", "of a free link", *(f"1F1B, {n} parts" for n in PARTS)]
    print(rst_table(names, rows))
    print(f"{transport.size} ranks, {ideal:.2f} s of steps, {needed / 1e6:.1f} MB/s are needed")


if __name__ == "__main__":
    main()
