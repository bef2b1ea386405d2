"""PyTorch networks end to end, block by block in sequence, and block by block at the same time.

    python examples/benchmarks/torch_blocks.py --network large --turns 5

In turns, each in a process of its own, trains an epoch of digits from a ``DataLoader``: end to end
and with local losses in plain loops, with 1 and 2 threads of PyTorch, and with
``syncpretrain.torch`` by its defaults, with 1 worker, with 2 in threads and 2 in processes. The
time is of the whole call: of the measurement for ``auto`` and the start of processes too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from _timing import Outcome, busy, in_a_process, in_turns, machine, ratios, rst_table, spread
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from syncpretrain.data import load_dataset
from syncpretrain.schedule.stream import RING_MINIBATCHES
from syncpretrain.torch import LocalTrainer
from syncpretrain.torch.trainer import LEAST_RING, MANY_BLOCKS, RING_BYTES

CLASSES = 10
LOSS = "cross-entropy"  # in every way, so that they compute the same
WAYS = (
    "end to end, 1 thread",
    "end to end, 2 threads",
    "in sequence, 1 thread",
    "in sequence, 2 threads",
    "syncpretrain, auto",
    "syncpretrain, 1 worker",
    "syncpretrain, 2 threads",
    "syncpretrain, 2 processes",
)


def perceptron(units: int, inputs: int = 784, classes: int = CLASSES) -> nn.Sequential:
    """Return inputs-units x 4-classes."""
    first = nn.Sequential(nn.Flatten(), nn.Linear(inputs, units), nn.ReLU())
    others = [nn.Sequential(nn.Linear(units, units), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(first, *others, nn.Linear(units, classes))


def convolutions(widths: tuple[int, ...], pooled: tuple[int, ...]) -> list[nn.Sequential]:
    """Return convolutions of so many channels, some of them with pooling, counted from 0."""
    return [
        nn.Sequential(
            nn.Conv2d(below, above, 3, padding=1),
            nn.BatchNorm2d(above),
            nn.ReLU(),
            *([nn.MaxPool2d(2)] if i in pooled else []),
        )
        for i, (below, above) in enumerate(zip((1, *widths), widths, strict=False))
    ]


def convolutional() -> nn.Sequential:
    """Return four convolutions of 32 to 256 channels, and a linear layer."""
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, CLASSES))
    return nn.Sequential(*convolutions((32, 64, 128, 256), (1, 3)), last)


def vgg() -> nn.Sequential:
    """Return eight layers in the manner of VGG: six convolutions, and two linear layers."""
    blocks = convolutions((32, 32, 64, 64, 128, 128), (1, 3, 5))
    linear = nn.Sequential(nn.Flatten(), nn.Linear(9 * 128, 256), nn.ReLU())
    return nn.Sequential(*blocks, linear, nn.Linear(256, CLASSES))


NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], int]] = {
    "large": (lambda: perceptron(1024), 128),
    "convolutional": (convolutional, 32),
    "small": (lambda: perceptron(256), 64),
    "vgg": (vgg, 64),
}


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, 1e-3)


def end_to_end(network: Any, loader: Any, optimizer: Any) -> float:
    """Train an epoch with backpropagation through the whole network; return the seconds."""
    started = perf_counter()
    for x, y in loader:
        loss = functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return perf_counter() - started


def in_sequence(network: Any, loader: Any, heads: list[Any]) -> float:
    """Train each block on its local loss, one after another for each minibatch."""
    pairs = zip(network, heads, strict=True)
    parts = [(b, h, adam([*b.parameters(), *h.parameters()])) for b, h in pairs]
    started = perf_counter()
    for x, y in loader:
        for block, head, optimizer in parts:
            h = block(x)
            loss = functional.cross_entropy(head(h), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            x = h.detach()
    return perf_counter() - started


def digits(rows: int) -> tuple[Any, Any]:
    """Return so many images of shape (1, 28, 28) and labels, some of them repeated."""
    data: Any = load_dataset("mnist")
    numbers = np.arange(rows) % len(data.train)
    images = torch.from_numpy(data.train[numbers].reshape(-1, 1, 28, 28))
    return images, torch.from_numpy(data.train_labels[numbers]).long()


def measure(way: str, name: str, rows: int) -> Outcome:
    """Return the seconds of one way to train, in this process."""
    network, batch = NETWORKS[name][0](), NETWORKS[name][1]
    X, y = digits(rows)
    loader = DataLoader(TensorDataset(X, y), batch_size=batch, shuffle=True)
    adam([nn.Parameter(torch.zeros(1))])  # PyTorch imports much for its first optimizer
    kind, _, how = way.partition(", ")
    if kind == "syncpretrain":
        own: dict[str, Any] = {"auto": {}, "1 worker": {"workers": 1, "runtime": "serial"}}.get(
            how, {"workers": 2, "runtime": how[2:]}
        )
        trainer = LocalTrainer(network, classes=CLASSES, loss=LOSS, optimizer=adam, **own)
        started = perf_counter()
        trainer.fit(loader)
        return {"seconds": perf_counter() - started, "error": None}
    torch.set_num_threads(int(how[0]))
    if kind == "end to end":
        return {"seconds": end_to_end(network, loader, adam(network.parameters())), "error": None}
    trainer = LocalTrainer(network, classes=CLASSES, loss=LOSS, workers=1, runtime="serial")
    trainer.fit(X[: 2 * batch], y[: 2 * batch])  # which builds the heads
    torch.set_num_threads(int(how[0]))
    return {"seconds": in_sequence(network, loader, trainer.heads), "error": None}


class Saved:
    """Counts the bytes of what autograd saves that is no parameter."""

    def __init__(self, network: Any) -> None:
        self._known = {p.untyped_storage().data_ptr() for p in network.parameters()}
        self.bytes = 0

    def __call__(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._known.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


def deep(kind: str, blocks: int) -> tuple[nn.Sequential, Any]:
    """Return equal blocks, and a minibatch for them."""
    if kind == "linear, 1024 units, batch 128":
        parts = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(blocks)]
        return nn.Sequential(*parts), torch.zeros(128, 1024)
    parts = [
        nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        for _ in range(blocks)
    ]
    return nn.Sequential(*parts), torch.zeros(32, 64, 28, 28)


def memory() -> None:
    """Print what is kept for backward passes, end to end and by 2 workers with their rings."""
    rows = []
    for kind in ("linear, 1024 units, batch 128", "convolution, 64 x 28 x 28, batch 32"):
        for blocks in (4, 8, 16):
            network, x = deep(kind, blocks)
            whole, one = Saved(network), Saved(network)
            with torch.autograd.graph.saved_tensors_hooks(whole, lambda tensor: tensor):
                kept = network(x)  # else its memory would be used, and counted, again
            with torch.autograd.graph.saved_tensors_hooks(one, lambda tensor: tensor):
                kept = network[0](x)
            minibatch = kept.nbytes
            least = 1 if blocks >= 2 * MANY_BLOCKS else LEAST_RING
            ring = max(least, min(RING_MINIBATCHES, RING_BYTES // minibatch))
            rings = (blocks - 1) * ring * minibatch
            numbers = whole.bytes, 2 * (one.bytes + minibatch), rings
            rows.append((kind, str(blocks), *(f"{n / 1e6:.1f}" for n in numbers)))
    print(rst_table(["block", "blocks", "end to end, MB", "2 workers", "rings"], rows))


EPOCHS = {"large": 10, "small": 20, "convolutional": 3, "vgg": 3}


class Examples(NamedTuple):
    """Rows and labels to train on, and others."""

    X: Any
    y: Any
    test: Any
    test_y: Any


def table_in(path: Path) -> Examples:
    """Return the rows of a table of numbers, the last column the class; a fifth are others."""
    cells = np.loadtxt(path, dtype=str, delimiter=",", skiprows=1)
    cells = cells[np.random.default_rng(0).permutation(len(cells))]
    X, (names, y) = cells[:, :-1].astype(np.float32), np.unique(cells[:, -1], return_inverse=True)
    known = len(X) - len(X) // 5
    X = (X - X[:known].mean(0)) / (X[:known].std(0) + 1e-6)
    X, y = torch.from_numpy(X), torch.from_numpy(y).long()
    print(f"{path.stem}: {tuple(X.shape)}, {len(names)} classes", file=sys.stderr)
    return Examples(X[:known], y[:known], X[known:], y[known:])


def accuracy(options: argparse.Namespace) -> None:
    """Print the share of test rows that is right, end to end and by local losses."""
    name = options.network
    build, batch = NETWORKS[name]
    if options.table:
        data = table_in(options.table)
        units, classes = data.X.shape[1], int(data.y.max()) + 1
        build = partial(perceptron, {"large": 1024, "small": 256}[name], units, classes)
    else:
        found: Any = load_dataset("mnist")
        test = torch.from_numpy(found.test.reshape(-1, 1, 28, 28))
        rows = options.rows or len(found.train)
        data = Examples(*digits(rows), test, torch.from_numpy(found.test_labels))
        classes = CLASSES
    torch.set_num_threads(1)
    table = []
    epochs = options.epochs or EPOCHS[name]
    for way in ("end to end", "cross-entropy", "predsim"):
        shares = []
        for seed in range(options.accuracy):
            torch.manual_seed(seed)
            own = build()
            if way == "end to end":
                loader = DataLoader(TensorDataset(data.X, data.y), batch_size=batch, shuffle=True)
                optimizer = adam(own.parameters())
                for _ in range(epochs):
                    end_to_end(own, loader, optimizer)
            else:
                how: dict[str, Any] = {"optimizer": adam, "seed": seed, "workers": options.workers}
                trainer = LocalTrainer(own, classes=classes, loss=way, **how)
                trainer.fit(data.X, data.y, batch_size=batch, epochs=epochs)
            with torch.no_grad():
                right = own.eval()(data.test).argmax(1) == data.test_y
            shares.append(100 * float(right.float().mean()))
        table.append((way, f"{np.mean(shares):.1f}", ", ".join(f"{x:.1f}" for x in shares)))
        print(table[-1], file=sys.stderr, flush=True)
    print(rst_table([f"{name}, {epochs} epochs", "mean", "seeds"], table))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--network", choices=NETWORKS, default="large")
    parser.add_argument("--rows", type=int, help="5000; with --accuracy all digits there are")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--accuracy", type=int, metavar="SEEDS", help="instead of times")
    parser.add_argument("--epochs", type=int, help="with --accuracy")
    parser.add_argument("--workers", type=int, default=1, help="with --accuracy")
    parser.add_argument("--table", type=Path, metavar="CSV", help="with --accuracy, not digits")
    parser.add_argument("--memory", action="store_true", help="instead of times")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    rows = options.rows or 5000
    size = ["--network", options.network, "--rows", str(rows)]
    if options.one:
        print(json.dumps(measure(options.one, options.network, rows)))
        return
    if options.memory:
        memory()
        return
    if options.accuracy:
        accuracy(options)
        return
    others = busy()
    script = Path(__file__)
    outcomes = in_turns(
        options.ways, options.turns, lambda way: in_a_process(script, [*size, "--one", way])
    )
    plain = [way for way in options.ways if not way.startswith("syncpretrain")]
    best = min(plain, key=lambda way: median(x["seconds"] for x in outcomes[way]))
    steps = -(-rows // NETWORKS[options.network][1])
    table = [
        (
            way,
            f"{1000 * median(x['seconds'] for x in found) / steps:.1f}",
            spread(ratios(outcomes[best], found)),
        )
        for way, found in outcomes.items()
    ]
    print(rst_table([f"{options.network}, {steps} steps", "ms a step", "best plain / it"], table))
    print(f"({machine(('torch',))})")
    if others > 0.7:
        print(f"Not to be quoted: other programs were running (load {others:.1f}).")


if __name__ == "__main__":
    main()
