"""Judge whether two versions of the library compute the same bits, by the hashes of short runs.

    python examples/reference_bits.py                                        # print the hashes
    python examples/reference_bits.py --compare examples/reference_bits.txt  # name what differs
    python examples/reference_bits.py --write examples/reference_bits.txt    # a change on purpose
    python examples/reference_bits.py --against COMMIT                       # builds the commit

A row is a short run of ``pretrain``, ``finetune`` or both; every row runs with the compiled kernels
and with NumPy's. Its two hashes are of the parameters after pretraining and after fine-tuning. A
row that is only executed in another way (by processes, on ranks, stopped and resumed) names the row
that it must equal, which is checked on any machine. ``--quick`` leaves out the rows that start
processes. The library is the one beside this script, or that in the folder ``--library``.

The bits of matrix products and of exponentials depend on the instructions that OpenBLAS and NumPy
choose for a processor. The runs fix that choice to AVX2 and FMA, and the number of BLAS threads to
1, so that one table is meant for every x86-64 processor with AVX2, with the versions of NumPy,
OpenBLAS, SciPy, scikit-learn and the C library that its heading names. Elsewhere nothing can be
compared with the table, which ``--compare`` says with status 3; ``--against`` can be used on any
machine. It needs Git and the package index.

Status: 0 if all bits are the same, 1 if a row differs or fails, 3 if nothing was compared.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from platform import libc_ver
from subprocess import PIPE, Popen
from typing import Any, NamedTuple

import numpy as np

SCRIPT = Path(__file__).resolve()
ROOT, TABLE = SCRIPT.parents[1], SCRIPT.with_suffix(".txt")

KERNELS = {"compiled": "native", "numpy": "numpy"}  # name in the table, value of the variable
# AVX2 and FMA for whatever chooses by the processor; no choice by the number of its cores.
PINNED = {
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"
    " AVX512_SPR X86_V4",
    "OPENBLAS_NUM_THREADS": "1",
    "SYNCPRETRAIN_BACKEND": "numpy",
    "SYNCPRETRAIN_BFLOAT16": "pairs",
}
UNPINNED = ("OPENBLAS_L2_SIZE", "SYNCPRETRAIN_KERNELS")
DIFFERS, UNREADABLE, NOT_COMPARED = 1, 2, 3  # statuses
NONE, NOT_RUN, FAILED = "-" * 16, "not run", "failed"  # in place of a hash, and of both
ENVIRONMENT, LIBRARY = "environment", "library"
SECONDS = 1800  # in which rows are executed, beside other work

Options = dict[str, Any]


class Row(NamedTuple):
    """A run.

    Attributes
    ----------
    pretrain, finetune : dict
        Options of the two functions; without the second the stack is not fine-tuned.
    layers : sequence of int, or str
    data : str
        Name of the examples: as in :func:`data`, or ``parts``, or such a name after ``sparse``.
    resumed : str
        The function that is stopped after an epoch and called again to go on, if any.
    ranks : int
        MPI ranks that execute the run; 1 for none.
    estimator : str
        Name of the scikit-learn estimator that is fitted instead, with the options ``pretrain``.
    same : str
        Name of the row whose hashes this row must have.
    quick : bool
        Whether it starts no process.
    """

    pretrain: Options
    finetune: Options | None = None
    layers: Any = (64, 48, 32, 16)
    data: str = "bits"
    resumed: str = ""
    ranks: int = 1
    estimator: str = ""
    same: str = ""
    quick: bool = True


SMALL = (64, 24, 12)
PICTURES: Options = {"data": "pictures", "layers": "1x8x8,conv:6x3,pool:2,conv:4x2,12"}
COLUMNS: Options = {"data": "pictures", "layers": "1x8x8,conv:4x3:same,pool:2,conv:6x3/2,12"}
PROCESSES: Options = {"runtime": "processes", "workers": 2}
STREAM: Options = {"handoff": "minibatch"}
TURNS: Options = {"schedule": "async", "runtime": "serial", "replicas": 2}
RECTIFIED: Options = {"hidden_units": ("relu", "bernoulli", "gaussian"), "learning_rate": 0.005}
RECALL: Options = {}  # fine-tuning for reconstruction
CLASSES: Options = {"y": "classes"}
FEW_CLASSES: Options = {"y": "few classes", "normalization": "batch", "input_noise": 0.1}
FEW_CLASSES |= {"unlabelled": "pseudo", "learning_rate": 0.005, "epochs": 4}
RELU: Options = {"hidden_units": "relu", "learning_rate": 0.005}
NUMBERS: Options = {"y": "numbers"}
MPI: Options = {"runtime": "mpi"}

ROWS: dict[str, Row] = {
    # Pretraining by epochs
    "rbm": Row({}),
    "rbm, serial": Row({"runtime": "serial"}, same="rbm"),
    "rbm, processes": Row(PROCESSES, same="rbm", quick=False),
    "rbm, greedy": Row({"schedule": "greedy"}),
    "rbm, rounds, refreshes": Row({"schedule": "rounds", "refresh_epochs": (0, 2, 1)}),
    "rbm, refreshes": Row({"epochs": (4, 2, 1), "refresh_epochs": (0, 2, 1)}),
    "rbm, free pace, replayed": Row(
        {"pace": "free", "replay": ((0, 0, 0), (1, 3, 3), (1, 1, 3)), "refresh_epochs": 0}
    ),
    "rbm, gaussian and relu, first-layer": Row(
        {"visible_units": "gaussian", "finish": "first-layer", "epochs": (4, 2, 2), **RECTIFIED},
        RECALL,
        data="numbers",
    ),
    "rbm, persistent, sparse, dropout, cd-2": Row(
        {"persistent": True, "sparsity_cost": 0.1, "hidden_dropout": 0.2, "cd_steps": (1, 2, 1)}
    ),
    "rbm, chains, centred": Row(
        {
            **{"persistent": True, "chains": (60, 20, 33), "centred": True},
            "chain_start": ("data", "noise", "data"),
        }
    ),
    "rbm, l1, log-odds, sampled visible": Row(
        {"l1": 0.001, "visible_bias": "log-odds", "sample_visible": True}
    ),
    "rbm, sampled input": Row({"sample_input": True, "epochs": (2, 3, 2)}),
    "rbm, sampled input, processes": Row(
        {"sample_input": True, "epochs": (2, 3, 2)} | PROCESSES,
        same="rbm, sampled input",
        quick=False,
    ),
    "rbm, by examples": Row({"replicas": 2}),
    "rbm, by examples, one worker": Row(
        {"shards": 2, "runtime": "serial"}, same="rbm, by examples"
    ),
    "rbm, by units": Row({"replicas": (2, 1, 3), "split": "units"}),
    "rbm, pseudo-likelihood": Row(
        {"early_stopping": "pseudo-likelihood", "patience": 1, "epochs": 8, "learning_rate": 0.5}
    ),
    "rbm, free-energy gap": Row(
        {"early_stopping": "free-energy-gap", "patience": 1, "epochs": 12, "weight_decay": 0},
        data="noise",
        layers=(64, 160, 32),
    ),
    "rbm, drift": Row(
        {"epochs": (6, 1, 1), "refresh_epochs": (0, 2, 1), "refresh_when": "drift:0.2"}
    ),
    "rbm, settling": Row({"epochs": "auto:8", "settle": 0.3, "learning_rate": 0.4}),
    "rbm, bfloat16": Row({"precision": "bfloat16"}, {"precision": "bfloat16"}),
    "rbm, own products": Row({"products": "own"}),
    "autoencoder, tied": Row({"model": "autoencoder"}),
    "autoencoder, tied, processes": Row(
        {"model": "autoencoder", **PROCESSES}, same="autoencoder, tied", quick=False
    ),
    "denoising, untied, 3 shards": Row(
        {"model": "denoising", "tied": False, "shards": 3, "loss": "cross-entropy"}
    ),
    "denoising, salt and pepper": Row(
        {"model": "denoising", "corruption": "salt-and-pepper:0.2", "loss": "squared"}
    ),
    "denoising, validation error": Row(
        {"model": "denoising", "early_stopping": "validation-error", "patience": 1, "epochs": 8}
        | {"learning_rate": 2.0}
    ),
    "contractive, tanh": Row({"model": "contractive", "hidden_units": "tanh"}),
    # Pretraining that hands over minibatches
    "streamed": Row(STREAM),
    "streamed, processes": Row(STREAM | PROCESSES, same="streamed", quick=False),
    "streamed, from an iterable": Row(STREAM, data="parts"),
    "streamed, blocks shuffled": Row(STREAM | {"shuffle": "blocks:100"}),
    "streamed, delayed": Row(STREAM | {"delay": 0.4, "epochs": (3, 1, 2)}),
    "streamed, first layer shared": Row(STREAM | {"replicas": (2, 1, 1)}),
    "streamed, first layer shared, processes": Row(
        STREAM | {"replicas": (2, 1, 1)} | PROCESSES,
        same="streamed, first layer shared",
        quick=False,
    ),
    "streamed, by units": Row(STREAM | {"replicas": (2, 1, 2), "split": "units"}),
    "streamed, dropout, pseudo-likelihood": Row(
        STREAM
        | {"hidden_dropout": 0.3, "early_stopping": "pseudo-likelihood", "patience": 1}
        | {"epochs": 8, "learning_rate": 0.5}
    ),
    "streamed, sampled input": Row(STREAM | {"sample_input": True, "persistent": True}),
    "streamed, denoising, untied": Row(STREAM | {"model": "denoising", "tied": False}),
    # Asynchronous pretraining
    "async": Row(TURNS),
    "async, stale, compensated": Row(
        TURNS | {"simulate_staleness": 3, "delay_compensation": 2.0, "momentum": "0"}
    ),
    "async, streamed, fetching seldom": Row(
        TURNS | STREAM | {"push_every": 2, "fetch_every": 4, "async_rate": "constant"}
    ),
    # Kinds of examples
    "sparse rows": Row({}, data="sparse bits", finetune=CLASSES),
    "documents": Row({"visible_units": "counts:64"}, data="documents"),
    "documents, sparse rows": Row({"visible_units": "counts:64"}, data="sparse documents"),
    "documents, streamed": Row({"visible_units": "counts:64", **STREAM}, data="sparse documents"),
    "blocks of units": Row(
        {"visible_units": "bernoulli:20,gaussian:20,softmax:4x3,counts:12", "learning_rate": 0.01},
        RECALL,
        data="mixture",
    ),
    "choices, persistent": Row(
        {"visible_units": "softmax:16x4", "persistent": True}, data="choices"
    ),
    "missing values": Row(
        {"visible_units": "gaussian", "learning_rate": 0.005}, CLASSES, data="missing numbers"
    ),
    "missing values, denoising": Row({"model": "denoising"}, CLASSES, data="missing bits"),
    # Convolutions
    "conv rbm": Row({}, finetune=CLASSES, **PICTURES),
    "conv rbm, processes": Row(PROCESSES, same="conv rbm", quick=False, **PICTURES),
    "conv rbm, by examples": Row({"replicas": 2}, **PICTURES),
    "conv rbm, by filters": Row({"replicas": 2, "split": "filters"}, **PICTURES),
    "conv rbm, hybrid": Row({"replicas": 2, "split": "hybrid"}, **PICTURES),
    "conv rbm, in columns": Row({"replicas": 2, "split": "filters"}, **COLUMNS),
    "conv rbm, pooled by chance": Row(
        {}, data="pictures", layers="1x8x8,conv:6x3,pool:2:prob,conv:4x2,12"
    ),
    "conv denoising": Row({"model": "denoising"}, RECALL, **PICTURES),
    "conv denoising, by examples": Row({"model": "denoising", "replicas": 2}, **PICTURES),
    "conv denoising, by filters": Row(
        {"model": "denoising", "replicas": 2, "split": "filters"},
        data="pictures",
        layers="1x8x8,conv:6x3,pool:2,conv:4x2",
    ),
    "conv denoising, streamed": Row({"model": "denoising", **STREAM}, **PICTURES),
    "conv rbm, streamed, hybrid": Row(STREAM | {"replicas": 2, "split": "hybrid"}, **PICTURES),
    "conv rbm, bfloat16": Row({"precision": "bfloat16"}, {"precision": "bfloat16"}, **PICTURES),
    # Fine-tuning
    "tuning": Row({}, finetune=RECALL),
    "tuning, the BLAS": Row({"products": "blas"}, RECALL | {"products": "blas"}, same="tuning"),
    "tuning, own products": Row({"products": "own"}, finetune={"products": "own"}),
    "tuning, sgd": Row({}, finetune={"optimizer": "sgd", "loss": "squared"}),
    "tuning, sgd, nesterov, decay, cosine": Row(
        {},
        finetune={"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
        | {"rate_schedule": "cosine"},
    ),
    "tuning, cg": Row({}, layers=SMALL, finetune={"optimizer": "cg"}),
    "tuning, lbfgs": Row({}, layers=SMALL, finetune={"optimizer": "lbfgs"} | CLASSES),
    "tuning, classes": Row({}, finetune=CLASSES),
    "tuning, classes, untrained": Row({"schedule": "none"}, CLASSES | {"rate_schedule": "linear"}),
    "tuning, numbers, weighted": Row({}, finetune=NUMBERS | {"weights": "weights"}),
    "tuning, cross-entropy, dropout": Row(
        {}, finetune={"loss": "cross-entropy", "dropout": 0.3, "input_dropout": 0.1}
    ),
    "tuning, patience": Row(
        {}, finetune=CLASSES | {"patience": 1, "epochs": 12, "learning_rate": 0.05}
    ),
    "tuning, by examples": Row({}, finetune={"replicas": 2, "split": "examples"}),
    "tuning, by examples, dropout, decay": Row(
        {}, finetune={"replicas": 2, "split": "examples", "dropout": 0.3, "weight_decay": 0.01}
    ),
    "tuning, by units": Row({}, finetune={"replicas": 2, "split": "units"} | CLASSES),
    "tuning, by units, dropout": Row(
        {}, finetune={"replicas": 2, "split": "units", "dropout": 0.3, "optimizer": "sgd"}
    ),
    "tuning, async": Row({}, finetune=TURNS | {"optimizer": "sgd", "async_rate": "constant"}),
    "tuning, async, adam": Row({}, finetune=TURNS | {"simulate_staleness": 3, "epochs": 3}),
    "tuning, numbers, normalized": Row(
        RELU, NUMBERS | {"normalization": "batch", "dropout": 0.2}, data="numbers"
    ),
    "tuning, few classes": Row(RELU, FEW_CLASSES, data="numbers"),
    "tuning, few classes, by examples": Row(
        RELU, FEW_CLASSES | {"replicas": 2, "split": "examples"}, data="numbers"
    ),
    "tuning, few classes, by units": Row(
        RELU, FEW_CLASSES | {"replicas": 2, "split": "units"}, data="numbers"
    ),
    "tuning, few classes, moved": Row(
        RELU, FEW_CLASSES | {"unlabelled": "aligned", "adversarial_noise": 0.5}, data="numbers"
    ),
    "tuning, few classes, async": Row(RELU, FEW_CLASSES | TURNS, data="numbers"),
    "tuning, conv, by examples": Row({}, finetune={"replicas": 2, "split": "examples"}, **PICTURES),
    "tuning, conv, by filters": Row({}, finetune={"replicas": 2, "split": "filters"}, **PICTURES),
    "tuning, conv, hybrid": Row(
        {}, finetune={"replicas": 2, "split": "hybrid"} | CLASSES, **PICTURES
    ),
    "tuning, conv, columns": Row(
        {}, finetune={"replicas": 2, "split": "columns"} | CLASSES, **COLUMNS
    ),
    # Estimators of scikit-learn
    "estimator, online": Row({"batch_size": 50}, data="parts", estimator="StackedRBM"),
    "estimator, autoencoder": Row({"epochs": 2}, layers=SMALL, estimator="StackedAutoencoder"),
    "estimator, classes": Row(
        {"epochs": 2, "finetune_epochs": 2}, layers=SMALL, estimator="DBNClassifier"
    ),
    "estimator, numbers": Row(
        {"epochs": 2, "finetune_epochs": 2}, layers=SMALL, data="numbers", estimator="DBNRegressor"
    ),
    # Ranks of MPI
    "rbm, 2 ranks": Row(MPI, ranks=2, same="rbm", quick=False),
    "streamed, 2 ranks": Row(MPI | STREAM, ranks=2, same="streamed", quick=False),
    "conv rbm, hybrid, 2 ranks": Row(
        MPI | {"replicas": 2, "split": "hybrid"},
        ranks=2,
        same="conv rbm, hybrid",
        quick=False,
        **PICTURES,
    ),
    "rbm, 3 ranks": Row(MPI, ranks=3, same="rbm", quick=False),
    "rbm, by examples, 3 ranks": Row(
        MPI | {"replicas": 2}, ranks=3, same="rbm, by examples", quick=False
    ),
    "rbm, by units, 3 ranks": Row(
        MPI | {"replicas": (2, 1, 3), "split": "units"}, ranks=3, same="rbm, by units", quick=False
    ),
    "streamed, first layer shared, 3 ranks": Row(
        MPI | STREAM | {"replicas": (2, 1, 1)},
        ranks=3,
        same="streamed, first layer shared",
        quick=False,
    ),
    "tuning, by examples, 2 ranks": Row(
        {},
        finetune=MPI | {"replicas": 2, "split": "examples"},
        ranks=2,
        same="tuning, by examples",
        quick=False,
    ),
    "tuning, few classes, by examples, 2 ranks": Row(
        RELU,
        finetune=MPI | FEW_CLASSES | {"replicas": 2, "split": "examples"},
        data="numbers",
        ranks=2,
        same="tuning, few classes, by examples",
        quick=False,
    ),
    "tuning, by examples, 3 ranks": Row(
        {},
        finetune=MPI | {"replicas": 2, "split": "examples", "dropout": 0.3, "weight_decay": 0.01},
        ranks=3,
        same="tuning, by examples, dropout, decay",
        quick=False,
    ),
}
# Rows that are stopped after an epoch, in one of the two functions, and go on to the same bits.
STOPPED = {
    "pretrain": (
        *("rbm", "rbm, refreshes", "rbm, persistent, sparse, dropout, cd-2", "rbm, by units"),
        *("rbm, pseudo-likelihood", "rbm, drift", "rbm, settling", "rbm, 3 ranks"),
        *("denoising, untied, 3 shards", "streamed", "streamed, delayed", "streamed, by units"),
        *("streamed, dropout, pseudo-likelihood", "async", "async, stale, compensated"),
        *("async, streamed, fetching seldom", "documents, streamed", "missing values"),
        *("conv rbm, hybrid", "conv denoising", "conv denoising, streamed"),
        *("streamed, first layer shared, 3 ranks",),
    ),
    "finetune": (
        *("tuning", "tuning, sgd, nesterov, decay, cosine", "tuning, cg", "tuning, lbfgs"),
        *("tuning, cross-entropy, dropout", "tuning, patience", "tuning, by examples"),
        *("tuning, by units", "tuning, async", "tuning, async, adam", "tuning, conv, hybrid"),
        *("tuning, conv, columns", "tuning, by examples, 3 ranks", "tuning, few classes"),
        *("tuning, few classes, by examples", "tuning, few classes, async"),
    ),
}
ROWS |= {
    f"{name}, resumed": ROWS[name]._replace(resumed=function, same=ROWS[name].same or name)
    for function, names in STOPPED.items()
    for name in names
}

USUAL: Options = {"epochs": 3, "batch_size": 50, "seed": 7, "warn": False}
USUAL_TUNING: Options = {"epochs": 2, "batch_size": 50, "seed": 7, "warn": False}
EXAMPLES, TRAINING = 600, 500


@cache
def data() -> dict[str, Any]:
    """Return all examples by name, drawn with one seed."""
    rng = np.random.default_rng(0)
    which = rng.integers(8, size=EXAMPLES)
    bits = np.float32((rng.random((8, 64)) < 0.3)[which] ^ (rng.random((EXAMPLES, 64)) < 0.05))
    normal = np.float32(rng.normal(size=(8, 64))[which] + rng.normal(0, 0.3, (EXAMPLES, 64)))
    words = np.float32(rng.poisson(np.exp(rng.normal(-1.5, 1, (8, 64)))[which]))
    words[:, 0] += 1  # no document is empty
    shade = np.float32(rng.random((8, 64))[which])
    choices = np.eye(3, dtype=np.float32)[rng.integers(3, size=(EXAMPLES, 4))].reshape(-1, 12)
    holes = rng.random((EXAMPLES, 64)) < 0.1
    return {
        "bits": bits,
        "numbers": normal,
        "pictures": np.clip(shade + np.float32(rng.normal(0, 0.05, shade.shape)), 0, 1),
        "documents": words,
        "mixture": np.hstack([bits[:, :20], normal[:, :20], choices, words[:, :12]]),
        "noise": np.float32(rng.random((EXAMPLES, 64)) < 0.3),
        "missing bits": np.where(holes, np.float32(np.nan), bits),
        "missing numbers": np.where(holes, np.float32(np.nan), normal),
        "choices": np.eye(4, dtype="f4")[rng.integers(4, size=(8, 16))[which]].reshape(-1, 64),
    }


@cache
def targets() -> dict[str, Any]:
    """Return the targets of the examples to train on, and their weights."""
    bits, normal = data()["bits"][:TRAINING], data()["numbers"][:TRAINING]
    classes = np.int64(bits[:, 0] + 2 * bits[:, 1]) % 3
    return {
        "classes": classes,
        "few classes": np.where(np.arange(TRAINING) % 5, -1, classes),
        "numbers": np.float32(normal[:, :2] + bits[:, :2]),
        "weights": 0.5 + normal[:, 3] ** 2,
    }


def examples(name: str) -> tuple[Any, Any]:
    """Return what a row trains on, and what it validates with."""
    if name == "parts":
        from syncpretrain import Minibatches

        rows, held_out = examples("bits")
        return Minibatches(np.split(rows, 10)), held_out
    if name.startswith("sparse "):
        from scipy.sparse import csr_matrix

        rows, held_out = examples(name.removeprefix("sparse "))
        return csr_matrix(rows), csr_matrix(held_out)
    return data()[name][:TRAINING], data()[name][TRAINING:]


def pretrained(row: Row, folder: Path) -> Any:
    """Return the stack of a row, pretrained."""
    from syncpretrain import pretrain
    from syncpretrain.errors import RunInterrupted
    from syncpretrain.events import EpochFinished

    def stop(event: object) -> None:
        if isinstance(event, EpochFinished) and event.layer == 1 and event.epoch == 2:
            signal.raise_signal(signal.SIGTERM)  # SIGINT is ignored in a shell's background

    X, held_out = examples(row.data)
    given = USUAL | {"layers": row.layers, "validation": held_out} | row.pretrain
    if row.resumed == "pretrain":
        given |= {"resume": folder}
        try:
            pretrain(X, observers=[stop], **given)
        except RunInterrupted:
            return pretrain(X, **given)
        raise RuntimeError("the run was not stopped")
    return pretrain(X, **given)


def finetuned(row: Row, stack: Any) -> Any:
    """Return a stack after the fine-tuning of a row."""
    from syncpretrain import finetune
    from syncpretrain.errors import RunInterrupted

    X, held_out = examples(row.data)
    given = USUAL_TUNING | {"validation": held_out} | (row.finetune or {})
    for name in ("y", "weights"):
        if name in given:
            given[name] = targets()[given[name]]
    if "y" in given:
        del given["validation"]
        if not row.data.startswith("sparse"):
            given |= {"validation": X[:100], "validation_y": given["y"][:100]}
    states: list[Any] = []
    if row.resumed == "finetune":
        try:
            finetune(
                stack,
                X,
                save=lambda state, *, done, final: states.append(state()),
                stop=lambda: bool(states),
                **given,
            )
        except RunInterrupted:
            # Rank 0 alone has a state; the others get it from there.
            return finetune(stack, X, resume=states[-1] if states else None, **given)
        raise RuntimeError("the fine-tuning was not stopped")
    return finetune(stack, X, **given)


def estimated(row: Row) -> Any:
    """Return the stack of an estimator that is fitted; what comes in parts is fitted in parts."""
    options: Options = {"hidden": row.layers[1:], "random_state": 7} | row.pretrain
    estimator = getattr(import_module("syncpretrain.sklearn"), row.estimator)(**options)
    X, _ = examples(row.data)
    if row.data == "parts":
        for part in X.source:
            estimator.partial_fit(part)
        return estimator.stack_
    return estimator.fit(
        X, targets()["numbers" if "Regressor" in row.estimator else "classes"]
    ).stack_


def hashes_of(name: str) -> str:
    """Return the hashes of a row, or why it failed."""
    row = ROWS[name]
    try:
        if row.estimator:
            return f"{NONE}  {estimated(row).parameters_sha256[:16]}"
        stack = pretrained(row, Path(str(list(ROWS).index(name))))
        first = stack.parameters_sha256[:16]
        second = NONE if row.finetune is None else finetuned(row, stack).parameters_sha256[:16]
    except Exception as error:
        return f"{FAILED}: {type(error).__name__}: {' '.join(str(error).split())}"
    return f"{first}  {second}"


def environment() -> str:
    """Return all that the bits depend on, besides this library: one line."""
    from threadpoolctl import threadpool_info

    others = [name for name in ("scipy", "sklearn") if find_spec(name)]
    versions = [f"{name} {import_module(name).__version__}" for name in ("numpy", *others)]
    if "scipy" in others:
        import_module("scipy.linalg")  # which has a BLAS of its own
    blas = [info for info in threadpool_info() if info["user_api"] == "blas"]
    kinds = {f"{one['internal_api']} {one['version']} {one.get('architecture')}" for one in blas}
    return ", ".join([platform.machine(), *versions, *sorted(kinds), " ".join(libc_ver())])


def run_rows(names: Sequence[str], ranks: int) -> None:
    """Execute rows in this process, and print them; on ranks the first one prints."""
    warnings.simplefilter("ignore")  # runs of few epochs learn little
    own = 0
    for name in names:
        found = hashes_of(name)
        if ranks > 1:
            from mpi4py.MPI import COMM_WORLD  # after the library has started it

            own = COMM_WORLD.Get_rank()
        if own == 0:
            print(f"{name}\t{found}", flush=True)
    if own == 0:
        print(f"{ENVIRONMENT}\t{environment()}")
        print(f"{LIBRARY}\t{import_module('syncpretrain').__path__[0]}")


class Table(NamedTuple):
    """The hashes of rows by kernels and name, and the environment in which they hold."""

    environment: str
    hashes: dict[tuple[str, str], str]


@cache
def launcher() -> tuple[str, ...]:
    """Return the command that starts ranks, without their number; empty without MPI."""
    here = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=here) or shutil.which("mpiexec")
    if found is None or find_spec("mpi4py") is None:
        return ()
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    is_open_mpi = "Open MPI" in told.stdout or "OpenRTE" in told.stdout
    return (found, *(("--allow-run-as-root", "--oversubscribe") if is_open_mpi else ()))


def started(
    kernels: str, names: Sequence[str], ranks: int, library: Path, here: Path
) -> Popen[str]:
    """Start a process, or ranks, that execute rows in a folder, with a library."""
    own = {name: value for name, value in os.environ.items() if name not in UNPINNED}
    own |= PINNED | {"SYNCPRETRAIN_KERNELS": KERNELS[kernels], "PYTHONPATH": str(library.resolve())}
    command = [sys.executable, str(SCRIPT), "--ranks", str(ranks), "--rows", *names]
    if ranks > 1:
        command = [*launcher(), "-n", str(ranks), *command]
    here.mkdir()
    # In a folder without a library, which processes of layers would import.
    return Popen(command, env=own, cwd=here, stdout=PIPE, stderr=PIPE, text=True)


def finished(process: Popen[str], library: Path) -> dict[str, str]:
    """Return what a process printed: the hashes of each row, and the environment."""
    out, err = process.communicate(timeout=SECONDS)
    if process.returncode:
        raise SystemExit(f"rows could not be executed (status {process.returncode}):\n{out}{err}")
    found = dict(line.split("\t") for line in out.splitlines())
    if Path(found.pop(LIBRARY)).parent.resolve() != library.resolve():
        raise SystemExit(f"rows were executed with another library than {library}:\n{out}")
    return found


def table_of(names: Sequence[str], library: Path) -> Table:
    """Return the hashes of rows with both kernels, which run beside each other."""
    hashes: dict[tuple[str, str], str] = {}
    here = "unknown, since no row was run"
    for ranks in sorted({ROWS[name].ranks for name in names}):
        own = [name for name in names if ROWS[name].ranks == ranks]
        if ranks > 1 and not launcher():
            hashes |= {(kernels, name): NOT_RUN for kernels in KERNELS for name in own}
            continue
        with tempfile.TemporaryDirectory() as folder:
            jobs = [
                started(kernels, own, ranks, library, Path(folder, kernels)) for kernels in KERNELS
            ]
            for kernels, job in zip(KERNELS, jobs, strict=True):
                found = finished(job, library)
                here = found.pop(ENVIRONMENT)
                hashes |= {(kernels, name): value for name, value in found.items()}
    return Table(here, {(k, name): hashes[k, name] for k in KERNELS for name in names})


def agree(value: str, wanted: str) -> bool:
    """Return whether hashes are the same, as far as there are two to compare."""
    if NOT_RUN in (value, wanted):
        return True
    if value.startswith(FAILED) or wanted.startswith(FAILED):
        return False
    pairs = zip(value.split(), wanted.split(), strict=True)
    return all(one == other for one, other in pairs if NONE not in (one, other))


def unequal(table: Table) -> list[str]:
    """Return a sentence for each row that fails, or does not equal the row that it should."""
    told = []
    for (kernels, name), value in table.hashes.items():
        same = ROWS[name].same or name
        wanted = table.hashes.get((kernels, same), value)
        if not agree(value, wanted):
            told.append(f"{kernels}, {name}: got {value}, expected {wanted}, as row {same!r} has")
    return told


def differing(table: Table, other: Table, where: str) -> list[str]:
    """Return a sentence for each row that another table has with other hashes, or has not."""
    told = []
    for (kernels, name), value in table.hashes.items():
        wanted = other.hashes.get((kernels, name))
        if wanted is None:
            told.append(f"{kernels}, {name}: got {value}; {where} has no such row")
        elif value != wanted and NOT_RUN not in (value, wanted):
            told.append(f"{kernels}, {name}: got {value}; {where} has {wanted}")
    return told


def written(table: Table) -> str:
    """Return a table as text."""
    lines = [
        "# Hashes of the parameters after the runs of examples/reference_bits.py, which writes",
        "# this file and compares with it: kernels, row, pretrained, fine-tuned.",
        f"# {ENVIRONMENT}: {table.environment}",
        f"# written: {date.today()}, on {processor()}",
    ]
    rows = [f"{kernels:8}  {name:46}  {value}" for (kernels, name), value in table.hashes.items()]
    return "\n".join([*lines, *rows, ""])


def read(path: Path) -> Table:
    """Return the table in a file; exit with a sentence if there is none."""
    mark = f"# {ENVIRONMENT}: "
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        (found,) = (line.removeprefix(mark) for line in lines if line.startswith(mark))
        rows = [re.split(r"\s{2,}", line, maxsplit=2) for line in lines if line[:1] != "#"]
        return Table(found, {(kernels, name): value for kernels, name, value in rows})
    except (OSError, ValueError) as error:
        print(f"--compare: {path} is no table of these rows, as --write makes one: {error}")
        raise SystemExit(UNREADABLE) from None


def processor() -> str:
    """Return the name of the processor, as Linux tells it."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@contextmanager
