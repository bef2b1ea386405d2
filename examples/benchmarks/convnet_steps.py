"""A training step of LeNet, also in bfloat16, against PyTorch's, with one worker and with two.

    python examples/benchmarks/convnet_steps.py --turns 5

Cross-entropy and Adam on one minibatch of random images, in turns, each in a process of its own:
ours split by examples, PyTorch with as many threads, in its usual memory format and channels last.
Wall times.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from _timing import Outcome, busy, in_a_process, in_turns, machine, ratios, rst_table, spread
from yadan import Steps

from syncpretrain.parallel.blas import blas_limit
from syncpretrain.parallel.worker_pool import WorkerPool

NAMES = ("ours", "ours, bfloat16", "PyTorch", "PyTorch, channels last")
WARM_UP = 5  # steps


def ours(batch: int, threads: int, steps: int, precision: str) -> float:
    """Return the median time of a step of this library."""
    net = Steps("LeNet", batch, threads, "examples", precision)
    with blas_limit(1), closing(WorkerPool(threads, "benchmark")) as pool:
        return net.seconds(pool, threads, at_least=steps)


def pytorch(batch: int, threads: int, steps: int, *, channels_last: bool) -> float:
    """Return the median time of a step of the same net by PyTorch."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net: Any = nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )
    x, target = torch.rand(batch, 1, 28, 28), torch.randint(10, (batch,))
    if channels_last:
        net, x = (thing.to(memory_format=torch.channels_last) for thing in (net, x))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-6, fused=True)
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(net(x), target).backward()
        optimizer.step()

    return timed(step, steps)


def timed(step: Callable[[], None], steps: int) -> float:
    """Return the median time of a step."""
    seconds = []
    for _ in range(WARM_UP + steps):
        started = perf_counter()
        step()
        seconds.append(perf_counter() - started)
    return median(seconds[WARM_UP:])


def measure(who: str, batch: int, threads: int, steps: int) -> None:
    """Print the median time of a step, as the outcome of a process."""
    if who.startswith("ours"):
        precision = "bfloat16" if who.endswith("bfloat16") else "float32"
        seconds = ours(batch, threads, steps, precision)
    else:
        seconds = pytorch(batch, threads, steps, channels_last=who.endswith("last"))
    print(json.dumps({"seconds": seconds, "error": None}))


def measured(case: tuple[int, int], steps: int, who: str) -> Outcome:
    """Return the outcome of a process."""
    sizes = (*map(str, case), "--steps", str(steps))
    return in_a_process(Path(__file__), ["--measure", who, *sizes])


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="in a turn")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        who, batch, threads = options.measure
        measure(who, int(batch), int(threads), options.steps)
        return
    others, rows = busy(), []
    for case in ((100, 1), (256, 1), (100, 2), (256, 2)):
        print(f"batch {case[0]}, {case[1]} threads", file=sys.stderr)
        outcomes = in_turns(NAMES, options.turns, partial(measured, case, options.steps))
        times = [f"{median(o['seconds'] for o in outcomes[who]) * 1e3:.1f}" for who in NAMES]
        shares = [spread(ratios(outcomes["ours"], outcomes[who])) for who in NAMES[1:]]
        rows.append([*map(str, case), *times, *shares])
    head = ["batch", "threads", *(f"{name}, ms" for name in NAMES)]
    head += ["ours over bfloat16's", "over PyTorch's", "over channels last"]
    print(rst_table(head, rows))
    print(f"\n({machine(['torch'])})")
    if others > 0.7:
        print(f"Not to be quoted: other programs were running (load {others:.1f}).")


if __name__ == "__main__":
    main()
