"""Run the compiled kernels under the sanitizers of GCC: random calls, programs and fits.

    python examples/sanitizers.py --seconds 600                    # addresses, undefined behaviour
    python examples/sanitizers.py --sanitize thread --seconds 300  # races of threads, in fits
    python examples/sanitizers.py --seconds 60 --seed 7            # other draws

The extension is built into a temporary folder, and takes the place of the installed one in a
process that has the sanitizers' libraries preloaded. The first report, or a failure, ends it with
a status that is not 0; where GCC or its sanitizers are missing the status is 3.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
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
    include = f"-I{sysconfig.get_path('include')}"
    command = [
        "gcc",
        f"-O{level}",
        f"-fsanitize={sanitizer}",
        *FLAGS,
        include,
        str(source / "_native.c"),
    ]
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


def length(draws: np.random.Generator) -> int:
    return int(draws.choice(LENGTHS))


def numbers(draws: np.random.Generator, *shape: int, kind: str = "f4") -> Any:
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


def disturbed(draws: np.random.Generator, array: Any) -> Any:
    """Return an array, or what is no good one: of another type, order, place or length."""
    if draws.random() < 0.7:
        return array
    raw = np.frombuffer(bytearray(array.nbytes + 8), np.uint8)[int(draws.integers(1, 8)) :]
    changed: list[Callable[[], Any]] = [
        lambda: array[::-1],
        lambda: array[..., ::-1],
        lambda: array[..., :-1],
        lambda: array[:0],
        lambda: array[..., :0],
        lambda: np.asfortranarray(array),
        lambda: array.astype(array.dtype.newbyteorder()),
        lambda: array.astype("f8"),
        lambda: array.astype("i4"),
        lambda: raw[: array.nbytes].view(array.dtype).reshape(array.shape),
        lambda: np.broadcast_to(array[:1], array.shape) if len(array) else array,
        lambda: memoryview(array).toreadonly(),
        lambda: None,
    ]
    with np.errstate(all="ignore"):
        return changed[int(draws.integers(len(changed)))]()


def a_call(draws: np.random.Generator) -> tuple[str, list[Any], list[Any]]:
    """Draw the name of a function, its arrays, and what else it takes."""
    n, m, k = length(draws), length(draws), length(draws)
    other = int(draws.choice([0, 1, -1, 2**31, 2**40]))
    units = str(draws.choice(["bernoulli", "gaussian", "relu", "tanh", "softmax"]))
    of = [numbers(draws, n, m) for _ in range(4)]
    line = [numbers(draws, m * n) for _ in range(4)]
    ends = np.cumsum(draws.integers(1, 5, n))
    points = np.abs(numbers(draws, int(ends[-1]) if n else 0, kind="f8"))
    pointers = np.concatenate([[0], np.cumsum(draws.integers(0, 3, n))]).astype("i8")
    count = int(pointers[-1])
    indices = draws.integers(-(draws.random() < 0.2), max(m, 1), count).astype("i4")
    factors = [numbers(draws, n, k), numbers(draws, k, m), of[0]]
    calls: list[tuple[str, list[Any], list[Any]]] = [
        ("means", [of[0], numbers(draws, m)], [units]),
        ("times_derivative", of[:2], [units]),
        ("sample_states", [of[0], numbers(draws, m), of[1]], [(1, 2), (0, 3, 4, 5)]),
        ("uniform", [of[0]], [(1, 2), (0, 3, 4, 5)]),
        (
            "phase_differences",
            [numbers(draws, *size) for size in ((2 * n, m), (2 * n, k), (m,), (k,))],
            [other or 3],
        ),
        ("momentum_step", of[:3], [0.9, 0.1, 0.01, 0.01]),
        ("sgd_step", line[:3], [0.1, float(draws.choice([0, 0.9])), True]),
        ("adam_step", line, [0.9, 0.999, 0.1, 1e-8]),
        ("squared_error", of[:3], []),
        (
            "binary_product",
            [(numbers(draws, n, k) > 0).astype("f4"), numbers(draws, m, k), of[0]],
            [],
        ),
        ("sparse_product", factors, []),
        ("transposed_product", [numbers(draws, k, n), numbers(draws, k, m), of[0]], [other > 0]),
        ("multiply_bfloat16", factors, [None]),
        ("draw_documents", [np.abs(of[0]), points, ends], []),
        ("reconstruct_documents", [of[0], numbers(draws, m), of[1], points, ends], []),
        (
            "csr_product",
            [*(numbers(draws, *size) for size in ((count,), (m, k), (n, k))), indices, pointers],
            [],
        ),
        ("store_counter", [np.zeros(n, "i8")], [other, other]),
        ("wait_for_counters", [np.zeros(n, "i8")], [other, n, 1, 0, 0, 0, 0]),
    ]
    return calls[int(draws.integers(len(calls)))]


def a_convolution(draws: np.random.Generator) -> tuple[str, list[Any], list[Any]]:
    """Draw a convolution that fits, but for its places at times, as a call."""
    from syncpretrain.kernels.convolution import scratch_size
    from syncpretrain.kernels.native import shape_numbers
    from syncpretrain.shapes import ConvolutionShape

    size, pool = int(draws.integers(1, 5)), int(draws.integers(1, 4))
    sides = pool * draws.integers(1, 4, 2) + size - 1
    shape = ConvolutionShape(
        channels=int(draws.choice([1, 2, 3, 17])),
        height=int(sides[0]),
        width=int(sides[1]),
        filters=int(draws.choice([1, 2, 7, 20])),
        size=size,
        pool=pool,
        pooling="max" if draws.random() < 0.7 else "mean",
        channels_first=bool(draws.random() < 0.5),
    )
    n = int(draws.integers(0, 4))
    x, maps = numbers(draws, n, shape.visible), numbers(draws, n, shape.hidden)
    weight = numbers(draws, shape.fan_in, shape.filters)
    none = [(0, 0), (0, shape.hidden), (n, 0), (0, 5)]
    is_none = draws.random() < 0.3
    places = numbers(draws, *none[int(draws.integers(4))] if is_none else maps.shape)
    scratch = numbers(draws, scratch_size(shape))
    given = shape_numbers(shape)
    last = int(draws.choice([shape.filters, shape.filters + 1, 1, 0]))
    channel = int(draws.choice([shape.channels, shape.channels + 1, 1]))
    bias = numbers(draws, shape.filters)
    return [
        ("convolve", [x, weight, bias, maps, places, scratch], [(*given, length(draws), 0, last)]),
        ("convolve_gradient", [x, maps, places, weight, scratch], [(*given, 0, last)]),
        ("convolve_back", [maps, places, weight, x, scratch], [(*given, 0, channel)]),
        ("visible_means", [x, numbers(draws, shape.channels)], [(*given, length(draws))]),
    ][int(draws.integers(4))]


def call_kernel(draws: np.random.Generator, extension: Any) -> None:
    """Call a function of the extension, of which each call may refuse its arguments."""
    name, arrays, others = (a_call if draws.random() < 0.6 else a_convolution)(draws)
    if draws.random() < 0.4:
        arrays = [disturbed(draws, array) for array in arrays]
    if draws.random() < 0.1 and len(arrays) > 1:
        arrays[-1] = arrays[0]
    try:
        getattr(extension, name)(*arrays, *others)
    except (TypeError, ValueError, IndexError, OverflowError, BufferError):
        return


def fit(draws: np.random.Generator) -> None:
    """Pretrain and fine-tune a small stack with drawn settings."""
    import warnings

    from syncpretrain import finetune, pretrain

    warnings.simplefilter("ignore")
    rows = int(draws.integers(2, 40))
    columns = int(draws.choice([1, 3, 20]))
    X = (draws.random((rows, columns)) < 0.5).astype("f4")
    stack = pretrain(
        X,
        hidden=[int(n) for n in draws.choice([1, 4, 17], int(draws.integers(1, 4)))],
        epochs=2,
        batch_size=int(draws.integers(1, rows + 1)),
        workers=int(draws.integers(1, 4)),
        runtime=str(draws.choice(["serial", "threads"])),
    )
    finetune(stack, X, np.arange(rows) % 2, epochs=1)


def campaign(path: str, seconds: float, seed: int, share: float) -> None:
    """Call kernels and fit until the time is over; ``share`` of it goes to calls."""
    extension = replace_extension(path)
    begun, calls, fits = time.monotonic(), 0, 0
    while (now := time.monotonic() - begun) < seconds:
        draws = np.random.default_rng([seed, calls, fits])
        if now < share * seconds:
            call_kernel(draws, extension)
            calls += 1
        else:
            fit(draws)
            fits += 1
    print(f"no report in {calls} calls and {fits} fits", flush=True)


def main() -> int:
    """Build, and run the campaign in a process that has the libraries preloaded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sanitize", choices=["address,undefined", "thread"], default="address,undefined"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--level", default="1", help="of the compiler's optimizations")
    parser.add_argument("--source", type=Path, default=ROOT / "syncpretrain" / "kernels")
    parser.add_argument("--calls", type=float, help="the share of the time for calls, not fits")
    parser.add_argument("--extension", help=argparse.SUPPRESS)
    given = parser.parse_args()
    share = given.calls if given.calls is not None else 0.0 if given.sanitize == "thread" else 0.6
    if given.extension:
        campaign(given.extension, given.seconds, given.seed, share)
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
        command = [sys.executable, __file__, *sys.argv[1:], "--extension", str(path)]
        return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
