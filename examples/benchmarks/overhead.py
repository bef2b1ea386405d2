"""What progress, events, metrics and a look at validation digits cost: with and without them.

    python examples/benchmarks/overhead.py --pairs 5

In turns, trains 784-1000-500-250-30 in the pipeline once with what ``syncpretrain train`` does
around it (live progress, history, the event log of a run folder, a look at validation digits after
each epoch) and once with nothing of it.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from _timing import busy, machine, spread
from rich.console import Console

from syncpretrain import pretrain
from syncpretrain.data import load_dataset
from syncpretrain.observers.event_log import EventLog, write_trace
from syncpretrain.observers.history import History
from syncpretrain.observers.progress import progress_observer


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    others, data = busy(), load_dataset("mnist")
    X, held_out = data.train[: options.examples], data.validation
    usual: dict[str, Any] = {"layers": [784, 1000, 500, 250, 30], "epochs": options.epochs}

    def bare() -> None:
        pretrain(X, **usual)

    def full() -> None:
        with tempfile.TemporaryDirectory() as folder:
            console = Console(file=io.StringIO(), force_terminal=True)
            history, path = History(), Path(folder)
            with (
                progress_observer(console, live=True) as live,
                EventLog(path / "events.jsonl") as log,
            ):
                pretrain(X, validation=held_out, observers=[live, history, log], **usual)
            write_trace(history.events, path / "trace.json")

    ratios, seconds = [], []
    for pair in range(options.pairs + 1):
        took = []
        for run in (full, bare):
            started = perf_counter()
            run()
            took.append(perf_counter() - started)
        if pair:  # the first warms up
            ratios.append(took[0] / took[1])
            seconds.append(took[0])
            print(f"{took[0]:.2f} s with, {took[1]:.2f} s without", flush=True)
    print(f"\nwith over without: {spread(ratios)}, {median(seconds):.2f} s a run")
    print(f"({machine(())})")
    if others > 0.7:
        print(f"Not to be quoted: other programs were running (load {others:.1f}).")


if __name__ == "__main__":
    main()
