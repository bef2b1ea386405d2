"""PyTorch networks end to end, block by block in sequence, and block by block at the same time.

    python examples/benchmarks/torch_blocks.py --network large --turns 5

In turns, each in a process of its own, trains an epoch of digits from a ``DataLoader``: end to end
and with local losses in plain loops, with 1 and 2 threads of PyTorch, and with
``syncpretrain.torch`` by its defaults, with 2 worker threads, and with 2 workers in processes. The
time is of the whole call: of the measurement for ``auto`` and the start of processes too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from _timing import Outcome, busy, in_a_process, in_turns, machine, ratios, rst_table, spread
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from syncpretrain.data import load_dataset
from syncpretrain.torch import LocalTrainer

CLASSES = 10
WAYS = (
    "end to end, 1 thread",
    "end to end, 2 threads",
    "in sequence, 1 thread",
    "in sequence, 2 threads",
    "syncpretrain, auto",
    "syncpretrain, 2 threads",
    "syncpretrain, 2 processes",
)


def perceptron(units: int) -> nn.Sequential:
    """Return 784-units x 4-10."""
    first = nn.Sequential(nn.Flatten(), nn.Linear(784, units), nn.ReLU())
    others = [nn.Sequential(nn.Linear(units, units), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(first, *others, nn.Linear(units, CLASSES))


def convolutional() -> nn.Sequential:
    """Return four convolutions of 32 to 256 channels, and a linear layer."""
    widths = (1, 32, 64, 128, 256)
    blocks = [
        nn.Sequential(
            nn.Conv2d(widths[i], widths[i + 1], 3, padding=1),
            nn.BatchNorm2d(widths[i + 1]),
            nn.ReLU(),
            *([nn.MaxPool2d(2)] if i in (1, 3) else []),
        )
        for i in range(4)
    ]
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, CLASSES))
    return nn.Sequential(*blocks, last)


NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], int]] = {
    "large": (lambda: perceptron(1024), 128),
    "convolutional": (convolutional, 32),
    "small": (lambda: perceptron(256), 64),
}


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, 1e-3)


def end_to_end(network: Any, loader: Any) -> float:
    """Train with backpropagation through the whole network; return the seconds."""
    optimizer = adam(network.parameters())
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


def measure(way: str, name: str, rows: int) -> Outcome:
    """Return the seconds of one way to train, in this process."""
    network, batch = NETWORKS[name][0](), NETWORKS[name][1]
    data = load_dataset("mnist")
    numbers = np.arange(rows) % len(data.train)
    X = torch.from_numpy(data.train[numbers].reshape(-1, 1, 28, 28))
    y = torch.from_numpy(data.train_labels[numbers]).long()
    loader = DataLoader(TensorDataset(X, y), batch_size=batch, shuffle=True)
    kind, _, how = way.partition(", ")
    if kind == "syncpretrain":
        own: dict[str, Any] = {} if how == "auto" else {"workers": 2, "runtime": how[2:]}
        trainer = LocalTrainer(network, classes=CLASSES, optimizer=adam, **own)
        started = perf_counter()
        trainer.fit(loader)
        return {"seconds": perf_counter() - started, "error": None}
    torch.set_num_threads(int(how[0]))
    if kind == "end to end":
        return {"seconds": end_to_end(network, loader), "error": None}
    trainer = LocalTrainer(network, classes=CLASSES, workers=1, runtime="serial")
    trainer.fit(X[: 2 * batch], y[: 2 * batch])  # which builds the heads
    torch.set_num_threads(int(how[0]))
    return {"seconds": in_sequence(network, loader, trainer.heads), "error": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--network", choices=NETWORKS, default="large")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = ["--network", options.network, "--rows", str(options.rows)]
    if options.one:
        print(json.dumps(measure(options.one, options.network, options.rows)))
        return
    others = busy()
    script = Path(__file__)
    outcomes = in_turns(
        options.ways, options.turns, lambda way: in_a_process(script, [*size, "--one", way])
    )
    plain = [way for way in options.ways if not way.startswith("syncpretrain")]
    best = min(plain, key=lambda way: median(x["seconds"] for x in outcomes[way]))
    steps = -(-options.rows // NETWORKS[options.network][1])
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