def built(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder, and install its library into another one."""
    with tempfile.TemporaryDirectory() as folder:
        tree, library = Path(folder, "tree"), Path(folder, "library")
        worktree = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*worktree, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
            subprocess.run([*install, str(library), str(tree)], check=True)
            yield library
        finally:
            subprocess.run([*worktree, "remove", "--force", str(tree)], check=True)


def commit_of(path: Path) -> str:
    """Return the last commit that changed a file; empty where Git cannot tell."""
    ask = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", str(path)]
    shallow = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    told = [
        subprocess.run(own, capture_output=True, text=True, check=False) for own in (shallow, ask)
    ]
    return told[1].stdout.strip() if told[0].stdout.strip() == "false" else ""


def judged(table: Table, others: Sequence[str], what: str) -> int:
    """Print what does not hold, and what was compared; return the status."""
    sentences = [*unequal(table), *others]
    missing = sum(value == NOT_RUN for value in table.hashes.values())
    print(*sentences, sep="\n", end="\n" if sentences else "")
    print(
        f"{len(table.hashes)} rows, {missing} of them not run for want of mpiexec or mpi4py.", what
    )
    return DIFFERS if sentences else 0


def compared(names: Sequence[str], options: argparse.Namespace) -> int:
    """Execute rows and compare them as the options say; return the status."""
    if not names:
        print("Nothing was compared: --quick leaves out each of these rows.")
        return NOT_COMPARED
    wanted = read(options.compare) if options.compare else None  # before the minutes that runs take
    commit = commit_of(TABLE) if options.against == "" else options.against
    if commit == "":
        print("Nothing was compared: Git knows no commit that changed the table.")
        return NOT_COMPARED
    table = table_of(names, options.library)
    if commit:
        with built(commit) as library:
            other = table_of(names, library)
        return judged(table, differing(table, other, commit), f"Compared with {commit}.")
    if wanted is None:
        print(written(table), end="")
        return judged(table, [], "Compared with each other alone.")
    if wanted.environment == table.environment:
        told = differing(table, wanted, options.compare.name)
        return judged(table, told, f"Compared with {options.compare}.")
    what = (
        f"Nothing was compared with {options.compare}: it holds for {wanted.environment}; here is"
        f" {table.environment}. Compare --against a commit."
    )
    return judged(table, [], what) or NOT_COMPARED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out rows that start processes")
    parser.add_argument("--compare", type=Path, metavar="TABLE", help="name the rows that differ")
    parser.add_argument("--write", type=Path, metavar="TABLE", help="write the table, of all rows")
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        nargs="?",
        const="",
        help="compare with a commit, which is built; default the last that changed the table",
    )
    parser.add_argument(
        "--library",
        type=Path,
        default=ROOT,
        metavar="DIR",
        help="folder of the library; default this",
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)  # execute the rows here
    options = parser.parse_args()
    if options.ranks:
        run_rows(options.rows, options.ranks)
        return 0
    if options.write:
        table = table_of(list(ROWS), options.library)
        options.write.write_text(written(table), encoding="utf-8")
        return judged(table, [], f"Written to {options.write}.")
    return compared([n for n in options.rows if ROWS[n].quick or not options.quick], options)


if __name__ == "__main__":
    sys.exit(main())
