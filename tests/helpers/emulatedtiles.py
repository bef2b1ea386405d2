"""Builds the compiled kernels with AMX's tile instructions emulated by ``emulatedtiles.h``.

``emulatedtiles.c`` has functions in the place of the instructions, ``trappedtiles.c`` the
instructions themselves, which are emulated as they are met.
"""

import ctypes
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import compiledonce

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "syncpretrain" / "kernels"
NAME = "syncpretrain.kernels._native"
COMPILER = shutil.which("gcc") or shutil.which("clang")
FLAGS = ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fPIC", "-shared"]


def lacking() -> str | None:
    """Return what is missing here to build or to run them, or None."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "tiles are x86-64's, on Linux"
    if COMPILER is None or not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "there is no C compiler, or it has no headers of Python"
    return None


def makes_instructions() -> bool:
    """Return whether the compiler can make tile instructions."""
    command = [str(COMPILER), "-mamx-tile", "-mamx-bf16", "-E", "-x", "c", os.devnull]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def library(source: str = "emulatedtiles.c", level: str = "-O1") -> Path:
    """Return the file of the extension, compiled once in a run of the suite."""
    folders = [f"-I{folder}" for folder in (HERE, KERNELS, sysconfig.get_path("include"))]
    command = [COMPILER, level, *FLAGS, *folders, HERE / source, "-lm"]
    return compiledonce.library(f"{source}{level}", command)


def loaded(path: Path) -> ModuleType:
    """Return the extension in a file, beside the installed one."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def in_place_of_installed(path: str, state: str) -> ctypes.PyDLL:
    """Let the kernels of this process be those of a file; before syncpretrain is imported.

    ``state`` is ``permitted``, ``refused`` by the kernel, or ``wrong``: with sums in another order.
    """
    assert NAME not in sys.modules
    functions = functions_of(Path(path))
    functions.permit_tiles(int(state != "refused"))
    functions.split_terms(int(state == "wrong"))
    sys.modules[NAME] = loaded(Path(path))
    return functions


def functions_of(path: Path) -> ctypes.PyDLL:
    """Return the functions for tests, and the instructions."""
    functions = ctypes.PyDLL(str(path))
    pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
    functions.take_fault.restype = ctypes.c_char_p
    functions.watch_matrix.argtypes = [pointer, size, size, size, ctypes.c_int]
    functions.load_config.argtypes = [pointer]
    for transfer in (functions.load_tile, functions.store_tile):
        transfer.argtypes = [ctypes.c_int, pointer, size]
    product = functions.add_packed_product
    product.argtypes = [pointer, pointer, size, size, size, pointer, size, ctypes.c_int]
    return functions
