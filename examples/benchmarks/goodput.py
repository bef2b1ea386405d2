"""How much of the time goes into steps that count, when a layer's process is killed every 10 s.

    python examples/benchmarks/goodput.py --every 10 --pairs 3

In turns, pretrains 784-1000-500-250-30 on real digits with a process a layer: as it is, with states
that are kept for a restart (``--max-restarts``), and with those while SIGKILL ends a random layer's
process every so often. All must come to the same parameters. As they make the same steps, goodput,
useful steps over those that were possible in the same time, is the ratio of the times of the first
and the last. ``--handoff`` measures one of both.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
from statistics import median
from time import perf_counter
from typing import Any

import psutil
from _timing import busy, machine, rst_table, spread

from syncpretrain.data import load_dataset
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.settings import settings_from
from syncpretrain.workers.restarts import Restarts

LAYERS = (784, 1000, 500, 250, 30)
HANDOFFS = ["epoch", "minibatch"]
WAYS = ("as it is", "kept", "killed")


class Killer:
    """Ends a random layer's process of this one every so often, as long as the context lasts."""

    def __init__(self, every: float, draw: random.Random) -> None:
        self._every, self._draw, self._over = every, draw, threading.Event()
        self._thread = threading.Thread(target=self._kill)
        self.kills = 0

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _kill(self) -> None:
        me = psutil.Process()
        while not self._over.wait(self._every):
            layers = [x for x in me.children() if "syncpretrain-layer" in " ".join(x.cmdline())]
            if layers:
                self._draw.choice(layers).kill()
                self.kills += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--handoff", choices=HANDOFFS)
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    options = parser.parse_args()
    others, draw = busy(), random.Random(options.seed)
    X = load_dataset("mnist").train[: options.examples]
    rows = []
    for handoff in [options.handoff] if options.handoff else HANDOFFS:
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        sums, kills = set(), 0
        for _ in range(options.pairs):
            for way, so_far in seconds.items():
                with Killer(options.every if way == "killed" else 1e6, draw) as killer:
                    took, parameters = trained(X, way, handoff, options)
                so_far.append(took)
                sums.add(parameters)
                kills += killer.kills
                print(f"{handoff}, {way}: {took:.2f} s, {killer.kills} kills", file=sys.stderr)
        if len(sums) != 1:
            sys.exit(f"{handoff}: the parameters differ: {sums}")
        bare, kept, killed = (seconds[way] for way in WAYS)
        rows.append(
            [
                handoff,
                f"{median(bare):.1f}",
                spread([a / b for a, b in zip(kept, bare, strict=True)]),
                str(kills),
                f"{median(killed):.1f}",
                spread([a / b for a, b in zip(bare, killed, strict=True)]),
            ]
        )
    head = ["hand-over", "seconds", "times with states kept", "kills", "seconds", "goodput"]
    print(rst_table(head, rows))
    print(
        f"\n({len(X):,} digits, {options.epochs} epochs, a kill every {options.every:g} s, equal"
        f" parameters; {options.pairs} turns; {machine(())})"
    )
    if others > 0.7:
        print(f"Not to be quoted: other programs were running (load {others:.1f}).")


def trained(X: Any, way: str, handoff: str, options: argparse.Namespace) -> tuple[float, str]:
    """Return the seconds of a run, and the hash of its parameters."""
    settings = settings_from(
        LAYERS, epochs=options.epochs, handoff=handoff, runtime="processes", workers=options.workers
    )
    restarts = Restarts(0 if way == "as it is" else 10_000)
    driver = driver_for(settings.pretrain, X, restarts=restarts)
    started = perf_counter()
    stack = driver.run()
    return perf_counter() - started, stack.parameters_sha256


if __name__ == "__main__":
    main()
