"""What staleness costs: fine-tuning of a classifier with changes that are applied late.

    python examples/benchmarks/staleness.py

Pretrains one stack on MNIST, then fine-tunes it for classification by stochastic gradient descent,
every change applied so many changes late, in turns, so that each run is repeatable. A minibatch has
``--batch-size`` examples over the staleness (``--same-size``: always as many), so that all that are
on the way together are one of that size, and every run sees the same examples. In the columns a
change is divided by its staleness, taken whole, and taken whole with the delay compensated.
Two threads, and two processes, by adam beside the synchronous trainer come last.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from statistics import mean
from time import perf_counter
from typing import Any

from _timing import machine, rst_table

from syncpretrain import Stack, finetune, pretrain
from syncpretrain.data import load_dataset
from syncpretrain.data.dataset import Dataset
from syncpretrain.errors import DivergedError

RULES: dict[str, dict[str, Any]] = {
    "rate by staleness": {},
    "constant rate": {"async_rate": "constant"},
    "constant and compensated": {"async_rate": "constant", "delay_compensation": 2.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--layers", default="784,256,64")
    parser.add_argument("--staleness", default="1,2,4,8,16,32")
    parser.add_argument("--epochs", type=int, default=2, help="of each layer")
    parser.add_argument("--finetune-epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--same-size", action="store_true")
    parser.add_argument("--rate", type=float, default=1.0, help="of the gradient descent")
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    data = load_dataset("mnist")
    layers = [int(x) for x in options.layers.split(",")]
    stacks = [
        pretrain(data.train, layers=layers, epochs=options.epochs, seed=seed)
        for seed in range(options.seeds)
    ]
    sgd: dict[str, Any] = {"optimizer": "sgd", "learning_rate": options.rate}
    sgd |= {"epochs": options.finetune_epochs, "batch_size": options.batch_size}
    late = [int(x) for x in options.staleness.split(",")]
    rules = {name: RULES[name] for name in options.rules.split(",")}
    rows = [["none (synchronous)", measured(stacks, data, sgd), *[""] * (len(rules) - 1)]]
    for n in late:
        size = options.batch_size if options.same_size else max(1, options.batch_size // n)
        every = {**sgd, "batch_size": size, **in_turns(n)}
        found = [measured(stacks, data, {**every, **own}) for own in rules.values()]
        rows.append([f"{n}, minibatches of {size}", *found])
    print(rst_table(["staleness", *rules], rows))
    print(rst_table(["fine-tuning", "% right, mean: seeds; seconds"], list(threads(stacks, data))))
    print(
        f"\n({options.layers}, {options.epochs} + {options.finetune_epochs} epochs, rate"
        f" {options.rate:g}; {machine(())})"
    )


def in_turns(staleness: int) -> dict[str, Any]:
    """Return the settings of a staleness that is the same every time."""
    return {
        "schedule": "async",
        "runtime": "serial",
        "simulate_staleness": staleness,
        "replicas": 1,
    }


def threads(stacks: list[Stack], data: Dataset) -> Iterator[list[str]]:
    """Yield what two replicas come to beside the synchronous trainer, by adam at its usual rate."""
    ways: dict[str, dict[str, Any]] = {
        "synchronous, 2 workers": {},
        "asynchronous, 2 threads and the server": {"schedule": "async"},
        "asynchronous, 2 processes and the server": {"schedule": "async", "runtime": "processes"},
    }
    for name, own in ways.items():
        started = perf_counter()
        found = measured(stacks, data, {"epochs": 3, "replicas": 2, **own})
        yield [name, f"{found}; {(perf_counter() - started) / len(stacks):.1f} s"]


def measured(stacks: list[Stack], data: Dataset, settings: dict[str, Any]) -> str:
    """Return the test examples that are right, in percent: the mean, and each seed."""
    assert data.test_labels is not None
    found = []
    for seed, stack in enumerate(stacks):
        own = {"batch_size": 100, "blas_threads": 1, "seed": seed, **settings}
        try:
            tuned = finetune(stack, data.train, data.train_labels, **own)
        except DivergedError:
            return "diverged"
        found.append(100 * float((tuned.predict(data.test) == data.test_labels).mean()))
        print(f"{settings}: seed {seed}: {found[-1]:.2f} %", file=sys.stderr, flush=True)
    return f"{mean(found):.2f}: {', '.join(f'{x:.2f}' for x in found)}"


if __name__ == "__main__":
    main()
