"""Whole runs: their seconds, the memory that they leave, and whether their bits are the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import Any
from unittest import mock

from gpu_checks.bench import Bench, Table
from syncpretrain import Stack, finetune, pretrain
from syncpretrain.backends.recorder import Recorder
from syncpretrain.events import EpochFinished

__all__ = ["epochs", "same_bits"]

RUNS = {
    "greedy": {"schedule": "greedy"},
    "synchronized, in turns": {"runtime": "serial"},
    "synchronized, in threads": {"runtime": "threads"},
}
MODELS: dict[str, dict[str, Any]] = {
    "binary units": {},
    "rectified units": {"hidden_units": "relu", "learning_rate": 0.001},
    "autoencoder": {"model": "autoencoder"},
}
WAYS: dict[str, dict[str, Any]] = {
    "in turns": {"runtime": "serial"},
    "in threads": {"runtime": "threads"},
    "launch by launch": {"runtime": "threads"},
}
MIB = 1 << 20


def epochs(bench: Bench) -> Table:
    """Return the seconds of runs, of an epoch of each layer in them, and the memory left taken."""
    layers = [bench.name(layer) for layer in range(1, bench.depth + 1)]
    return ("Run", "seconds", *layers, "MiB left"), _of_runs(bench)


def _of_runs(bench: Bench) -> Iterator[list[str]]:
    X, stacks = bench.examples(1, bench.rows), []
    for name, settings in RUNS.items():
        busy: dict[int, list[float]] = {layer: [] for layer in range(1, bench.depth + 1)}

        def note(event: Any, busy: dict[int, list[float]] = busy) -> None:
            if isinstance(event, EpochFinished):
                busy[event.layer].append(event.time - event.started)

        with _spent(bench) as spent:
            stacks.append(_pretrained(bench, X, bench.epochs, observers=[note], **settings))
        each = [f"{min(times):.3f}" for times in busy.values()]  # the first compiles
        yield [f"{name}, {bench.epochs} epochs", spent[0], *each, spent[1]]
    with _spent(bench) as spent:
        epochs, size = bench.epochs, bench.batch_size
        finetune(stacks[-1], X, epochs=epochs, batch_size=size, backend=_name(bench))
    yield [f"fine-tuning, {bench.epochs} epochs", spent[0], *[""] * bench.depth, spent[1]]


@contextmanager
def _spent(bench: Bench) -> Iterator[list[str]]:
    """Yield a list that has the seconds of the block, then the MiB that it leaves taken."""
    device, spent = bench.backend.xp.cuda.Device(bench.backend.device), list[str]()
    free, started = device.mem_info[0], perf_counter()
    yield spent
    spent.append(f"{perf_counter() - started:.2f}")
    spent.append(f"{(free - device.mem_info[0]) / MIB:.0f}")


def same_bits(bench: Bench) -> Table:
    """Return whether runs of each model come to the same bits, however they are worked.

    Raises
    ------
    AssertionError
        At the end of the rows, if some do not.
    """
    return ("Model", *WAYS), _of_models(bench)


def _of_models(bench: Bench) -> Iterator[list[str]]:
    X = bench.examples(1, max(bench.rows // 10, 4 * bench.batch_size))
    differing = []
    for model, settings in MODELS.items():
        sums = []
        for way, own in WAYS.items():
            is_eager = way == "launch by launch"
            never = mock.patch.object(Recorder, "_record", return_value=None)
            with never if is_eager else nullcontext():
                sums.append(_pretrained(bench, X, 3, **settings, **own).parameters_sha256)
        differing += [] if len(set(sums)) == 1 else [model]
        yield [model, *(each[:8] for each in sums)]
    assert not differing, f"other bits: {', '.join(differing)}"


def _pretrained(bench: Bench, X: Any, epochs: int, **settings: Any) -> Stack:
    own = {"layers": bench.layers, "batch_size": bench.batch_size, "warn": False}
    return pretrain(X, **own, epochs=epochs, backend=_name(bench), **settings)  # type: ignore[arg-type]


def _name(bench: Bench) -> str:
    return f"cupy:{bench.backend.device}"
