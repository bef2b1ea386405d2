"""Time of a pretraining on the ranks of an MPI job, beside threads of one process.

    mpiexec -n 4 python examples/benchmarks/ranks.py --examples 10000 --epochs 3
    mpiexec -n 4 python examples/benchmarks/ranks.py --handoff epoch
    mpiexec -n 4 python examples/benchmarks/ranks.py --bandwidth 125e6 --latency 100e-6
    mpiexec -n 5 python examples/benchmarks/ranks.py --bandwidth 125e6 --latency 100e-6 \
        --steps 9e-3 5e-3 2e-3 0.6e-3
    mpiexec -n 4 python examples/benchmarks/ranks.py --sleep 10

``--bandwidth`` (bytes a second) and ``--latency`` (seconds) emulate a link between any two ranks,
beside the same run without; 125e6 is 1 Gb/s. With ``--steps`` a minibatch of each layer takes some
seconds and computes nothing: what the hand-over costs where every rank has a core of its own.
``--sleep`` prints the CPU time of every rank that has nothing to do for some seconds.
"""

from __future__ import annotations

import argparse
import math
import time
from functools import partial
from statistics import median

from _links import Link, emulate, only_take_time

from syncpretrain.cluster.job import using
from syncpretrain.cluster.mpi import MPIEngine
from syncpretrain.cluster.transport import Transport
from syncpretrain.data import load_dataset
from syncpretrain.learners.steps import ByUnits
from syncpretrain.pretraining.driver import driver_for
from syncpretrain.pretraining.on_ranks import on_every_rank
from syncpretrain.settings import settings_from

LAYERS = (784, 1000, 500, 250, 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=10000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--handoff", choices=["epoch", "minibatch"], default="minibatch")
    parser.add_argument("--bandwidth", type=float, default=math.inf)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--steps", type=float, nargs=len(LAYERS) - 1)
    parser.add_argument("--sleep", type=float, default=0.0)
    options = parser.parse_args()
    if options.steps:
        only_take_time(ByUnits, options.steps)
    transport = Transport(MPIEngine())
    with using(transport):
        if options.sleep:
            show_sleep(transport, options.sleep)
        else:
            show_times(transport, options)


def show_sleep(transport: Transport, seconds: float) -> None:
    before = time.process_time()
    on_every_rank(partial(slept, seconds))
    print(f"rank {transport.rank}: {time.process_time() - before:.2f} s of CPU", flush=True)


def slept(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def show_times(transport: Transport, options: argparse.Namespace) -> None:
    links: dict[str, Link | None] = {"no link": None}
    if options.bandwidth < math.inf or options.latency:
        links["link"] = Link(options.bandwidth, options.latency)
    data = load_dataset("mnist").train[: options.examples] if not transport.rank else None
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, link in links.items():
            emulate(transport, link)
            is_alone = name == "no link" and not options.steps
            for runtime in ("threads", "mpi") if is_alone else ("mpi",):
                seconds, bits = on_every_rank(partial(timed, data, runtime, options))
                found.setdefault(f"{runtime}, {name}, {bits[:8]}", []).append(seconds)
    for name, times in found.items():
        if not transport.rank:
            print(f"{name}: {median(times):.2f} s ({min(times):.2f} to {max(times):.2f})")


def timed(data: object, runtime: str, options: argparse.Namespace) -> tuple[float, str]:
    settings = settings_from(
        LAYERS,
        epochs=options.epochs,
        handoff=options.handoff,
        runtime=runtime,
        backend="numpy",
        delay=0.0,
    ).pretrain
    driver = driver_for(settings, data)  # type: ignore[arg-type]
    started = time.monotonic()
    stack = driver.run()
    return time.monotonic() - started, stack.parameters_sha256


if __name__ == "__main__":
    main()
