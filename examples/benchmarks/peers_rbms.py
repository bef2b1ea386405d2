"""syncpretrain beside `rbms`, RBMs in PyTorch: the speed of PCD, and the correlations of samples.

    pip install rbms
    python examples/benchmarks/peers_rbms.py speed --models 784-100 --steps 1 10
    python examples/benchmarks/peers_rbms.py correlations --seeds 0 1 2

``speed``
    Milliseconds of an update, after a warm-up: centred PCD-k of minibatches of 2,000 with 2,000
    chains, plain ascent, float32, on random rows; in turns, each in a process of its own. `rbms`
    runs its own functions without what its ``train`` adds at every update: the gradient made of
    length 1, a zero-sum gauge, a line in a file. It draws hidden states once more for the chains
    and once for the data; syncpretrain takes an error of every tenth example instead. Chains begin
    at random visible states there, at hidden states of 0 here. Before the table stands how far
    both gradients are apart for equal states and offsets: `rbms` centres by the means of the
    minibatch, syncpretrain by running means.
``correlations``
    Sequences of 4 letters at 12 sites, from a Potts model with couplings in two triples and two
    pairs of sites. As many updates on both sides, samples by Gibbs steps from noise, and how near
    their frequencies, connected pair and three-point correlations are to held-out sequences.
    ``as published`` is with the gauge and the gradient of length 1, at a rate of its own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from _timing import Outcome, busy, in_a_process, in_turns, machine, ratios, rst_table, spread

from syncpretrain import pretrain
from syncpretrain.events import EpochFinished
from syncpretrain.kernels.contrastive_divergence import centre, weighted_phases

MODELS = {"784-100": (784, 2, 100), "784-500": (784, 2, 500), "100x21-100": (100, 21, 100)}
ROWS = 2000  # of a minibatch, and chains
ONES = 0.2  # share of ones, near that of binary digits: draws of 0.5 take PyTorch longer
WARM_UP = 8  # updates by PCD-1: until then TorchScript is slower
RATE = 0.01
PLAIN: dict[str, Any] = {
    "persistent": True,
    "centred": True,
    "momentum": "0",
    "weight_decay": 0,
    "visible_bias": "log-odds",
    "warn": False,
}
CORES: dict[str, dict[str, Any]] = {
    "1 core": {"workers": 1, "blas_threads": 1},
    "2 cores": {"workers": 2, "replicas": [2]},
}
PEERS = ("rbms, 1 thread", "rbms, 2 threads")
WAYS = (*PEERS, *CORES)

SITES, LETTERS, HIDDEN = 12, 4, 30
COUPLED = ((0, 4, 8), (1, 5, 9), (2, 10), (3, 7))
COUPLING = 1.5  # standard deviation
STEPS = 5  # of PCD


def units_of(sites: int, choices: int) -> str:
    return "bernoulli" if choices == 2 else f"softmax:{sites}x{choices}"


def one_hot(codes: Any, choices: int) -> Any:
    """Return the letters of each row as groups of units; binary units are themselves."""
    if choices == 2:
        return np.float32(codes)
    return np.eye(choices, dtype=np.float32)[codes].reshape(len(codes), -1)


class Peer:
    """An RBM of `rbms` with its chains, from random weights."""

    def __init__(self, codes: Any, choices: int, hidden: int, *, chains: int, seed: int) -> None:
        import torch
        from rbms.bernoulli_bernoulli.classes import BBRBM
        from rbms.potts_bernoulli.classes import PBRBM

        torch.manual_seed(seed)
        self.X = torch.from_numpy(np.float32(codes))
        kind = BBRBM if choices == 2 else PBRBM
        own = SimpleNamespace(data=self.X)
        self.model = kind.init_parameters(hidden, own, self.X.device, torch.float32)
        self.model.init_grad()
        self.chains = self.model.init_chains(chains)

    def update(self, updates: int, *, batch: int, k: int, rate: float, all_of_it: bool) -> None:
        """Make so many updates; ``all_of_it`` is with what its ``train`` adds but the file."""
        import torch
        from rbms.potts_bernoulli.utils import ensure_zero_sum_gauge
        from rbms.training.pcd import fit_batch_pcd

        model, weights = self.model, torch.ones(batch)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, maximize=True)
        with torch.no_grad():
            for _ in range(updates):
                rows = self.X[torch.randperm(len(self.X))[:batch]]
                optimizer.zero_grad(set_to_none=False)
                if all_of_it:
                    self.chains, _ = fit_batch_pcd((rows, weights), self.chains, model, k, 1.0)
                else:
                    data = model.init_chains(batch, weights=weights, start_v=rows)
                    self.chains = model.sample_state(self.chains, k)
                    model.compute_gradient(data, self.chains)
                optimizer.step()
                if all_of_it and model.name == "PBRBM":
                    ensure_zero_sum_gauge(model)

    def sample(self, count: int, steps: int) -> Any:
        """Return letters after Gibbs steps from noise."""
        import torch

        with torch.no_grad():
            found = self.model.sample_state(self.model.init_chains(count), steps)
        return found["visible"].numpy().astype(int)


def apart() -> float:
    """Return how far both gradients of a Potts RBM are apart, for equal states and offsets."""
    import torch

    draws, n = np.random.default_rng(0), 50
    codes = draws.integers(LETTERS, size=(2 * n, SITES))
    peer = Peer(codes, LETTERS, HIDDEN, chains=n, seed=0)
    h = draws.random((2 * n, HIDDEN), dtype=np.float32)
    given = [
        {
            "visible": peer.X[own],
            "hidden_mag": torch.from_numpy(h[own].copy()),
            "weights": torch.ones(n),
        }
        for own in (slice(n), slice(n, None))
    ]
    with torch.no_grad():
        peer.model.compute_gradient(*given)
    v = one_hot(codes, LETTERS)
    mu, lam = v[:n].mean(axis=0), h[:n].mean(axis=0)
    da, db = np.empty_like(mu), np.empty_like(lam)
    factors = np.repeat(np.array([1 / n, -1 / n], np.float32), n)
    weighted_phases(v, h, factors, da=da, db=db)
    dW = v.T @ h
    centre(dW, da, db, mu, lam)
    theirs = [p.grad.numpy().reshape(p.grad.numel()) for p in peer.model.parameters()]
    return max(float(abs(a.ravel() - b).max()) for a, b in zip((dW, da, db), theirs, strict=True))


def measure(way: str, name: str, k: int) -> Outcome:
    """Return the seconds of an update in one way, in this process."""
    sites, choices, hidden = MODELS[name]
    updates = {1: 10, 10: 4}.get(k, 1)
    draws, shape = np.random.default_rng(0), (updates * ROWS, sites)
    codes = draws.random(shape) < ONES if choices == 2 else draws.integers(choices, size=shape)
    if way in CORES:
        events: list[Any] = []
        pretrain(
            one_hot(codes, choices),
            hidden=[hidden],
            visible_units=units_of(sites, choices),
            epochs=2,
            batch_size=ROWS,
            chains=ROWS,
            cd_steps=k,
            learning_rate=RATE,
            observers=[events.append],
            **PLAIN,
            **CORES[way],
        )
        first, last = (event.time for event in events if isinstance(event, EpochFinished))
        return {"seconds": (last - first) / updates, "error": None}
    import torch

    torch.set_num_threads(PEERS.index(way) + 1)
    peer = Peer(codes, choices, hidden, chains=ROWS, seed=0)
    own: dict[str, Any] = {"batch": ROWS, "rate": RATE, "all_of_it": False}
    peer.update(WARM_UP, k=1, **own)
    started = perf_counter()
    peer.update(updates, k=k, **own)
    return {"seconds": (perf_counter() - started) / updates, "error": None}


def speed(models: list[str], steps: list[int], turns: int) -> None:
    """Print the milliseconds of an update of each model, and how many times as fast it is here."""
    table, script, others = [], Path(__file__), busy()
    for name in models:
        for k in steps:
            own = ["speed", "--models", name, "--steps", str(k), "--one"]
            found = in_turns(WAYS, turns, lambda way: in_a_process(script, [*own, way]))  # noqa: B023
            ms = [1000 * median(x["seconds"] for x in found[way]) for way in WAYS]
            best = found[PEERS[ms[1] < ms[0]]]
            times = [spread(ratios(best, found[way])) for way in CORES]
            table.append((name, f"PCD-{k}", *(f"{x:.1f}" for x in ms), *times))
    print(f"gradients of equal states and offsets: apart by {apart():.1e} at most\n")
    head = ["model", "", *(f"{way}, ms" for way in WAYS), *(f"best rbms / {x}" for x in CORES)]
    print(rst_table(head, table))
    print(f"({machine(('rbms', 'torch'))})")
    if others > 0.7:
        print(f"Other programs were running (load {others:.1f}).")


def sequences(seed: int) -> Iterator[Any]:
    """Yield 10,000 sequences to train on, and 50,000 held-out ones, drawn exactly."""
    truth, draws = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    fields = truth.normal(0, 0.5, (SITES, LETTERS))
    shares = {}
    for sites in (*COUPLED, *((i,) for i in set(range(SITES)) - {j for x in COUPLED for j in x})):
        letters = np.indices((LETTERS,) * len(sites))
        log_p = sum(fields[site][letters[i]] for i, site in enumerate(sites))
        for i in range(len(sites)):
            for j in range(i):
                coupling = truth.normal(0, COUPLING, (LETTERS, LETTERS))
                log_p = log_p + coupling[letters[i], letters[j]]
        shares[sites] = np.exp(log_p) / np.exp(log_p).sum()
    for count in (10_000, 50_000):
        codes = np.empty((count, SITES), int)
        for sites, p in shares.items():
            drawn = draws.choice(p.size, count, p=p.ravel())
            codes[:, sites] = np.stack(np.unravel_index(drawn, p.shape), axis=1)
        yield codes


def correlations(codes: Any) -> list[Any]:
    """Return frequencies, and connected pair and three-point correlations of different sites."""
    x = one_hot(codes, LETTERS)
    mean = x.mean(axis=0, dtype="f8")
    x -= np.float32(mean)
    site = np.repeat(np.arange(SITES), LETTERS)
    later = site[:, None] < site
    pairs = (x.T @ x / len(x))[later]
    threes = [(x * x[:, [i]]).T @ x / len(x) for i in range(len(site))]
    return [
        mean,
        pairs,
        np.concatenate([t[later & (site[:, None] > site[i])] for i, t in enumerate(threes)]),
    ]


def here(X: Any, seed: int, options: Any) -> Any:
    """Return letters that an RBM of this library samples."""
    stack = pretrain(
        one_hot(X, LETTERS),
        hidden=[HIDDEN],
        visible_units=units_of(SITES, LETTERS),
        epochs=options.updates * options.batch // len(X),
        batch_size=options.batch,
        chains=options.batch,
        cd_steps=STEPS,
        learning_rate=options.rate,
        seed=seed,
        **PLAIN,
        **CORES["1 core"],
    )
    found = stack.sample(options.samples, level=1, steps=options.gibbs, seed=seed)
    return found.reshape(len(found), SITES, LETTERS).argmax(axis=2)


def there(X: Any, seed: int, options: Any, *, rate: float | None = None) -> Any:
    """Return letters that an RBM of `rbms` samples, as published if it has a rate of its own."""
    import torch

    torch.set_num_threads(1)
    peer = Peer(X, LETTERS, HIDDEN, chains=options.batch, seed=seed)
    own: dict[str, Any] = {"rate": rate or options.rate, "all_of_it": rate is not None}
    peer.update(options.updates, batch=options.batch, k=STEPS, **own)
    return peer.sample(options.samples, options.gibbs)


def compare(options: Any) -> None:
    """Print Pearson's correlation and the RMSE of statistics against the held-out, by seed."""
    ways: dict[str, Callable[..., Any]] = {
        "training sequences": lambda X, *rest: X,
        "syncpretrain": here,
        "rbms, same update": there,
        "rbms, as published": partial(there, rate=options.own_rate),
    }
    found: dict[str, list[Any]] = {way: [] for way in ways}
    for seed in options.seeds:
        X, held_out = sequences(seed)
        truth = correlations(held_out)
        for way, sampled in ways.items():
            own = correlations(sampled(X, seed, options))
            near = [np.corrcoef(a, b)[0, 1] for a, b in zip(own, truth, strict=True)]
            far = [1e3 * np.sqrt(np.mean((a - b) ** 2)) for a, b in zip(own, truth, strict=True)]
            found[way].append([*near, *far])
            print(seed, way, *(f"{x:.4f}" for x in found[way][-1]), flush=True)
    table = []
    for way, rows in found.items():
        columns = np.transpose(rows)
        texts = (
            (", ".join(f"{x:.3f}" for x in r), ", ".join(f"{x:.2f}" for x in rmse))
            for r, rmse in zip(columns[:3], columns[3:], strict=True)
        )
        table.append((way, *(text for both in texts for text in both)))
    names = ("frequencies", "pairs", "three points")
    head = ["", *(text for name in names for text in (f"{name}, r", "RMSE x 1,000"))]
    print(rst_table(head, table))
    print(f"({len(options.seeds)} seeds; {machine(('rbms', 'torch'))})")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("mode", choices=("speed", "correlations"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", nargs="+", type=int, default=[1, 10, 100])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=500, help="and chains")
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--own-rate", type=float, default=0.05, help="of rbms as published")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--gibbs", type=int, default=200, help="steps from noise to a sample")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.models[0], options.steps[0])))
    elif options.mode == "speed":
        speed(options.models, options.steps, options.turns)
    else:
        compare(options)


if __name__ == "__main__":
    main()
