"""Fine-tuning: how long a step takes, and whether it is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_checks.bench import Bench, Table, whole_steps
from gpu_checks.same_bits import watched_recordings
from syncpretrain import Stack, finetune, pretrain
from syncpretrain.backends.cuda_fused import has_tensor_cores
from syncpretrain.events import Event, FinetuneEpochFinished
from syncpretrain.kernels.precision import PRECISIONS

__all__ = ["tuning"]

# Of the way that NumPy's parameters have moved, by products of the same rounded factors. NumPy has
# no TF32, so that is compared with float32.
MOST_OFF = {"float32": 1e-3, "tf32": 2e-2, "bfloat16": 2e-2}
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.01, "epochs": 1}


def tuning(bench: Bench) -> Table:
    """Return the microseconds of a step of Adam, its bits, and how far SGD is from NumPy's.

    Adam divides by the size of the gradient: where that is nearly 0 its last bits decide which way
    a parameter moves. So SGD is what is compared with NumPy's.
    """
    head = ("Steps", "Products", "as they are", "recorded", "blocks recorded", "same bits")
    return (*head, "SGD off NumPy", "right"), _of_kinds(bench)


def _of_kinds(bench: Bench) -> Iterator[Sequence[str]]:
    X = bench.examples(1, bench.rows)
    given: dict[str, Any] = {"batch_size": bench.batch_size, "backend": bench.backend_name}
    stack = pretrain(X, layers=bench.layers, schedule="none", warn=False, **given)
    has_whole = has_tensor_cores(bench.backend.xp, bench.device)
    for precision, whole in product(PRECISIONS, (False, True) if has_whole else (False,)):
        name = f"{'whole' if whole else 'in parts'}, {precision}"
        with whole_steps(whole):
            yield from bench.rows_of(name, _of_kind(bench, stack, X, name, precision))


def _of_kind(
    bench: Bench, stack: Stack, X: NDArray[np.float32], name: str, precision: str
) -> Iterator[Sequence[str]]:
    found, row = [], name.split(", ")
    for is_recorded in (False, True):
        with watched_recordings(is_recorded) as recordings:
            tuned, seconds = _tuned(bench, stack, X, epochs=bench.epochs + 1, precision=precision)
        found.append(tuned.parameters_sha256)
        row.append(f"{1e6 * seconds / -(-len(X) // bench.batch_size):.1f}")
    bench.verdict(f"{name} is not recorded", recordings.recorded > 0)
    row += [str(recordings), bench.verdict(f"{name} has other bits", found[0] == found[1])]
    yield row + bench.cells(f"{name}, SGD", lambda: _off_numpy(bench, stack, X, name, precision), 2)


def _tuned(bench: Bench, stack: Stack, X: Any, **own: Any) -> tuple[Stack, float]:
    """Return the stack fine-tuned, and the seconds of its quickest epoch: the first compiles."""
    seconds = []

    def note(event: Event) -> None:
        if isinstance(event, FinetuneEpochFinished):
            seconds.append(event.seconds)

    given: dict[str, Any] = {"batch_size": bench.batch_size, "backend": bench.backend_name}
    return finetune(stack, X, observers=[note], warn=False, **(given | own)), min(seconds)


def _off_numpy(
    bench: Bench, stack: Stack, X: NDArray[np.float32], name: str, precision: str
) -> list[str]:
    few = X[: max(bench.rows // 10, 4 * bench.batch_size)]
    found, _ = _tuned(bench, stack, few, **SGD, precision=precision)
    own = "float32" if precision == "tf32" else precision
    right, _ = _tuned(bench, stack, few, **SGD, precision=own, backend="numpy")
    before, ours, theirs = (_vector(each, stack) for each in (stack, found, right))
    off = float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - before))
    return [f"{off:.1e}", bench.verdict(f"{name}, SGD", off <= MOST_OFF[precision])]


def _vector(stack: Stack, before: Stack) -> NDArray[np.float64]:
    """Return the parameters that a stack had before it was fine-tuned too, as one vector."""
    values = []
    for layer, other in zip(stack.layers, before.layers, strict=True):
        own = dict(layer.parameters())
        values += [np.ravel(own[name]).astype(np.float64) for name, _ in other.parameters()]
    return np.concatenate(values)
