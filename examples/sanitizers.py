"""Run the compiled kernels under the sanitizers of GCC: random calls, programs and fits in turns.

    python examples/sanitizers.py --seconds 600                    # addresses, undefined behaviour
    python examples/sanitizers.py --seconds 300 --sanitize thread  # races of threads
    python examples/sanitizers.py --seconds 60 --seed 7            # other draws
    python examples/sanitizers.py --seed 7 --only fits:12          # one draw again

The extension is built into a temporary folder, and takes the place of the installed one in a
process that has the sanitizers' libraries preloaded. The first report, or a failure, ends it with
a status that is not 0, and names its draw; where GCC or its sanitizers are missing it is 3.

Fits have half of the time, or ``--fits``; calls and programs share the rest. A call may have arrays
that do not fit, and be refused. A program has operations whose arrays have random sizes and places,
in shards that threads take from each other. A fit pretrains a small stack, and fine-tunes it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.machinery
import importlib.util
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
NAME = "syncpretrain.kernels._native"
LACKING = 3  # the status where there are no sanitizers
FLAGS = ["-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-ffp-contract=off"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-DVECTORIZED="]
SPECIAL = [0, -0.0, 1, -1, math.inf, -math.inf, math.nan, 1e-40, 3e38]
LENGTHS = [0, 1, 2, 3, 7, 16, 17, 33, 70]
NAMES = ["bernoulli", "gaussian", "relu", "tanh", "softmax"]  # of units
CONVOLUTIONS = ["convolve", "convolve_gradient", "convolve_back", "visible_means"]
Draws = np.random.Generator
Table = dict[str, list[Any]]  # settings of fits, and their values
RBM: Table = {"cd_steps": [2, 3], "persistent": [True], "sample_visible": [True]}
RBM |= {"sparsity_cost": [0.1], "hidden_dropout": [0.5], "hidden_units": ["gaussian", "relu"]}
AUTOENCODER: Table = {"tied": [False], "hidden_units": ["gaussian", "relu", "tanh"]}
CORRUPTIONS = ["masking:0.3", "salt-and-pepper:0.2", "gaussian:0.5"]
MODELS: dict[str, Table] = {"rbm": RBM, "autoencoder": AUTOENCODER, "contractive": {}}
MODELS |= {"denoising": AUTOENCODER | {"corruption": CORRUPTIONS}}
OF_ALL: Table = {"schedule": ["greedy", "rounds", "async"], "handoff": ["minibatch"]}
OF_ALL |= {"runtime": ["serial", "threads"], "workers": [1, 2, 3], "precision": ["bfloat16"]}
OF_ALL |= {"momentum": ["0", "0.5:1,0.9"], "l1": [0.01], "visible_bias": ["log-odds"]}
TUNING: Table = {"optimizer": ["adam", "sgd"], "precision": ["bfloat16"], "shards": [2, 3]}
TUNING |= {"dropout": [0.5], "input_dropout": [0.2], "weight_decay": [0.01]}
OPTIONS = "detect_leaks=0:halt_on_error=1:exitcode=66:abort_on_error=0"


def runtime(sanitizer: str) -> str | None:
    """Return the path of a sanitizer's library, or None where there is none."""
    compiler = shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    name = {"address": "libasan.so", "thread": "libtsan.so"}[sanitizer.partition(",")[0]]
    asked = [compiler, f"-print-file-name={name}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return found if Path(found).is_absolute() else None


def build(sanitizer: str, source: Path, level: str, path: Path) -> None:
    """Build the extension from the sources in a folder."""
    command = ["gcc", f"-O{level}", f"-fsanitize={sanitizer}", *FLAGS]
    command += [f"-I{sysconfig.get_path('include')}", str(source / "_native.c")]
    subprocess.run([*command, "-o", str(path), "-lm"], check=True)


def replace_extension(path: str) -> Any:
    """Let the kernels of this process be those of a file; before they are imported."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, path)
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[NAME] = module
    return module


def one(draws: Draws, *values: Any) -> Any:
    return values[int(draws.integers(len(values)))]


def some(draws: Draws, table: dict[str, list[Any]], share: float) -> dict[str, Any]:
    """Return a share of the names of a table, each with one of its values."""
    return {name: one(draws, *values) for name, values in table.items() if draws.random() < share}


def numbers(draws: Draws, *shape: int, kind: str = "f4") -> Any:
    """Return an array in memory of its own, as long as it is; its numbers are normal or special."""
    size = math.prod(shape)
    dtype = np.dtype(kind)
    memory = bytearray(size * dtype.itemsize)
    array = np.frombuffer(memory, dtype) if size else np.empty(0, dtype)
    with np.errstate(all="ignore"):
        array[...] = draws.standard_normal(size) * draws.choice([0, 1, 5])
        if dtype.kind == "f" and draws.random() < 0.3:
            array[draws.random(size) < 0.2] = draws.choice(SPECIAL)
    return array.reshape(shape)


def disturbed(draws: Draws, array: Any) -> Any:
    """Return an array, or what is no good one: of another type, order, place or length."""
    if draws.random() < 0.7:
        return array
    raw = np.frombuffer(bytearray(array.nbytes + 8), np.uint8)[int(draws.integers(1, 8)) :]
    with np.errstate(all="ignore"):
        types = [array.astype(kind) for kind in ("f8", "i4", array.dtype.newbyteorder())]
    orders = [array[::-1], array[..., ::-1], np.asfortranarray(array), array[..., :-1], array[:0]]
    unaligned = raw[: array.nbytes].view(array.dtype).reshape(array.shape)
    repeated = np.broadcast_to(array[:1], array.shape) if len(array) else array
    return one(draws, *types, *orders, unaligned, repeated, memoryview(array).toreadonly(), None)


def a_shape(draws: Draws) -> tuple[Any, dict[str, int]]:
    """Draw the shape of a convolution, and the lengths of axes that it fixes, by their letters."""
    from syncpretrain.kernels.convolution import scratch_size
    from syncpretrain.shapes import ConvolutionShape

    size, pool, groups = one(draws, 1, 2, 3, 4), one(draws, 1, 2, 3), one(draws, 1, 1, 2)
    pad = one(draws, 0, size // 3)  # so that there is an image
    height, width = (pool * one(draws, 1, 2, 3) + size - 1 - 2 * pad for _ in range(2))
    channels, filters = groups * one(draws, 1, 2, 3, 17), groups * one(draws, 1, 2, 7, 20)
    shape = ConvolutionShape(channels, height, width, filters, size, pad, pool, groups=groups)
    given: Table = {"channels_first": [True], "pooling": ["mean"], "rounded": [True]}
    shape = dataclasses.replace(shape, **some(draws, given, 0.5))
    lengths = {"v": shape.visible, "h": shape.hidden, "c": channels, "f": filters}
    lengths |= {"k": shape.fan_in, "s": scratch_size(shape), "n": one(draws, 0, 1, 2, 3)}
    return shape, lengths


def arrays_of(draws: Draws, axes: list[str], lengths: dict[str, int]) -> list[Any]:
    """Draw arrays that fit each other: a letter an axis, as of the operations of a program."""
    whole = tuple(one(draws, *LENGTHS) for _ in range(one(draws, 1, 2)))
    arrays: list[Any] = []
    for text in axes:
        letters = text.rstrip("?+").replace("*", "")
        size = tuple(lengths.setdefault(x, one(draws, *LENGTHS)) for x in letters) or whole
        if text.endswith("?") and draws.random() < 0.4:
            size = one(draws, (0,), (0, 0), (0, size[1]), (size[0], 0))
        if text.endswith("+"):
            size = (size[0] + one(draws, 0, 0, 5),)
        if len(size) == 2 and draws.random() < 0.2:  # the last columns of a wider one
            extra = one(draws, 1, 3, 16)
            arrays.append(numbers(draws, size[0], size[1] + extra)[:, extra:])
        else:
            arrays.append(numbers(draws, *size))
    return arrays


def a_call(draws: Draws, extension: Any) -> tuple[str, list[Any], list[Any]]:
    """Draw the name of a function, its arrays, and what else it takes."""
    from syncpretrain.kernels.native import shape_numbers

    (shape, lengths), first, kind = a_shape(draws), one(draws, 0, 0, 1), one(draws, *LENGTHS)
    given, seed = shape_numbers(shape), [(1, 2), (0, 3, 4, 5)]
    filters = (first, one(draws, shape.filters, shape.filters + 1, 1, 0))
    channels = (first, one(draws, shape.channels, shape.channels + 1, 1))
    units, other = one(draws, *NAMES), one(draws, 3, 0, 1, -1, 2**31, 2**40)
    n, m, k = (one(draws, *LENGTHS) for _ in range(3))
    ends = np.cumsum(each := draws.integers(1, 5, n))
    points = np.abs(numbers(draws, int(each.sum()), kind="f8"))
    pointers = np.concatenate([[0], np.cumsum(draws.integers(0, 3, n))]).astype("i8")
    count = int(pointers[-1])
    indices = draws.integers(-(draws.random() < 0.2), max(m, 1), count).astype("i4")
    x, bias, like = numbers(draws, n, m), numbers(draws, m), numbers(draws, n, m)
    rows = [numbers(draws, count), numbers(draws, m, k), numbers(draws, n, k), indices, pointers]
    calls: dict[str, tuple[Any, list[Any]]] = {
        "means": ("ab b", [units]),
        "times_derivative": ("ab ab", [units]),
        "sample_states": ("ab b ab", seed),
        "uniform": ("ab", seed),
        "normal": ("ab", seed),
        "phase_differences": ("ea eb a b", [other]),
        "momentum_step": ("ab ab ab", [0.9, 0.1, 0.01, 0.01]),
        "sgd_step": ("a a a", [0.1, one(draws, 0.0, 0.9), True]),
        "adam_step": ("a a a a", [0.9, 0.999, 0.1, 1e-8]),
        "squared_error": ("ab ab ab", []),
        "binary_product": ("ad bd ab", []),
        "sparse_product": ("ad db ab", []),
        "transposed_product": ("da db ab", [other > 1]),
        "multiply_bfloat16": ("ad db ab", [None]),
        "multiply_float32": ("ad db ab", [one(draws, None, *extension.float32_forms())]),
        "convolve": ("nv kf f nh nh? s", [(*given, kind, *filters)]),
        "convolve_gradient": ("nv nh nh? kf s", [(*given, *filters)]),
        "convolve_back": ("nh nh? kf nv s", [(*given, *channels)]),
        "visible_means": ("nv c", [(*given, kind)]),
        "draw_documents": ([np.abs(x), points, ends], []),
        "reconstruct_documents": ([x, bias, like, points, ends], []),
        "csr_product": (rows, []),
        "store_counter": ([np.zeros(n, "i8")], [other, other]),
        "wait_for_counters": ([np.zeros(n, "i8")], [other, n, 1, 0, 0, 0, 0]),
    }
    name = one(draws, *calls, *4 * CONVOLUTIONS)
    axes, others = calls[name]
    if not isinstance(axes, str):
        return name, axes, others
    return name, arrays_of(draws, axes.split(), {"e": 2 * n, **lengths}), others


def call_kernel(draws: Draws, extension: Any) -> str:
    """Call a function of the extension, which may refuse its arguments."""
    name, arrays, others = a_call(draws, extension)
    if draws.random() < 0.4:
        arrays = [disturbed(draws, array) for array in arrays]
    if draws.random() < 0.1 and len(arrays) > 1:
        arrays[-1] = arrays[0]
    try:
        getattr(extension, name)(*arrays, *others)
    except (TypeError, ValueError, IndexError, OverflowError, BufferError):
        return "refused"
    return "worked"


def an_operation(draws: Draws, slot: int, disturbs: bool) -> tuple[Any, ...]:
    """Draw an operation with what it needs; or, of a program to be disturbed, what does not fit."""
    from syncpretrain.kernels.operations import INTERPRETED, SIGNATURES

    name = one(draws, *sorted(SIGNATURES.keys() - INTERPRETED))
    signature, (shape, fixed) = SIGNATURES[name], a_shape(draws)
    lengths = {"m": signature.rows * (1 + one(draws, *LENGTHS))} if signature.rows else {}
    lengths |= {"n": 1 + one(draws, *LENGTHS)} if signature.columns else {}
    lengths = fixed if "shape" in signature.others else lengths
    arrays = arrays_of(draws, [array.axes for array in signature.arrays], lengths)
    if signature.in_place and draws.random() < 0.3:
        arrays[2] = arrays[one(draws, 0, 1)]
    if name.startswith("matmul") and draws.random() < 0.5:
        i = one(draws, 0, 1)
        arrays[i] = np.ascontiguousarray(arrays[i].T).T  # a factor may be transposed
    if disturbs:
        arrays = [disturbed(draws, array) for array in arrays]
    is_wrong = disturbs and draws.random() < 0.2
    others = {"shape": shape, "units": one(draws, *NAMES[:4]), "slot": slot + 1000 * is_wrong}
    others |= {"shard": one(draws, 0, 3, 1 | 3 << 32), "block": one(draws, 0, 5, 2**40)}
    others |= {"examples": one(draws, 1, 7, 2**20)}
    others |= {"number": one(draws, 0, 0.1, 0.9, -1, 1e300, math.nan), "flag": one(draws, 0, 1)}
    for what, end in (("filter", shape.filters), ("channel", shape.channels)):
        first, last = np.sort(draws.integers(0, end + 1, 2)).tolist()
        others |= {f"first_{what}": first, f"last_{what}": last + is_wrong}
    if name == "sample_states" and not disturbs:  # the states of others are NumPy's to draw
        others["units"] = "bernoulli" if draws.random() < 0.9 else "relu"
    return name, *arrays, *(others[what] for what in signature.others)


def run(draws: Draws, program: Any, workers: int) -> None:
    """Run steps by one thread, by a pool of them, or by any thread that comes to help."""
    from syncpretrain.kernels.program import in_turn
    from syncpretrain.parallel.step_sharing import StepSharing
    from syncpretrain.parallel.worker_pool import WorkerPool

    sharing, pool = StepSharing(), WorkerPool(workers, "pool")
    runs = [in_turn, partial(pool.run, workers=workers), sharing.run]
    helpers = [threading.Thread(target=sharing.help, args=(0,)) for _ in range(1, workers)]
    for helper in helpers:
        helper.start()
    try:
        for step in range(1, 4):
            program.prepare(rate=one(draws, 0.1, 1e30), momentum=one(draws, 0.0, 0.9), steps=step)
            one(draws, *runs)(program, program.shards)
    finally:
        sharing.call()
        for helper in helpers:
            helper.join()
        pool.close()


def run_program(draws: Draws, _: Any) -> str:
    """Run a program, which may be refused if it was disturbed.

    Each phase has the same shards in another order, so that a thread reads what another one wrote.
    """
    from syncpretrain.kernels.program import Program

    disturbs = draws.random() < 0.2
    counts = [int(draws.integers(0, 5)) for _ in range(one(draws, 1, 2, 3, 5))]
    slots = iter(range(sum(counts)))  # each operation has its own
    shards = [[an_operation(draws, next(slots), disturbs) for _ in range(n)] for n in counts]
    phases = [shards[i:] + shards[:i] for i in draws.integers(len(shards), size=one(draws, 1, 4))]
    try:
        program = Program(phases, sum(counts))
    except (TypeError, ValueError):
        if not disturbs:
            raise
        return "refused"
    with np.errstate(all="ignore"):
        run(draws, program, one(draws, 1, 2, 3))
    return "compiled" if program.is_compiled else "interpreted"


def some_rows(draws: Draws, n: int, width: int) -> tuple[Any, dict[str, Any]]:
    """Draw examples of a kind, and the settings that they need."""
    bits = (draws.random((n, width)) < 0.3).astype("f4")
    normal = draws.normal(size=(n, width)).astype("f4")
    counts = draws.poisson(2, (n, width)).astype("f4")
    choices = np.eye(3, dtype="f4")[draws.integers(3, size=n)]
    blocks = f"bernoulli:1,gaussian:1,softmax:1x3,counts:{width}"
    holes = np.where(draws.random((n, width)) < 0.2, np.float32(np.nan), one(draws, bits, normal))
    sparse = one(draws, bits, bits * counts)
    if importlib.util.find_spec("scipy"):
        sparse = importlib.import_module("scipy.sparse").csr_matrix(sparse)
    kinds: list[tuple[Any, dict[str, Any]]] = [(bits, {}), (normal, {}), (holes, {}), (sparse, {})]
    kinds += [(counts, {"visible_units": f"counts:{width}"})]
    kinds += [(np.hstack([bits[:, :1], normal[:, :1], choices, counts]), {"visible_units": blocks})]
    return kinds[int(draws.integers(len(kinds)))]


def some_stack(draws: Draws, n: int) -> tuple[Any, dict[str, Any]]:
    """Draw examples, and the layers of a stack for them with their own settings."""
    model = one(draws, *MODELS)
    splits: list[dict[str, Any]] = [{}, {"replicas": 2}, {"shards": 3}]
    if draws.random() < 0.6:
        X, asked = some_rows(draws, n, one(draws, 2, 5, 20, 70))
        asked |= {"hidden": [one(draws, 2, 4, 17, 33) for _ in range(one(draws, 1, 2, 3))]}
        by_units = model == "rbm" and "visible_units" not in asked
        splits += 2 * by_units * [{"split": "units", "shards": 2}]
    else:
        model = "denoising" if model == "contractive" else model
        channels, pool = one(draws, 1, 2, 3), one(draws, "", ",pool:2", ",pool:2:mean")
        pool = one(draws, pool, ",pool:2:prob") if model == "rbm" else pool
        filters, groups = channels * one(draws, 2, 7), f"/{channels}" * one(draws, 0, 0, 1)
        above = one(draws, "4", "9,4", "conv:3x2,4")
        asked = {"layers": f"{channels}x6x6,conv:{filters}x3{groups}{pool},{above}"}
        X = draws.random((n, channels * 36)).astype("f4")
        splits += [{"split": "filters", "shards": [2, 1, *[1] * above.count(",")]}]
        splits += [{"split": "hybrid", "shards": 2}] * (model == "rbm")
    split = one(draws, *splits)
    is_narrow = "split" in split or ":prob" in asked.get("layers", "")
    own = {} if is_narrow else some(draws, MODELS[model], 0.3)
    return X, {"model": model, **asked, **split, **own}


def fit(draws: Draws, _: Any) -> str:
    """Pretrain a small stack with drawn settings, and fine-tune it."""
    from syncpretrain import finetune, pretrain
    from syncpretrain.errors import DataError, DivergedError, SettingsError

    n, stage = int(draws.integers(8, 40)), "pretraining"
    X, asked = some_stack(draws, n)
    asked |= some(draws, OF_ALL, 0.2) | {"epochs": 2, "batch_size": int(draws.integers(3, n // 2))}
    others = [{"optimizer": "cg"}, {"optimizer": "lbfgs"}, {"optimizer": "sgd", "momentum": 0.9}]
    tuning = one(draws, *others, *4 * [some(draws, TUNING, 0.3)])
    tuning |= {"epochs": 2, "batch_size": int(draws.integers(3, n // 2))}
    targets = one(draws, None, np.arange(n) % 3, draws.normal(size=(n, 2)))
    try:
        stack = pretrain(X, **asked)
        stage = "fine-tuning"
        finetune(stack, X, targets, **tuning)
    except (SettingsError, DataError, DivergedError) as error:
        return f"ended in {stage} by {type(error).__name__}"
    return "whole"


KINDS: dict[str, Callable[[Draws, Any], str]]
KINDS = {"calls": call_kernel, "programs": run_program, "fits": fit}


def campaign(path: Path, seconds: float, seed: int, shares: list[float], only: str) -> None:
    """Draw what is furthest behind its share of the time, until the time is over."""
    extension = replace_extension(str(path))
    warnings.simplefilter("ignore")
    current = np.memmap(path.with_name("current"), "i8", "w+", shape=2)  # outlives this process
    kinds, done, spent = list(KINDS), [0, 0, 0], [0.0, 0.0, 0.0]
    outcomes: Counter[str] = Counter()
    begun = time.monotonic()
    while (now := time.monotonic()) - begun < seconds:
        i = min((i for i in range(3) if shares[i]), key=lambda i: spent[i] / shares[i])
        number = done[i]
        if only:
            i, number, seconds = kinds.index(only.partition(":")[0]), int(only.partition(":")[2]), 0
        current[:] = i, number
        found = KINDS[kinds[i]](np.random.default_rng([seed, i, number]), extension)
        outcomes[f"{kinds[i]} {found}"] += 1
        done[i] += 1
        spent[i] += time.monotonic() - now
    print("no report in", ", ".join(f"{n} {kind}" for n, kind in zip(done, kinds, strict=True)))
    print("\n".join(f"  {n} {what}" for what, n in sorted(outcomes.items())), flush=True)


def main() -> int:
    """Build, and run the campaign in a process that has the libraries preloaded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = "address,undefined"
    parser.add_argument("--sanitize", choices=[usual, "thread"], default=usual)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--level", default="1", help="of the compiler's optimizations")
    parser.add_argument("--source", type=Path, default=ROOT / "syncpretrain" / "kernels")
    parser.add_argument("--fits", type=float, default=0.5, help="the share of the time for fits")
    parser.add_argument("--only", default="", help="one draw, such as fits:12, with its --seed")
    parser.add_argument("--extension", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.extension:
        calls = 0.0 if given.sanitize == "thread" else (1 - given.fits) / 2  # they have one thread
        shares = [calls, 1 - given.fits - calls, given.fits]
        campaign(given.extension, given.seconds, given.seed, shares, given.only)
        return 0
    library = runtime(given.sanitize)
    if library is None:
        print(f"GCC's library for -fsanitize={given.sanitize} is missing here; nothing was run")
        return LACKING
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "_native.so")
        build(given.sanitize, given.source, given.level, path)
        names = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS")
        environment = {**os.environ, **dict.fromkeys(names, OPTIONS), "LD_PRELOAD": library}
        environment |= {"PYTHONMALLOC": "malloc", "SYNCPRETRAIN_KERNELS": "native"}
        unseen = Path(folder, "unseen")  # how the threads of OpenBLAS wait for each other
        unseen.write_text("race:openblas\n")
        environment["TSAN_OPTIONS"] += f":suppressions={unseen}"
        command = [sys.executable, __file__, *sys.argv[1:], "--extension", str(path)]
        status = subprocess.run(command, env=environment).returncode
        if status and Path(folder, "current").exists():
            kind, number = np.fromfile(Path(folder, "current"), "i8")
            print(f"stopped in --seed {given.seed} --only {list(KINDS)[kind]}:{number}")
        return status


if __name__ == "__main__":
    sys.exit(main())
