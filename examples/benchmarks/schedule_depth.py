"""What an epoch costs beside its training, at any depth: the schedule alone, and tiny real runs.

    python examples/benchmarks/schedule_depth.py

First plays schedules without training, in CPU time: two layers train at a time, and their epochs
finish in the order they began. Time is told by the event, the end of an epoch, since with refreshes
the layers (of 20 and 19 epochs in turns) have more epochs the higher they are. Then trains layers
of 32 units on 2,000 rows, where what is not training shows best.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Sequence
from time import perf_counter, process_time
from typing import Any

import numpy as np
from _timing import busy, machine, rst_table

from syncpretrain import pretrain
from syncpretrain.pretraining.build import build_schedule
from syncpretrain.schedule.schedule import Command, Train
from syncpretrain.settings import settings_from

PLAYED: dict[str, dict[str, Any]] = {
    "greedy": {"schedule": "greedy"},
    "rounds": {"schedule": "rounds"},
    "lockstep": {"schedule": "synchronized", "refresh_epochs": 0},
    "lockstep, refresh 1": {"schedule": "synchronized", "refresh_epochs": 1},
    "free": {"schedule": "synchronized", "pace": "free"},
}
SLOTS = 2
UNITS, ROWS, EPOCHS = 32, 2_000, 3  # of the real runs


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--played", type=int, nargs="*", default=[10, 100, 300, 1_000])
    parser.add_argument("--trained", type=int, nargs="*", default=[4, 16, 64, 200])
    parser.add_argument("--most-refreshed", type=int, default=300, help="layers with refreshes")
    options = parser.parse_args()
    others = busy()
    head = ["schedule", "layers", "events", "us an event", "seconds"]
    print(rst_table(head, [_played(*x) for x in _plays(options.played, options.most_refreshed)]))
    X = (np.random.default_rng(0).random((ROWS, UNITS)) < 0.5).astype(np.float32)
    runs = [
        (schedule, runtime, layers)
        for schedule in ("greedy", "synchronized")
        for runtime in ("serial", "threads")
        for layers in options.trained
    ]
    head = ["schedule", "runtime", "layers", "seconds", "ms a layer and epoch"]
    print(f"\n{rst_table(head, [_trained(X, *run) for run in runs])}\n({machine(())})")
    if others > 0.7:
        print(f"Not to be quoted: other programs were running (load {others:.1f}).")


def _plays(depths: Sequence[int], most_refreshed: int) -> list[tuple[str, int]]:
    return [
        (name, depth)
        for name in PLAYED
        for depth in depths
        if "refresh" not in name or depth <= most_refreshed
    ]


def _played(name: str, depth: int) -> list[str]:
    """Play a schedule to its end."""
    epochs = [20 - i % 2 if "refresh" in name else 20 for i in range(depth)]
    settings = settings_from([UNITS] * (depth + 1), epochs=epochs, **PLAYED[name]).pretrain
    schedule = build_schedule(settings, slots=SLOTS)
    events, running = 0, deque[Train]()

    def execute(commands: Sequence[Command]) -> None:
        running.extend(command for command in commands if isinstance(command, Train))

    started = process_time()
    execute(schedule.begin())
    while running:
        execute(schedule.finished(running.popleft().layer))
        events += 1
    seconds = process_time() - started
    return [name, f"{depth:,}", f"{events:,}", f"{1e6 * seconds / events:.0f}", f"{seconds:.2f}"]


def _trained(X: np.ndarray, schedule: str, runtime: str, depth: int) -> list[str]:
    """Train a deep stack of small layers."""
    settings: dict[str, Any] = {"schedule": schedule, "runtime": runtime, "workers": SLOTS}
    started = perf_counter()
    pretrain(X, layers=[UNITS] * (depth + 1), epochs=EPOCHS, blas_threads=1, **settings)
    seconds = perf_counter() - started
    each = 1e3 * seconds / depth / EPOCHS
    return [schedule, runtime, str(depth), f"{seconds:.2f}", f"{each:.2f}"]


if __name__ == "__main__":
    main()
