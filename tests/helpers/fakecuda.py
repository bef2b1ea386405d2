"""Runs CUDA source on the CPU: compiled by g++ with ``cudashim.h`` in CUDA's place."""

import ctypes
import re
import shutil
from functools import cache
from pathlib import Path

import compiledonce
import numpy as np

COMPILER = shutil.which("g++") or shutil.which("clang++")
SHIM = Path(__file__).with_name("cudashim.h")
FLAGS = ["-O1", "-std=c++14", "-ffp-contract=off", "-fPIC", "-shared", "-x", "c++"]
MOST_THREADS = 1024  # of a block, on any GPU
SCALARS = {
    "float": (ctypes.c_float, np.float32),
    "double": (ctypes.c_double, float),  # CuPy passes a Python float as double
    "long long": (ctypes.c_longlong, int),  # and an int as long long
    "uint64": (ctypes.c_ulonglong, np.uint64),
}
POINTERS = {
    "uint8": np.uint8,
    "float": np.float32,
    "double": np.float64,
    "long long": np.int64,
    "uint64": np.uint64,
    "uint32": np.uint32,
}


@cache
def parameters(source: str) -> dict[str, list[str]]:
    """Return the types of the parameters of each kernel, without const."""
    source = re.sub(r"//[^\n]*", "", source)
    source = re.sub(r"__launch_bounds__\([^)]*\) ", "", source)
    found = re.findall(r'extern "C" __global__ void (\w+)\(([^)]*)\)', source)
    return {
        name: [
            re.sub(r"(\*?)\w+$", r"\1", part.strip().removeprefix("const "))
            .replace(" *", "*")
            .strip()
            for part in listed.split(",")
        ]
        for name, listed in found
    }


@cache
def waiting(source: str) -> frozenset[str]:
    """Return the names of the functions that have a barrier, or call one that has."""
    found = {"__syncthreads", "__syncwarp"}
    source = re.sub(r"__launch_bounds__\([^)]*\) ", "", source)
    parts = re.split(r'^(?=__device__ static |extern "C" )', source, flags=re.MULTILINE)
    while True:
        calls = re.compile(rf"\b({'|'.join(found)})(<\w+>)?\(")
        more = {re.findall(r"(\w+)\(", part)[0] for part in parts[1:] if calls.search(part)}
        if more <= found:
            return frozenset(found)
        found |= more


@cache
def compiled(source: str) -> ctypes.PyDLL:
    """Return the library of a source, with a function launch_NAME for each kernel."""
    launches = []
    for name, types in parameters(source).items():
        given = ", ".join(f"{kind} p{i}" for i, kind in enumerate(types))
        passed = ", ".join(f"p{i}" for i in range(len(types)))
        launches.append(
            f'extern "C" int launch_{name}(const unsigned int *shape, {given})'
            f" {{ return run_grid(shape, [&] {{ {name}({passed}); }}); }}"
        )
    code = "\n".join([SHIM.read_text(), source, *launches])
    # PyDLL holds the GIL: the shim has one set of fibers.
    return ctypes.PyDLL(str(compiledonce.library(code, [COMPILER, *FLAGS, "-"])))


def launch(source, name, grid, block, args):
    """Run a kernel; ``args`` are scalars or objects with ``data.ptr`` and ``dtype``, as in CuPy.

    What CUDA would take without a word and misread is refused: arguments of another number or type
    than the kernel's, and blocks and grids that are empty or too large.
    """
    types = parameters(source)[name]
    assert len(args) == len(types), f"{name}: got {len(args)} arguments, expected {len(types)}"
    assert 1 <= np.prod(block) <= MOST_THREADS, f"{name}: got a block of {block}"
    assert len(grid) == 1, f"{name}: the shim knows grids of one dimension"
    assert grid[0] >= 1, f"{name}: got a grid of {grid}"
    shape = (ctypes.c_uint * 4)(grid[0], *(*block, 1)[:2], name in waiting(source))
    passed = []
    for at, (kind, given) in enumerate(zip(types, args, strict=True)):
        if kind.endswith("*") and given is None:
            passed.append(ctypes.c_void_p(None))
        elif kind.endswith("*"):
            expected = np.dtype(POINTERS[kind[:-1]])
            assert given.dtype == expected, f"{name}, argument {at}: got {given.dtype}"
            passed.append(ctypes.c_void_p(given.data.ptr))
        else:
            convert, accepted = SCALARS[kind]
            assert type(given) is accepted, f"{name}, argument {at}: got {type(given)} for {kind}"
            passed.append(convert(given))
    fault = getattr(compiled(source), f"launch_{name}")(shape, *passed)
    assert fault != 1, f"{name}: a part of a block waits at a barrier that the rest never reaches"
    assert fault == 0, f"{name}: a copy of what is not aligned"
