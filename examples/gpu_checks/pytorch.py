"""The same step in PyTorch: greedy contrastive divergence, eager and in a CUDA graph.

What it computes is that of ``benchmarks/peers_pytorch.py``, in place, so that a graph can replay
it. Without a GPU it is timed on the CPU, where there are no graphs: for the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from gpu_checks.bench import Bench, Table

__all__ = ["greedy_steps"]

STEPS = 50  # of a graph
RATE, MOMENTUM, DECAY = 0.1, 0.5, 2e-4


def greedy_steps(bench: Bench) -> Table:
    """Return the microseconds of a step of each layer, with products of float32 and of TF32."""
    if find_spec("torch") is None:
        return ("PyTorch",), [["is not installed"]]
    import torch

    place = "cuda" if torch.cuda.is_available() else "cpu"
    head = (f"PyTorch {torch.__version__}, {place}", "float32", "in a graph", "TF32", "in a graph")
    return head, _of_layers(bench, torch, place)


def _of_layers(bench: Bench, torch: Any, place: str) -> Iterator[list[str]]:
    before, totals = torch.backends.cuda.matmul.allow_tf32, [0.0] * 4
    try:
        for layer in range(1, bench.depth + 1):
            found = []
            for tf32 in (False, True):
                torch.backends.cuda.matmul.allow_tf32 = tf32
                with torch.inference_mode():
                    found += _times(bench, torch, layer, place)
            totals = [total + time for total, time in zip(totals, found, strict=True)]
            yield [bench.name(layer), *map(_text, found)]
        yield ["all, one after another", *map(_text, totals)]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _text(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds else ""


def _times(bench: Bench, torch: Any, layer: int, place: str) -> list[float]:
    """Return the microseconds of a step as it is, and in a graph; 0 without graphs."""
    visible, hidden = bench.layers[layer - 1 : layer + 1]
    rbm = _Machine(torch, visible, hidden, bench.batch_size, place)
    X = torch.rand(bench.rows, visible, device=place)
    order = torch.randint(bench.rows, (STEPS, bench.batch_size), device=place)

    def steps() -> None:
        for rows in order:
            rbm.step(X, rows)

    if place == "cpu":
        return [_seconds(steps, lambda: None, bench.repeats) * 1e6 / STEPS, 0.0]
    wait, side = torch.cuda.synchronize, torch.cuda.Stream()
    with torch.cuda.stream(side):  # cuBLAS's choices are made before the capture
        steps()
    wait()
    eager = _seconds(steps, wait, bench.repeats)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps()

    def replay() -> None:
        for _ in range(bench.blocks):
            graph.replay()

    recorded = _seconds(replay, wait, bench.repeats) / bench.blocks
    return [1e6 * seconds / STEPS for seconds in (eager, recorded)]


def _seconds(work: Callable[[], None], wait: Callable[[], None], repeats: int) -> float:
    """Return the least seconds that some work takes until it is done, without its first time."""
    found = []
    for _ in range(repeats + 1):
        wait()
        started = perf_counter()
        work()
        wait()
        found.append(perf_counter() - started)
    return min(found[1:])


class _Machine:
    """One layer, and the buffers of a minibatch; nothing but uniform numbers is allocated."""

    def __init__(self, torch: Any, visible: int, hidden: int, n: int, place: str) -> None:
        self._torch, self._n = torch, n

        def zeros(*shape: int) -> Any:
            return torch.zeros(*shape, device=place)

        self.W = zeros(visible, hidden).normal_(0, 0.01)
        self.a, self.b = zeros(visible), zeros(hidden)
        self._dW, self._da, self._db = (torch.zeros_like(p) for p in (self.W, self.a, self.b))
        self._v, self._h = zeros(2 * n, visible), zeros(2 * n, hidden)
        self._uniform, self._states = zeros(n, hidden), zeros(n, hidden)
        self._difference, self.error = zeros(n, visible), torch.zeros((), device=place)
        self._signs = torch.cat([torch.ones(n, device=place), -torch.ones(n, device=place)])

    def step(self, X: Any, rows: Any) -> None:
        """Train on some rows of X."""
        torch, n = self._torch, self._n
        v0, v1, h0, h1 = self._v[:n], self._v[n:], self._h[:n], self._h[n:]
        torch.index_select(X, 0, rows, out=v0)
        torch.addmm(self.b, v0, self.W, out=h0).sigmoid_()
        torch.lt(self._uniform.uniform_(), h0, out=self._states)
        torch.addmm(self.a, self._states, self.W.t(), out=v1).sigmoid_()
        torch.addmm(self.b, v1, self.W, out=h1).sigmoid_()
        flat = torch.sub(v0, v1, out=self._difference).view(-1)
        self.error.add_(torch.dot(flat, flat))
        self._da.addmv_(self._difference.t(), self._signs[:n], beta=MOMENTUM, alpha=RATE / n)
        self._db.addmv_(self._h.t(), self._signs, beta=MOMENTUM, alpha=RATE / n)
        v1.neg_()
        self._dW.addmm_(self._v.t(), self._h, beta=MOMENTUM, alpha=RATE / n)
        self._dW.add_(self.W, alpha=-RATE * DECAY)
        for parameter, velocity in ((self.W, self._dW), (self.a, self._da), (self.b, self._db)):
            parameter.add_(velocity)
