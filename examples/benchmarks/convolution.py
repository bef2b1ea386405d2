"""A convolution forward and both its gradients with one core, against PyTorch's.

    python examples/benchmarks/convolution.py --turns 5

One minibatch of random images, in turns, each in a process of its own; PyTorch's column only where
it can be imported. Times are those of the processor, so that other programs disturb them less. Bare
convolutions are linear. Pooled ones are followed by the maximum over
blocks of 2 x 2, a bias and ReLU, as in LeNet. The gradients are those of the filters, of the biases
and of the images, which the lowest layer of a network does not need.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from _timing import Outcome, busy, in_a_process, in_turns, machine, ratios, rst_table, spread
from threadpoolctl import threadpool_limits

from syncpretrain.kernels.convolution import scratch_size
from syncpretrain.kernels.program import Program, in_turn
from syncpretrain.shapes import ConvolutionShape

BARE = {
    "1-20, 5x5, 28x28": ConvolutionShape(1, 28, 28, 20, 5, channels_first=True),
    "20-50, 5x5, 12x12": ConvolutionShape(20, 12, 12, 50, 5),
    "3-32, 5x5, 32x32": ConvolutionShape(3, 32, 32, 32, 5, pad=2, channels_first=True),
    "32-32, 5x5, 16x16": ConvolutionShape(32, 16, 16, 32, 5, pad=2),
    "64-64, 3x3, 14x14": ConvolutionShape(64, 14, 14, 64, 3, pad=1),
}
CASES = BARE | {f"{name}, pooled": replace(shape, pool=2) for name, shape in BARE.items()}
WARM_UP = 3  # steps


def ours(shape: ConvolutionShape, batch: int) -> Callable[[], Any]:
    """Return a step of this library: a program."""
    draws = np.random.default_rng(0)

    def drawn(*lengths: int) -> Any:
        return draws.standard_normal(lengths, dtype=np.float32)

    x, given, bias = drawn(batch, shape.visible), drawn(batch, shape.hidden), drawn(shape.filters)
    weight = drawn(shape.fan_in, shape.filters) / np.float32(shape.fan_in**0.5)
    out, dW, db, dx = map(np.empty_like, (given, weight, bias, x))
    places = np.empty(given.shape if shape.pool > 1 else 0, dtype=np.float32)
    scratch = np.empty(scratch_size(shape), dtype=np.float32)
    units, all_filters = "relu" if shape.pool > 1 else "gaussian", (0, shape.filters)
    delta = np.empty_like(given) if shape.pool > 1 else given
    slope = [("copy", given, delta), ("times_derivative", delta, out, units)]
    operations = [
        ("convolve", x, weight, bias, out, places, scratch, shape, units, *all_filters),
        *(slope if shape.pool > 1 else []),
        ("convolve_gradient", x, delta, places, dW, scratch, shape, *all_filters),
        ("sum_rows", delta.reshape(-1, shape.filters), db),
        ("convolve_back", delta, places, weight, dx, scratch, shape, 0, shape.channels),
    ]
    program = Program([[operations]], 0)
    return lambda: in_turn(program, 1)


def pytorch(shape: ConvolutionShape, batch: int) -> Callable[[], Any]:
    """Return a step of PyTorch: a graph by autograd, and its gradients."""
    import torch
    from torch.nn.functional import conv2d, max_pool2d, relu

    torch.set_num_threads(1)
    x = torch.randn(batch, shape.channels, shape.height, shape.width, requires_grad=True)
    weight = torch.randn(shape.filters, shape.channels, shape.size, shape.size)
    weight = weight.div_(shape.fan_in**0.5).requires_grad_()
    bias = torch.randn(shape.filters, requires_grad=True)

    def forward() -> Any:
        maps = conv2d(x, weight, bias, padding=shape.pad)
        return relu(max_pool2d(maps, shape.pool)) if shape.pool > 1 else maps

    given = torch.randn_like(forward())
    return lambda: torch.autograd.grad(forward(), (x, weight, bias), given)


def measure(who: str, case: str, *, batch: int, steps: int) -> None:
    """Print the median time of a step, as the outcome of a process."""
    with threadpool_limits(limits=1):
        step = {"ours": ours, "PyTorch": pytorch}[who](CASES[case], batch)
        seconds = []
        for i in range(-WARM_UP, steps):
            started = process_time()
            step()
            if i >= 0:
                seconds.append(process_time() - started)
    print(json.dumps({"seconds": median(seconds), "error": None}))


def measured(case: str, *arguments: str) -> Outcome:
    """Return the outcome of a process; the last argument says who is measured."""
    *sizes, who = arguments
    return in_a_process(Path(__file__), ["--measure", who, case, *sizes])


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="in a turn")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--measure", nargs=2, metavar=("WHO", "CASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure, batch=options.batch, steps=options.steps)
        return
    others, has_pytorch = busy(), find_spec("torch") is not None
    names = ["ours", "PyTorch"] if has_pytorch else ["ours"]
    rows = []
    for case, shape in CASES.items():
        print(case, file=sys.stderr)
        sizes = ("--steps", str(options.steps), "--batch", str(options.batch))
        outcomes = in_turns(names, options.turns, partial(measured, case, *sizes))
        times = [f"{median(o['seconds'] for o in outcomes[who]) * 1e3:.1f}" for who in names]
        if has_pytorch:
            times.append(spread(ratios(outcomes["ours"], outcomes["PyTorch"])))
        products = 6 * shape.products * options.batch  # two operations each, in three products
        rows.append([case, f"{products / 1e9:.2f}", *times])
    head = ["channels-filters", "10^9 operations", *(f"{name}, ms" for name in names)]
    print(rst_table([*head, *(["ours over PyTorch's"] if has_pytorch else [])], rows))
    print(f"\n({machine(['torch'] if has_pytorch else [])})")
    if others > 0.7:
        print(f"Not to be quoted: other programs were running (load {others:.1f}).")


if __name__ == "__main__":
    main()
