"""Judge whether runs with own products have the same bits everywhere, by one table of hashes.

    python examples/fixed_bits.py                               # in the environments made here
    python examples/fixed_bits.py --python PYTHON [PYTHON ...]  # each with its own version of NumPy
    python examples/fixed_bits.py --through "qemu-x86_64 -cpu Nehalem" --rows rbm tanh

A row is a short run of ``pretrain``, of some rows with ``finetune``, with the setting ``products``
``own``. Its hash is of all parameters. Each environment differs in one thing that bits could depend
on: the vectors of the compiled kernels, the number of workers, the kernels of OpenBLAS and its
threads, the vectors that NumPy chooses, and the functions of the C library. Each runs in a process
of its own. The library is the one beside this script, which needs the compiled kernels.

Status: 0 if all rows have the hashes of the table, 1 if not.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 3600  # for all rows of one environment, beside other work
EXAMPLES, TRAINING = 360, 300

Options = dict[str, Any]


class Row(NamedTuple):
    """A run: its hash, options of ``pretrain`` and ``finetune``, examples and hidden layers."""

    hash: str
    pretrain: Options
    finetune: Options | None = None
    data: str = "bits"
    hidden: tuple[int, ...] = (40, 21, 9)


STREAM: Options = {"handoff": "minibatch"}
NUMBERS: Options = {"visible_units": "gaussian", "learning_rate": 0.005}
DENOISING: Options = {"model": "denoising", "tied": False, "loss": "cross-entropy"}
TANH: Options = {"model": "contractive", "hidden_units": "tanh"}
STOPPED: Options = {"patience": 1, "epochs": 6, "learning_rate": 2.0}
BY_UNITS: Options = {"replicas": 2, "split": "units"}
ROWS = {
    "rbm": Row("cf57774f579c01ca", {}),
    "wide, log-odds": Row(
        "c6c1a15882a0728f", {"visible_bias": "log-odds"}, None, "wide bits", (140, 20)
    ),
    "gaussian, relu": Row(
        "1e2135e26ccc3dcd",
        NUMBERS | {"hidden_units": ("relu", "relu", "gaussian")},
        None,
        "numbers",
    ),
    "gaussian, relu, by units": Row(
        "c8115a0af9f00b83", NUMBERS | {"hidden_units": "relu"} | BY_UNITS, None, "numbers"
    ),
    "persistent": Row(
        "45b638de4e642f08",
        {"persistent": True, "sparsity_cost": 0.1, "hidden_dropout": 0.2, "cd_steps": 2},
    ),
    "sampled visible": Row("821fdf8e7c8b82b3", {"sample_visible": True, "l1": 0.001}),
    "by examples": Row("2e18cec07e1d0c30", {"replicas": 3, "shards": 3}),
    "by units": Row("2af7b7b073f996f2", BY_UNITS),
    "greedy": Row("01a717c566ace77d", {"schedule": "greedy"}),
    "refreshed": Row(
        "e847989810fccb39",
        {"epochs": (4, 1, 1), "refresh_epochs": (0, 2, 1), "refresh_when": "drift:0.1"},
    ),
    "processes": Row("cf57774f579c01ca", {"runtime": "processes"}),
    "streamed": Row("78e03cc4569d995c", STREAM),
    "streamed, shared": Row("df4decbbe8547877", STREAM | {"replicas": (2, 1, 1)}),
    "autoencoder": Row(
        "7c6e854c479f6ec5", {"model": "autoencoder", "early_stopping": "validation-error"} | STOPPED
    ),
    "denoising": Row("c75bb5add8b98b87", DENOISING),
    "contractive, tanh": Row("4bfa2c599b3c9dbc", TANH),
    "gaussian noise": Row(
        "6f575f732a1643b6",
        NUMBERS | {"model": "denoising", "corruption": "gaussian:0.3"},
        None,
        "numbers",
    ),
    "pseudo-likelihood": Row("7820ba12fd598812", {"early_stopping": "pseudo-likelihood"} | STOPPED),
    "missing values": Row("9627ebe77671c185", NUMBERS, None, "gaps"),
    "asynchronous": Row(
        "0c51a9eb025d81ee",
        {"schedule": "async", "runtime": "serial", "replicas": 2, "workers": None},
    ),
    "tuning": Row("ae3c10e45ef6a046", {}, {}),
    "tuning, sgd": Row(
        "0e8cf95b917265a6", {}, {"optimizer": "sgd", "momentum": 0.5, "dropout": 0.2}
    ),
    "tuning, classes": Row("b359437c8b754342", {}, {"y": "classes"}),
}
USUAL: Options = {"epochs": 2, "batch_size": 30, "seed": 7, "warn": False, "products": "own"}
WORKERS = "FIXED_BITS_WORKERS"
NO_AVX512 = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V4"
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "as it is": {},
    **{f"vectors {own}": {"SYNCPRETRAIN_VECTORS": own} for own in ("avx512", "avx2", "portable")},
    **{f"{n} workers": {WORKERS: str(n)} for n in (1, 2, 3, 4)},
    **{
        f"OpenBLAS for {own}": {"OPENBLAS_CORETYPE": own, "OPENBLAS_NUM_THREADS": "4"}
        for own in ("Haswell", "SkylakeX", "Zen")
    },
    "NumPy without AVX-512": {"NPY_DISABLE_CPU_FEATURES": NO_AVX512},
    "NumPy without AVX2": {"NPY_DISABLE_CPU_FEATURES": f"{NO_AVX512} AVX2 FMA3 X86_V3"},
    "C library without AVX2": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F"},
}


def uniform(rows: int, columns: int, stream: int) -> Any:
    """Return numbers from 0 to 1 of Philox's words, which no version of NumPy changes."""
    words = np.random.Philox(key=stream).random_raw(rows * columns)
    return ((words >> np.uint64(40)).astype(np.float32) / np.float32(2**24)).reshape(rows, columns)


