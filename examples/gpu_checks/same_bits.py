"""Runs that must have the same bits in turns, in threads, and launch by launch.

They are compared with NumPy's too. How far they may be from it depends on the run: a state that is
drawn otherwise, where a draw is as near to a mean as its last bits, moves all that is trained
after it, and normal numbers are a device's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import isqrt
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from gpu_checks.bench import Bench, Table
from syncpretrain import Stack, finetune, pretrain
from syncpretrain.backends.cupy_backend import CupyBackend
from syncpretrain.backends.recorder import GraphRecorder
from syncpretrain.backends.rows import HostRows
from syncpretrain.events import Event, Notice

__all__ = ["GROUPS", "WAYS", "Recordings", "Run", "same_bits", "watched_recordings"]

EPOCHS = 3  # the first block is worked as it is, the second recorded, the third launched
SHARDS = 4
SMALLEST_DEEP = 28  # rows and columns of an image that two convolutions and poolings fit in


class Run(NamedTuple):
    """Settings of a run, and where it is worked."""

    settings: Mapping[str, Any] = MappingProxyType({})
    on_host: bool = False  # blocks of rows that come from there are not recorded
    on_all_gpus: bool = False
    layers: str = "dense"  # or "convolutions"


GROUPS: dict[str, dict[str, Run]] = {
    "bits": {
        "binary units": Run(),
        "rectified units": Run({"hidden_units": "relu", "learning_rate": 0.001}),
        "autoencoder": Run({"model": "autoencoder"}),
    },
    "kinds": {
        "CD-3": Run({"cd_steps": 3}),
        "persistent chains": Run({"persistent": True}),
        "sparsity": Run({"sparsity_cost": 0.1}),
        "dropout": Run({"hidden_dropout": 0.3}),
        "Gaussian hidden units": Run({"hidden_units": "gaussian", "learning_rate": 0.001}),
        "denoising": Run({"model": "denoising", "corruption": "masking:0.3"}),
    },
    "rounded": {"TF32": Run({"precision": "tf32"}), "bfloat16": Run({"precision": "bfloat16"})},
    "streamed": {
        "streamed": Run({"handoff": "minibatch"}),
        "streamed autoencoder": Run({"handoff": "minibatch", "model": "autoencoder"}),
    },
    "host-rows": {
        "rows on the host": Run(on_host=True),
        "rows on the host, streamed": Run({"handoff": "minibatch"}, on_host=True),
    },
    "shards": {
        "shards on one GPU": Run({"shards": SHARDS, "split": "examples"}),
        "shards on all GPUs": Run({"shards": SHARDS, "split": "examples"}, on_all_gpus=True),
    },
    "convolutions": {
        "RBM": Run(layers="convolutions"),
        "autoencoder": Run({"model": "autoencoder"}, layers="convolutions"),
    },
}
WAYS: dict[str, dict[str, Any]] = {
    "in turns": {"runtime": "serial"},
    "in threads": {"runtime": "threads"},
    "launch by launch": {"runtime": "threads"},
}


@dataclass
class Recordings:
    """How many blocks were recorded while it was watched, and why others were not."""

    recorded: int = 0
    reasons: set[str] = field(default_factory=set)  # of recorders that gave up
    failures: set[str] = field(default_factory=set)  # also of a first try, after which one follows

    def __str__(self) -> str:
        if self.recorded:
            why = "; ".join(sorted(self.reasons))
            return f"{self.recorded}, but {why}" if why else str(self.recorded)
        return f"NONE: {'; '.join(sorted(self.failures)) or 'too few blocks'}"


@contextmanager
def watched_recordings(allowed: bool = True) -> Iterator[Recordings]:
    """Watch what becomes of the blocks that are to be recorded; or have none recorded."""
    found, real, real_fail = Recordings(), GraphRecorder._record, GraphRecorder._fail

    def record(self: GraphRecorder, *given: Any) -> Any:
        if not allowed:
            return None
        made = real(self, *given)
        found.recorded += made is not None
        return made

    def fail(self: GraphRecorder, failure: Exception) -> None:
        real_fail(self, failure)
        found.failures.add(str(failure))
        if self.reason is not None:
            found.reasons.add(self.reason)

    with (
        mock.patch.object(GraphRecorder, "_record", record),
        mock.patch.object(GraphRecorder, "_fail", fail),
    ):
        yield found


def same_bits(bench: Bench, group: str) -> Table:
    """Return the sums of the parameters of runs worked in each way, which are to be the same.

    Beside them stand how many blocks were recorded (where none was, the same bits say nothing of
    recorded blocks), the largest difference from NumPy's parameters, the seconds of the first and
    the second run, and whether fine-tuning ends with finite numbers.
    """
    head = ("Run", *WAYS, "blocks recorded", "off NumPy", "s, first", "s, again", "tuned")
    return head, _of_runs(bench, group)


def _of_runs(bench: Bench, group: str) -> Iterator[Sequence[str]]:
    X = bench.examples(1, max(bench.rows // 10, 4 * bench.batch_size))
    for name, run in GROUPS[group].items():
        yield from bench.rows_of(name, _of_run(bench, X, name, run))


def _of_run(bench: Bench, X: NDArray[np.float32], name: str, run: Run) -> Iterator[Sequence[str]]:
    stacks, times = [], []
    with ExitStack() as stack:
        if run.on_host:
            stack.enter_context(mock.patch.object(CupyBackend, "examples", _on_host))
        recordings = stack.enter_context(watched_recordings())
        for way, own in WAYS.items():
            started = perf_counter()
            with watched_recordings(way != "launch by launch"):
                stacks.append(_pretrained(bench, X, run, **own))
            times.append(perf_counter() - started)
    sums = [each.parameters_sha256[:8] for each in stacks]
    bench.verdict(f"{name} has other bits", len(set(sums)) == 1)
    is_recorded = recordings.recorded > 0 and (run.on_host or not recordings.reasons)
    bench.verdict(f"{name} is not recorded", is_recorded)
    row = [name, *sums, str(recordings)]
    row += bench.cells(f"{name} beside NumPy", lambda: [_off_numpy(bench, X, run, stacks[0])])
    row += [f"{seconds:.2f}" for seconds in times[:2]]
    yield row + bench.cells(f"{name}, fine-tuned", lambda: [_tuned(bench, X, stacks[0])])


def _on_host(backend: CupyBackend, X: Any, beside: int = 0) -> HostRows:
    return HostRows(X, backend)


def _pretrained(bench: Bench, X: NDArray[np.float32], run: Run, **own: Any) -> Stack:
    layers = _convolutions(bench.layers[0]) if run.layers == "convolutions" else bench.layers
    given: dict[str, Any] = {"layers": layers, "batch_size": bench.batch_size, "epochs": EPOCHS}
    given |= {"backend": bench.backend_name, "warn": False, "observers": [_say_notice]}
    if run.on_all_gpus:
        count = bench.backend.xp.cuda.runtime.getDeviceCount()
        given |= {"backend": "cupy", "replicas": min(count, SHARDS)}
    return pretrain(X, **(given | dict(run.settings) | own))


def _convolutions(width: int) -> tuple[Any, ...]:
    """Return layers for images of so many numbers: the ones of MNIST, or a small one."""
    height = next(each for each in range(isqrt(width), 0, -1) if width % each == 0)
    shape = f"1x{height}x{width // height}"
    if height < SMALLEST_DEEP:
        return shape, "conv:4x3", 6
    return shape, "conv:20x5", "pool:2", "conv:50x5", "pool:2", 500


def _say_notice(event: Event) -> None:
    """Print what a run has to say, such as that steps are not whole."""
    if isinstance(event, Notice):
        print(f"notice: {event.message}", flush=True)


def _off_numpy(bench: Bench, X: NDArray[np.float32], run: Run, found: Stack) -> str:
    """Return the largest difference of a parameter from NumPy's, which has no TF32."""
    own: dict[str, Any] = {"backend": "numpy", "runtime": "serial", "replicas": 1}
    if run.settings.get("precision") == "tf32":
        own["precision"] = "float32"
    oracle = _pretrained(bench, X, run._replace(on_all_gpus=False), **own)
    pairs = zip(found.layers, oracle.layers, strict=True)
    both = (zip(a.parameters(), b.parameters(), strict=True) for a, b in pairs)
    return f"{max(float(np.abs(x - y).max()) for two in both for (_, x), (_, y) in two):.1e}"


def _tuned(bench: Bench, X: NDArray[np.float32], stack: Stack) -> str:
    """Return whether an epoch of fine-tuning ends with finite parameters."""
    given: dict[str, Any] = {"batch_size": bench.batch_size, "backend": bench.backend_name}
    tuned = finetune(stack, X, epochs=1, warn=False, **given)
    values = (value for layer in tuned.layers for _, value in layer.parameters())
    return bench.verdict("fine-tuning is finite", all(np.isfinite(value).all() for value in values))
