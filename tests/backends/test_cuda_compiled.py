"""The CUDA source, compiled for real devices by NVRTC, which needs no GPU."""

import ctypes
import importlib.util
import itertools
import re
from pathlib import Path

import fakecuda
import pytest

from syncpretrain.backends import cuda_fused
from syncpretrain.backends.cuda_source import COMPILER_OPTIONS, CUDA_FILES, cuda_source
from syncpretrain.kernels.precision import PRECISIONS

# Turing, Ampere, Hopper and Blackwell, and how many registers a thread may have: so that four
# blocks of 256 have room on a multiprocessor, or two of those with tiles of products.
CASES = [(CUDA_FILES, "float32", architecture, 64) for architecture in (75, 80, 90, 120)]
# Each precision on each architecture, in the files of pretraining or of fine-tuning in turns, so
# that both have each precision and each architecture. They share the tiles of their products.
STEPS = itertools.cycle((cuda_fused.FUSED_FILES, cuda_fused.TUNING_FILES))
CASES += [
    (next(STEPS), precision, architecture, 128)
    for precision in PRECISIONS
    for architecture in (80, 90, 120)
]
OPTIONS = (*COMPILER_OPTIONS, "-ftz=true", "-std=c++17", "--ptxas-options=-v")  # CuPy's, and a log


def library() -> ctypes.CDLL:
    """Return NVRTC, as the package of NVIDIA installs it."""
    found = importlib.util.find_spec("nvidia")
    folders = list(found.submodule_search_locations or ()) if found else []
    files = [path for folder in folders for path in Path(folder).glob("*/lib/libnvrtc.so.*")]
    if not files:
        pytest.skip("no NVRTC here; pip install nvidia-cuda-nvrtc")
    return ctypes.CDLL(str(min(files, key=lambda path: len(path.name))))


def compiled(source: str, architecture: int) -> tuple[int, str]:
    """Return the status of a compilation for an architecture, and its log."""
    nvrtc, program, size = library(), ctypes.c_void_p(), ctypes.c_size_t()
    options = [f"--gpu-architecture=sm_{architecture}".encode(), *map(str.encode, OPTIONS)]
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    given = (ctypes.c_char_p * len(options))(*options)
    status = nvrtc.nvrtcCompileProgram(program, len(options), given)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode()


@pytest.mark.parametrize(("names", "precision", "architecture", "most"), CASES)
def test_every_kernel_keeps_its_numbers_in_registers(names, precision, architecture, most):
    source = cuda_source(names, precision)
    status, log = compiled(source, architecture)
    assert status == 0, log
    parts = re.split(r"Compiling entry function '(\w+)'", log)[1:]
    kernels = dict(zip(parts[::2], parts[1::2], strict=True))
    assert kernels.keys() == fakecuda.parameters(source).keys()
    for name, text in kernels.items():
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", text)
        assert stack is not None, f"{name}: {text}"
        assert stack.groups() == ("0", "0"), f"{name}: {text}"
        registers = re.search(r"Used (\d+) registers", text)
        assert registers is not None and int(registers[1]) <= most, f"{name}: {text}"


def test_the_source_and_its_launches_have_the_same_blocks():
    source = cuda_source(cuda_fused.FUSED_FILES)
    for name, value in (
        ("FUSED_THREADS", cuda_fused.PRODUCT_THREADS),
        ("TILE_FLOATS", cuda_fused.PRODUCT_MEMORY // 4),
    ):
        assert re.search(rf"^#define {name} {value}\b", source, re.MULTILINE)
    for name, (rows, columns) in (("Few", cuda_fused.FEW), ("Many", cuda_fused.MANY)):
        assert re.search(rf"^typedef Shape<{rows}, {columns}, .*> {name};$", source, re.MULTILINE)


def test_a_source_that_is_wrong_is_refused():
    status, log = compiled('extern "C" __global__ void wrong(float *x) { x = y; }', 90)
    assert status != 0 and '"y" is undefined' in log