@cache
def examples(name: str) -> Any:
    """Return examples by their name: noisy copies of eight patterns."""
    columns = 530 if name.startswith("wide") else 48
    which = (uniform(EXAMPLES, 1, 1)[:, 0] * 8).astype(int)
    patterns, noise = uniform(8, columns, 2)[which], uniform(EXAMPLES, columns, 3)
    if name == "gaps":
        return np.where(noise < 0.1, np.float32(np.nan), 3 * patterns)
    if name == "numbers":
        return 3 * patterns + noise
    return ((patterns < 0.3) ^ (noise < 0.05)).astype(np.float32)


def hash_of(name: str, workers: int) -> str:
    """Return the hash of the parameters of a row, executed by a number of workers."""
    from syncpretrain import finetune, pretrain

    row, X = ROWS[name], examples(ROWS[name].data)
    own = USUAL | {"layers": (X.shape[1], *row.hidden), "workers": workers} | row.pretrain
    stack = pretrain(X[:TRAINING], validation=X[TRAINING:], **own)
    if row.finetune is not None:
        tuned = USUAL | {"shards": 4, "replicas": workers} | row.finetune
        if "y" in tuned:
            tuned["y"] = np.int64(X[:TRAINING, 0] + X[:TRAINING, 1])
        stack = finetune(stack, X[:TRAINING], **tuned)
    return stack.parameters_sha256[:16]


def run_rows(names: Sequence[str]) -> None:
    """Execute rows in this process, and print their hashes."""
    from syncpretrain.kernels import native

    if native.extension is None:
        raise SystemExit("the compiled kernels are missing")
    warnings.simplefilter("ignore")  # runs of few epochs learn little
    workers = int(os.environ.get(WORKERS, "2"))
    print(
        f"Python {sys.version.split()[0]}, NumPy {np.__version__},",
        *native.extension.float32_forms(),
    )
    for name in names:
        print(f"{name}\t{hash_of(name, workers)}", flush=True)


def differing(command: Sequence[str], changed: Mapping[str, str]) -> list[str]:
    """Return what an environment is, and each row that has another hash there than in the table."""
    own = {**os.environ, **changed, "PYTHONPATH": str(ROOT), "SYNCPRETRAIN_BACKEND": "numpy"}
    done = subprocess.run(
        command,
        env=own,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        return ["failed:", *done.stderr.splitlines()[-1:]]
    what, *lines = done.stdout.splitlines()
    found = dict(line.split("\t") for line in lines)
    return [what, *(f"{name}: got {own}" for name, own in found.items() if own != ROWS[name].hash)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="PYTHON")
    parser.add_argument("--through", default="", metavar="COMMAND", help="before each PYTHON")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--environments", nargs="+", choices=ENVIRONMENTS, metavar="NAME")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process
    options = parser.parse_args()
    if options.here:
        run_rows(options.rows)
        return 0
    status = 0
    for python in options.python:
        for name in options.environments or ENVIRONMENTS:
            command = [*shlex.split(options.through), python, __file__, "--here", "--rows"]
            what, *told = differing([*command, *options.rows], ENVIRONMENTS[name])
            print(f"{name}: {what} {len(options.rows)} rows, {len(told)} of them differ")
            print(*(f"    {line}" for line in told), sep="\n", end="\n" if told else "", flush=True)
            status |= bool(told)
    return status


if __name__ == "__main__":
    sys.exit(main())
