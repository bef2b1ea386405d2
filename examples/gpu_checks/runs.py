"""Whole runs: their seconds, and the memory that they leave."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from gpu_checks.bench import Bench, Table
from syncpretrain import Stack, finetune, pretrain
from syncpretrain.cli import main
from syncpretrain.data.named import check_mnist
from syncpretrain.errors import DataError
from syncpretrain.events import EpochFinished

__all__ = ["epochs", "paper"]

RUNS = {
    "greedy": {"schedule": "greedy"},
    "synchronized, in turns": {"runtime": "serial"},
    "synchronized, in threads": {"runtime": "threads"},
}
PAPER = ["--preset", "santara2016"]
SECONDS, ERRORS = ("data", "pretrain", "finetune", "total"), ("train", "validation", "test")
MIB = 1 << 20


def epochs(bench: Bench) -> Table:
    """Return the seconds of runs, of an epoch of each layer in them, and the memory left taken."""
    layers = [bench.name(layer) for layer in range(1, bench.depth + 1)]
    return ("Run", "seconds", *layers, "MiB left"), _of_runs(bench)


def _of_runs(bench: Bench) -> Iterator[Sequence[str]]:
    X, stacks = bench.examples(1, bench.rows), list[Stack]()
    for name, settings in RUNS.items():
        title = f"{name}, {bench.epochs} epochs"
        yield from bench.rows_of(title, _of_run(bench, X, title, settings, stacks))
    if stacks:
        title = f"fine-tuning, {bench.epochs} epochs"
        yield from bench.rows_of(title, _of_tuning(bench, X, title, stacks[-1]))


def _of_run(
    bench: Bench, X: Any, title: str, settings: dict[str, Any], stacks: list[Stack]
) -> Iterator[Sequence[str]]:
    busy: dict[int, list[float]] = {layer: [] for layer in range(1, bench.depth + 1)}

    def note(event: Any) -> None:
        if isinstance(event, EpochFinished):
            busy[event.layer].append(event.time - event.started)

    own: dict[str, Any] = {"layers": bench.layers, "batch_size": bench.batch_size, "warn": False}
    own |= {"epochs": bench.epochs, "backend": bench.backend_name, "observers": [note]}
    with _spent(bench) as spent:
        stacks.append(pretrain(X, **own, **settings))
    each = [f"{min(times):.3f}" for times in busy.values()]  # the first compiles
    yield [title, spent[0], *each, spent[1]]


def _of_tuning(bench: Bench, X: Any, title: str, stack: Stack) -> Iterator[Sequence[str]]:
    own: dict[str, Any] = {"batch_size": bench.batch_size, "backend": bench.backend_name}
    with _spent(bench) as spent:
        finetune(stack, X, epochs=bench.epochs, warn=False, **own)
    yield [title, spent[0], *[""] * bench.depth, spent[1]]


@contextmanager
def _spent(bench: Bench) -> Iterator[list[str]]:
    """Yield a list that has the seconds of the block, then the MiB that it leaves taken."""
    device, spent = bench.backend.xp.cuda.Device(bench.backend.device), list[str]()
    free, started = device.mem_info[0], perf_counter()
    yield spent
    spent.append(f"{perf_counter() - started:.2f}")
    spent.append(f"{(free - device.mem_info[0]) / MIB:.0f}")


def paper(bench: Bench) -> Table:
    """Return the seconds and the errors of the paper's run on MNIST, by the command line."""
    head = ("The paper's run", *(f"{part}, s" for part in SECONDS), *ERRORS)
    return head, bench.rows_of("the paper's run", _of_paper(bench))


def _of_paper(bench: Bench) -> Iterator[Sequence[str]]:
    lacking = _why_no_mnist()
    if lacking is not None:
        yield [f"not run: {lacking}"]
        return
    assert bench.backend, "there is a GPU"
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()) as printed:
        own = ["--backend", bench.backend_name, "--out", folder, "--quiet", "--json"]
        status = main(["train", *PAPER, *own], standalone_mode=False)
    if status:
        raise RuntimeError(f"syncpretrain train ended with status {status}")
    print(printed.getvalue(), flush=True)
    report = json.loads(printed.getvalue())
    seconds, errors = report["seconds"], report["reconstruction_error"]
    found = [f"{seconds[part]:.2f}" for part in SECONDS]
    yield ["whole", *found, *(f"{errors[part]:.2f}" for part in ERRORS)]


def _why_no_mnist() -> str | None:
    """Return why the digits are not here; they are not downloaded."""
    if "SYNCPRETRAIN_DATA" not in os.environ:
        return "SYNCPRETRAIN_DATA names no folder with MNIST"
    try:
        check_mnist()
    except DataError as error:
        return str(error)
    return None
