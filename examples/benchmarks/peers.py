"""syncpretrain beside PyTorch and scikit-learn: the same training, in turns, as a table.

    pip install torch scikit-learn
    python examples/benchmarks/peers.py pretraining --pairs 5 --epochs 2
    python examples/benchmarks/peers.py rbm --pairs 5
    python examples/benchmarks/peers.py finetuning --pairs 5 --rows 20000

``pretraining``
    A stack of RBMs by CD-1, everything included that a run needs beside its data: shuffling,
    drawing, activations for the layer above. PyTorch trains greedily with all cores. The floor is
    the bare products of the same minibatches: two up, one down, two of the gradient, with one
    core and then divided by the number of cores.
``rbm``
    One layer, beside scikit-learn's BernoulliRBM. That one is persistent CD, without momentum,
    decay or shuffling, and tells no error; it needs the same five products a minibatch.
``finetuning``
    The stack, unrolled into an encoder and a decoder of sigmoid units, by Adam on the squared
    error, from the same random weights.

All train with minibatches of 100 on the digits that syncpretrain loads as "mnist" (those of
``SYNCPRETRAIN_DATA``, if it is set), all cores. Not timed: imports, loading, and a first training
on 200 rows that starts threads. The error, not timed either, is that of 1,000 training digits
that go up all layers and down again, squared and summed over pixels: it tells that both learn.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from shlex import quote
from statistics import median
from textwrap import fill
from time import perf_counter
from typing import Any

import numpy as np
from _timing import (
    Outcome,
    bare_products,
    busy,
    in_a_process,
    in_turns,
    machine,
    ratios,
    rst_table,
    spread,
)
from numpy.typing import NDArray

from syncpretrain import finetune, pretrain
from syncpretrain.data import load_dataset
from syncpretrain.models.diagnosis import stack_error
from syncpretrain.models.layer import DenseLayer
from syncpretrain.models.stack import Stack
from syncpretrain.parallel.blas import usable_cores
from syncpretrain.settings import settings_from

__all__ = ["FINETUNING", "FLOOR", "PARTS", "PRETRAINING", "RBM", "Size", "main"]

WIDE = "as many as there are cores in every layer that is worth it"
FIRST = "as many as there are cores in layer 1"
WORTH_SHARING = 100_000  # weights
ROUNDED = "bfloat16"
# Ways to run the same training with syncpretrain: a name for the table, and arguments of pretrain.
# To compare one more, such as with replicas or with a schedule that was picked, add a line.
PRETRAINING: dict[str, dict[str, Any]] = {
    "greedy, 1 core": {"schedule": "greedy", "workers": 1, "blas_threads": 1},
    "greedy, all cores": {"schedule": "greedy"},
    "greedy, shared by units": {"schedule": "greedy", "split": "units", "replicas": WIDE},
    "pipeline": {"schedule": "synchronized"},
    "pipeline, shared by units": {"schedule": "synchronized", "split": "units", "replicas": WIDE},
    "streamed, 1 worker": {"handoff": "minibatch", "workers": 1},
    "streamed": {"handoff": "minibatch"},
    "streamed, shared by units": {"handoff": "minibatch", "split": "units", "replicas": FIRST},
    "streamed, 1 worker, own products": {"handoff": "minibatch", "workers": 1, "products": "own"},
    "streamed, own products": {"handoff": "minibatch", "products": "own"},
    "streamed, shared by units, own products": {
        "handoff": "minibatch",
        "split": "units",
        "replicas": FIRST,
        "products": "own",
    },
    "streamed, 1 worker, bfloat16": {"handoff": "minibatch", "workers": 1, "precision": ROUNDED},
    "streamed, bfloat16": {"handoff": "minibatch", "precision": ROUNDED},
    "streamed, shared by units, bfloat16": {
        "handoff": "minibatch",
        "split": "units",
        "replicas": FIRST,
        "precision": ROUNDED,
    },
}
RBM: dict[str, dict[str, Any]] = {
    "persistent CD": {"schedule": "greedy", "persistent": True},
    "CD-1": {"schedule": "greedy"},
}
# The same of fine-tuning, and arguments of finetune.
FINETUNING: dict[str, dict[str, Any]] = {
    "all cores": {},
    "all cores, own products": {"products": "own"},
    "all cores, bfloat16": {"precision": ROUNDED},
}

BATCH = 100
RATE = 0.001  # of Adam
WARM_UP_ROWS = 200
JUDGED_ROWS = 1000
FLOOR = "floor"
MOST_BUSY = 0.7  # programs beside, on average

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Size:
    """What is trained: widths from the input up, rows of the data, epochs of each layer."""

    layers: tuple[int, ...]
    rows: int
    epochs: int


Case = Callable[[Array, Size], Stack]


@dataclass(frozen=True)
class Part:
    """A comparison: its cases by name, of which the first is what the others are compared with."""

    cases: dict[str, Case]
    size: Size
    packages: tuple[str, ...]
    floor: bool = False


def ours(X: Array, size: Size, *, how: dict[str, Any]) -> Stack:
    if how.get("replicas") == WIDE:
        wide = [V * H >= WORTH_SHARING for V, H in pairwise(size.layers)]
        how = {**how, "replicas": [usable_cores() if is_wide else 1 for is_wide in wide]}
    if how.get("replicas") == FIRST:
        how = {**how, "replicas": [usable_cores(), *[1] * (len(size.layers) - 2)]}
    how = {"products": "blas", **how, "warn": False}  # the warm-up learns little
    return pretrain(X, layers=size.layers, epochs=size.epochs, batch_size=BATCH, **how)


def pytorch_pretrained(X: Array, size: Size, *, precision: str = "float32") -> Stack:
    from peers_pytorch import pretrained

    options = settings_from(size.layers, epochs=size.epochs, batch_size=BATCH, precision=precision)
    return pretrained(X, options.pretrain)


def sklearn_trained(X: Array, size: Size) -> Stack:
    from sklearn.neural_network import BernoulliRBM

    hidden = size.layers[1]
    rbm = BernoulliRBM(hidden, learning_rate=0.1, batch_size=BATCH, n_iter=size.epochs)
    rbm.set_params(random_state=0).fit(X)
    weight = np.ascontiguousarray(rbm.components_.T)
    return Stack((DenseLayer(weight, rbm.intercept_hidden_, rbm.intercept_visible_),))


def ours_finetuned(X: Array, size: Size, *, how: dict[str, Any]) -> Stack:
    options: dict[str, Any] = {"epochs": size.epochs, "batch_size": BATCH, "learning_rate": RATE}
    options |= {"products": "blas", **how}
    return finetune(random_start(size.layers), X, warn=False, **options)


def pytorch_finetuned(X: Array, size: Size, *, by_hand: bool = False, **how: Any) -> Stack:
    import peers_pytorch

    tune = peers_pytorch.finetuned_by_hand if by_hand else peers_pytorch.finetuned
    start = random_start(size.layers)
    return tune(start, X, epochs=size.epochs, batch_size=BATCH, rate=RATE, **how)


@cache  # the first training makes it, before the time starts
def random_start(widths: tuple[int, ...]) -> Stack:
    """Return a stack of random weights (Glorot and Bengio 2010), the same for everyone."""
    draws = np.random.default_rng(0)
    layers = []
    for V, H in pairwise(widths):
        weight = draws.standard_normal((V, H), dtype=np.float32)
        weight *= np.float32(np.sqrt(2 / (V + H)))
        zeros = np.zeros(H, dtype=np.float32), np.zeros(V, dtype=np.float32)
        layers.append(DenseLayer(weight, *zeros, model="autoencoder"))
    return Stack(tuple(layers))


def _named(
    make: Callable[..., Stack], table: dict[str, dict[str, Any]], prefix: str = "syncpretrain"
) -> dict[str, Case]:
    return {f"{prefix}, {name}": partial(make, how=how) for name, how in table.items()}


STACK = (784, 1000, 500, 250, 30)
PARTS = {
    "pretraining": Part(
        {
            "PyTorch, greedy, all cores": pytorch_pretrained,
            "PyTorch, greedy, all cores, bfloat16": partial(pytorch_pretrained, precision=ROUNDED),
            **_named(ours, PRETRAINING),
        },
        Size(STACK, 50_000, 2),
        ("torch",),
        floor=True,
    ),
    "rbm": Part(
        {"scikit-learn, BernoulliRBM": sklearn_trained, **_named(ours, RBM)},
        Size(STACK[:2], 50_000, 1),
        ("scikit-learn",),
    ),
    "finetuning": Part(
        {
            "PyTorch, autograd": pytorch_finetuned,
            "PyTorch, backward pass written out": partial(pytorch_finetuned, by_hand=True),
            "PyTorch, autograd, bfloat16": partial(pytorch_finetuned, rounds=True),
            **_named(ours_finetuned, FINETUNING),
        },
        Size(STACK, 20_000, 1),
        ("torch",),
    ),
}


def measure(case: Case, X: Array, size: Size) -> Outcome:
    """Train once on a few rows, then time a training."""
    case(X[:WARM_UP_ROWS], replace(size, epochs=1))
    started = perf_counter()
    stack = case(X, size)
    seconds = perf_counter() - started
    return {"seconds": seconds, "error": stack_error(stack, X[:JUDGED_ROWS])}


def floor(size: Size) -> Outcome:
    """Return the time of the bare products of a training, spread over all cores."""
    steps = size.epochs * -(-size.rows // BATCH)
    seconds = bare_products(size.layers, batch=BATCH, steps=steps) / usable_cores()
    return {"seconds": seconds, "error": None}


def report(name: str, outcomes: dict[str, list[Outcome]], options: argparse.Namespace) -> str:
    """Return the table, and the line that says where and how it came about."""
    trained = {case: runs for case, runs in outcomes.items() if case != FLOOR}
    first = next(iter(trained))
    floors = outcomes.get(FLOOR)
    head = ["", "seconds", f"{first.partition(',')[0]}'s time over its own", "error"]
    rows = []
    for case, runs in trained.items():
        against = "1" if case == first else spread(ratios(trained[first], runs))
        rows.append([case, f"{_seconds(runs):.2f}", against, f"{runs[-1]['error']:.2f}"])
        if floors:
            rows[-1].append(f"{100 * median(ratios(floors, runs)):.0f} %")
    if floors:
        head.append("of the floor")
        rows.append(["bare products over all cores", f"{_seconds(floors):.2f}", "", "", "100 %"])
    widths = "-".join(map(str, options.size.layers))
    what = (
        f"{widths}, {options.size.rows} digits, {options.size.epochs} epochs, minibatches"
        f" of {BATCH}; medians of {options.pairs} turns, ratios turn by turn:"
    )
    where = f"({machine(PARTS[name].packages)}. Command: ``{_command(name, options)}``.)"
    return "\n\n".join([fill(what, 100), rst_table(head, rows), fill(where, 100)])


def _command(name: str, options: argparse.Namespace) -> str:
    """Return what gives this table, without what is usual."""
    size, usual = options.size, PARTS[name].size
    parts = [f"python examples/benchmarks/peers.py {name} --pairs {options.pairs}"]
    parts += [f"--rows {size.rows}"] if size.rows != usual.rows else []
    parts += [f"--epochs {size.epochs}"] if size.epochs != usual.epochs else []
    parts += [f"--layers {','.join(map(str, size.layers))}"] if size.layers != usual.layers else []
    parts += [f"--cases {' '.join(map(quote, options.cases))}"] if options.cases else []
    return " ".join(parts)


def _seconds(runs: list[Outcome]) -> float:
    return median(run["seconds"] for run in runs)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--pairs", type=int, default=5, help="Turns of all cases.")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--layers", help="Such as 784,1000,500,250,30.")
    parser.add_argument("--cases", nargs="+", metavar="WORD", help="The first, and those with it.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write all times there, too.")
    parser.add_argument("--measure", metavar="CASE", help=argparse.SUPPRESS)  # in its process
    options = parser.parse_args(arguments)
    usual = PARTS[options.part].size
    layers = tuple(map(int, options.layers.split(","))) if options.layers else usual.layers
    options.size = Size(layers, options.rows or usual.rows, options.epochs or usual.epochs)
    options.names = names = list(PARTS[options.part].cases)
    if options.cases:
        options.names = names[:1] + [
            n for n in names[1:] if any(word in n for word in options.cases)
        ]
    if options.cases and len(options.names) == 1:
        parser.error(f"--cases: got {options.cases}, expected words of {', '.join(names[1:])}")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    part, size = PARTS[options.part], options.size
    if options.measure == FLOOR:
        print(json.dumps(floor(size)))
    elif options.measure:
        X = load_dataset("mnist").train[: size.rows]
        print(json.dumps(measure(part.cases[options.measure], X, size)))
    else:
        compare(part, options)


def compare(part: Part, options: argparse.Namespace) -> None:
    """Measure every case in turns, each in a process, and print the table."""
    size = replace(options.size, rows=min(options.size.rows, len(load_dataset("mnist").train)))
    options.size = size
    names = [*options.names, FLOOR] if part.floor else options.names
    others = busy()
    common = [options.part, "--rows", str(size.rows), "--epochs", str(size.epochs)]
    common += ["--layers", ",".join(map(str, size.layers)), "--measure"]
    script = Path(__file__)
    outcomes = in_turns(names, options.pairs, lambda name: in_a_process(script, [*common, name]))
    print(report(options.part, outcomes, options))
    if others > MOST_BUSY:
        print(f"\nNot to be quoted: other programs were running (load {others:.1f}).")
    if options.json:
        about = {"part": options.part, "size": asdict(size), "machine": machine(part.packages)}
        options.json.write_text(json.dumps({**about, "outcomes": outcomes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
