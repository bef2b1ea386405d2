"""Asynchronous training: its server in slices, what plan predicts, who is stopped, ranks.

    python examples/benchmarks/async_replicas.py servers
    python examples/benchmarks/async_replicas.py plan
    python examples/benchmarks/async_replicas.py trim
    mpiexec -n 4 python examples/benchmarks/async_replicas.py exchange --replicas 3

``servers`` times fetches and pushes of one parameter server whose vector is cut into slices, each
with a thread. ``plan`` holds the predicted seconds of a pretraining by the number of replicas
against measured ones. ``trim`` pretrains with more replicas than pay, with both rules of the rate,
and prints what the trial found, and the error with and without it. ``exchange`` compares messages
and windows on ranks, in turns: the time of an update where nothing is computed, then that of a
pretraining, its error, and the accuracy of a classifier on the codes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from _timing import machine, rst_table, spread
from sklearn.linear_model import LogisticRegression

from syncpretrain import Stack, pretrain
from syncpretrain.cluster.job import joined
from syncpretrain.data import load_dataset
from syncpretrain.events import EpochFinished, Event, Notice, RunFinished
from syncpretrain.kernels.arrays import Array
from syncpretrain.parallel.replicas.server import ParameterServer
from syncpretrain.parallel.replicas.steps import tasks_of
from syncpretrain.parallel.timeouts import TIMEOUTS
from syncpretrain.planning import plan
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.pretraining.on_ranks import on_every_rank
from syncpretrain.settings import settings_from
from syncpretrain.settings.fields import AsyncFields
from syncpretrain.workers.replicas import replicas_in

SIZES = [100_000, 400_000, 4_000_000]
EXCHANGES = 60
KINDS_OF_EXCHANGE = ("messages", "windows")
UPDATES = 100
WAYS: dict[str, dict[str, Any]] = {
    "rate by staleness": {},
    "constant rate": {"async_rate": "constant"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("part", choices=["servers", "plan", "trim", "exchange"])
    parser.add_argument("--layers", default="784,500,250")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()
    if options.part == "exchange":
        tables = on_every_rank(partial(exchanged, options))
        if joined().rank:
            return
        print("\n".join(tables))
        print(f"\n({options}; {machine(())})")
        return
    parts = {"servers": servers, "plan": planned, "trim": trimmed}
    for table in parts[options.part](options):
        print(table)
    print(f"\n({options}; {machine(())})")


def servers(options: argparse.Namespace) -> Iterator[str]:
    """Yield the milliseconds of a fetch and a push by the number of slices."""
    rows = []
    for size in options.sizes:
        rows.append([f"{size:,}", *(f"{_exchange(size, n):.3f}" for n in (1, 2, 3))])
    yield rst_table(["parameters", "1 slice", "2 slices", "3 slices"], rows)


def _exchange(size: int, count: int) -> float:
    server = ParameterServer(np.zeros(size, np.float32), AsyncFields(), count)
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
    assert found is not None, "of cores"
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


class Idle:
    """A replica that computes nothing: all its parameters grow by 1 in a step."""

    def __init__(self, size: int, data: Sequence[Any]) -> None:
        self.parameters = [np.zeros(size, np.float32)]

    def train(self, epoch: int, step: int) -> list[float]:
        """Take a step."""
        self.parameters[0] += 1
        return [0.0]

    def state(self) -> dict[str, Array]:
        """Return nothing."""
        return {}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Do nothing."""


def exchanged(options: argparse.Namespace) -> list[str]:
    """Return two tables of both exchanges: idle replicas, and a pretraining."""
    idle = []
    for size in options.sizes:
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in KINDS_OF_EXCHANGE}
        for _ in range(options.rounds):
            for name, runs in found.items():
                runs.append(_idle(name, size, options))
        idle += [[f"{size:,}", *row] for row in _rows(found)]
    digits = load_dataset("mnist")
    trained: dict[str, list[tuple[float, ...]]] = {name: [] for name in KINDS_OF_EXCHANGE}
    for seed in range(options.rounds):
        for name, runs in trained.items():
            runs.append(_pretrained(name, seed, digits, options))
    update = "ms an update"
    return [
        rst_table(["parameters", "exchange", update, "staleness"], idle),
        rst_table(["exchange", update, "error of layer 1", "accuracy"], _rows(trained)),
    ]


def _rows(found: Mapping[str, Sequence[tuple[float, ...]]]) -> list[list[str]]:
    return [
        [name, *(spread(values) for values in zip(*runs, strict=True))]
        for name, runs in found.items()
    ]


def _idle(exchange: str, size: int, options: argparse.Namespace) -> tuple[float, float]:
    """Return milliseconds of an update, all of which must add up, and their mean staleness."""
    rules = AsyncFields(async_rate="constant")
    server = ParameterServer(np.zeros(size, np.float32), rules, options.servers)
    fleet = replicas_in(
        "mpi",
        server,
        rules,
        partial(Idle, size),
        (),
        replicas=options.replicas,
        exchange=exchange,
        report=print,
        times=TIMEOUTS,
    )
    stale: list[int] = []
    with fleet:
        began = perf_counter()
        fleet.train(tasks_of(1, 0, UPDATES, 1), lambda: False, lambda *of: stale.append(of[2]))
        seconds = perf_counter() - began
    assert (server.parameters == UPDATES).all()
    return 1e3 * seconds / UPDATES, sum(stale) / UPDATES


def _pretrained(
    exchange: str, seed: int, digits: Any, options: argparse.Namespace
) -> tuple[float, ...]:
    """Return milliseconds of an update, the last error of layer 1, and the accuracy in per cent."""
    settings = settings_from(
        [int(x) for x in options.layers.split(",")],
        epochs=options.epochs,
        schedule="async",
        runtime="mpi",
        replicas=options.replicas,
        servers=options.servers,
        exchange=exchange,
        seed=seed,
    ).pretrain
    X, seconds, errors = digits.train[: options.rows], list[float](), list[float]()

    def observe(event: Event) -> None:
        if isinstance(event, RunFinished):
            seconds.append(event.seconds)
        elif isinstance(event, EpochFinished) and event.layer == 1:
            errors.append(event.train_error)

    stack: Stack = driver_for(settings, X, observers=[observe]).run()
    classifier = LogisticRegression(max_iter=1000)
    classifier.fit(stack.encode(X), digits.train_labels[: options.rows])
    right = classifier.score(stack.encode(digits.test), digits.test_labels)
    updates = sum(settings.epochs) * -(-options.rows // settings.batch_size)
    return 1e3 * seconds[0] / updates, errors[-1], 100 * right


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
