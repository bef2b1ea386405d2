"""Time and memory of layer 1 on a sparse matrix, beside the same rows as a dense array.

    python examples/benchmarks/sparse.py X.npz --pairs 5

``X.npz`` is a matrix of counts, as ``scipy.sparse.save_npz`` writes it. Words as counts train a
replicated softmax, whose documents are drawn; words that are there or not train a binary RBM, whose
reconstructions are means or samples. Each run is a process of its own with one thread: the seconds
are its processor time in training, the memory is the highest of the process less that before the
data was read. Dense and sparse take turns; their ratio is the median of the pairs, with the least
and the most.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from syncpretrain import pretrain
from syncpretrain.data import load_dataset
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.events import Event, RunFinished, RunStarted

CASES: dict[str, dict[str, Any]] = {
    "documents, CD-1": {"visible_units": "counts", "cd_steps": 1},
    "documents, CD-5": {"visible_units": "counts", "cd_steps": 5},
    "binary, means": {"visible_units": "bernoulli"},
    "binary, samples": {"visible_units": "bernoulli", "sample_visible": True},
}
FORMS = ("dense", "sparse")
HEADER = (
    "case             hidden  dense, s  sparse, s  dense over sparse      dense, MB  sparse, MB"
)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("file", metavar="X.npz")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--hidden", type=int, nargs="+", default=[50, 500, 1000])
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.measure:
        form, case, hidden = given.measure
        print(json.dumps(measured(given.file, form, case, int(hidden), given.epochs)))
        return
    print(HEADER)
    for case in CASES:
        for hidden in given.hidden:
            row = (case, str(hidden))
            pairs = [[run(given, form, row) for form in FORMS] for _ in range(given.pairs)]
            print(line(case, hidden, pairs), flush=True)


def run(given: argparse.Namespace, form: str, row: tuple[str, ...]) -> dict[str, float]:
    """Return the seconds and the megabytes of one run, in a process of its own."""
    command = [sys.executable, __file__, given.file, "--epochs", str(given.epochs)]
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [*command, "--measure", form, *row],
        env=os.environ | one_thread,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def measured(file: str, form: str, case: str, hidden: int, epochs: int) -> dict[str, float]:
    """Train layer 1 in this process."""
    before = peak()
    rows: Any = load_dataset(file, validation=0, bounded=False).train
    assert isinstance(rows, SparseRows)
    options = dict(CASES[case])
    if options["visible_units"] == "counts":
        options["visible_units"] = f"counts:{rows.shape[1]}"
    else:
        rows = SparseRows(np.minimum(rows.data, 1), rows.indices, rows.indptr, rows.shape[1])
    X = rows.toarray() if form == "dense" else rows
    seconds: list[float] = []

    def record(event: Event) -> None:
        if isinstance(event, (RunStarted, RunFinished)):
            seconds.append(process_time())

    pretrain(
        X,
        hidden=[hidden],
        **options,
        learning_rate=0.001,
        epochs=epochs,
        batch_size=100,
        runtime="serial",
        backend="numpy",
        warn=False,
        observers=[record],
    )
    return {"seconds": seconds[1] - seconds[0], "megabytes": peak() - before}


def peak() -> float:
    """Return the most memory that this process has had, in MB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1e6 if sys.platform == "darwin" else 1e3)


def line(case: str, hidden: int, pairs: list[list[dict[str, float]]]) -> str:
    dense, sparse = zip(*pairs, strict=True)
    ratios = [a["seconds"] / b["seconds"] for a, b in pairs]
    seconds = [median(one["seconds"] for one in side) for side in (dense, sparse)]
    most = [median(one["megabytes"] for one in side) for side in (dense, sparse)]
    spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    times = f"{seconds[0]:8.2f}  {seconds[1]:9.2f}"
    memory = f"{most[0]:9.0f}  {most[1]:10.0f}"
    return f"{case:15} {hidden:7}  {times}  {spread:21}  {memory}"


if __name__ == "__main__":
    main(sys.argv[1:])
