"""Asynchronous training on one machine: its server in slices, what plan predicts, who is stopped.

    python examples/benchmarks/async_replicas.py servers
    python examples/benchmarks/async_replicas.py plan
    python examples/benchmarks/async_replicas.py trim

``servers`` times fetches and pushes of one parameter server whose vector is cut into slices, each
with a thread. ``plan`` holds the predicted seconds of a pretraining by the number of replicas
against measured ones. ``trim`` pretrains with more replicas than pay, with both rules of the rate,
and prints what the trial found, and the error with and without it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from _timing import machine, rst_table

from syncpretrain import pretrain
from syncpretrain.data import load_dataset
from syncpretrain.events import Event, Notice, RunFinished
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.rules import AsyncRules
from syncpretrain.parallel.replicas.server import ParameterServer
from syncpretrain.planning import plan

SIZES = (100_000, 400_000, 4_000_000)
EXCHANGES = 60
WAYS: dict[str, dict[str, Any]] = {
    "rate by staleness": {},
    "constant rate": {"async_rate": "constant"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("part", choices=["servers", "plan", "trim"])
    parser.add_argument("--layers", default="784,500,250")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    parts = {"servers": servers, "plan": planned, "trim": trimmed}
    for table in parts[options.part](options):
        print(table)
    print(f"\n({options}; {machine(())})")


def servers(options: argparse.Namespace) -> Iterator[str]:
    """Yield the milliseconds of a fetch and a push by the number of slices."""
    rows = []
    for size in SIZES:
        rows.append([f"{size:,}", *(f"{_exchange(size, n):.3f}" for n in (1, 2, 3))])
    yield rst_table(["parameters", "1 slice", "2 slices", "3 slices"], rows)


def _exchange(size: int, count: int) -> float:
    server = ParameterServer(np.zeros(size, np.float32), AsyncRules(), count)
    fetched, change = np.zeros(size, np.float32), np.zeros(size, np.float32)
    server.start()
    times = []
    try:
        for _ in range(EXCHANGES):
            began = perf_counter()
            server.push(change, server.fetch(fetched), fetched)
            times.append(perf_counter() - began)
    finally:
        server.end()
    return 1e3 * median(times)


def planned(options: argparse.Namespace) -> Iterator[str]:
    """Yield predicted and measured seconds by the number of replicas."""
    X = load_dataset("mnist").train[: options.rows]
    layers = [int(x) for x in options.layers.split(",")]
    found = plan(layers, examples=len(X), held_out=0, epochs=options.epochs).asynchronous
    rows = []
    for way in found.ways:
        own = {"schedule": "async", "replicas": way.replicas}
        times = [_run(X, layers, options.epochs, **own)[1] for _ in range(options.rounds)]
        ratio = median(times) / way.seconds
        every = " ".join(f"{x:.2f}" for x in times)
        rows.append([str(way.replicas), f"{way.seconds:.2f}", every, f"{ratio:.2f}"])
    yield rst_table(["replicas", "predicted, s", "measured, s", "ratio"], rows)
    yield found.sentence


def trimmed(options: argparse.Namespace) -> Iterator[str]:
    """Yield the error and the time of a run with all replicas, and with those that pay."""
    X = load_dataset("mnist").train[: options.rows]
    layers = [int(x) for x in options.layers.split(",")][:2]
    rows, notices = [], []
    for name, rule in WAYS.items():
        for trims in (False, True):
            own = {"schedule": "async", "replicas": options.replicas, "trim_replicas": trims}
            errors, seconds, said = _run(X, layers, options.epochs, **own, **rule)
            kind = "those that pay" if trims else f"all {options.replicas}"
            history = ", ".join(f"{error:.2f}" for error in errors)
            rows.append([name, kind, history, f"{seconds:.1f}"])
            notices += [f"{name}: {text}" for text in said]
    yield rst_table(["rule", "replicas", "error of each epoch", "seconds"], rows)
    yield "\n".join(notices)


def _run(
    X: Array, layers: list[int], epochs: int, **settings: Any
) -> tuple[list[float], float, list[str]]:
    """Return the errors of layer 1 by epoch, the seconds of a run, and what it reported."""
    seconds, notices = [], []

    def observe(event: Event) -> None:
        if isinstance(event, RunFinished):
            seconds.append(event.seconds)
        elif isinstance(event, Notice):
            notices.append(event.message)

    own = {"layers": layers, "epochs": epochs, "warn": False, **settings}
    stack = pretrain(X, observers=[observe], **own)
    assert stack.history is not None
    return list(stack.history.layers[0].train), seconds[0], notices


if __name__ == "__main__":
    main()
