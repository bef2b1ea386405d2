"""The compiled products of float32 and of bfloat16: their forms, and what they leave to NumPy."""

import hashlib
from pathlib import Path

import emulatedtiles
import numpy as np
import pytest
from bfloat16bydefinition import factors

from syncpretrain.kernels import native

FLOAT32_FORMS = native.extension.float32_forms() if native.extension else ()
BFLOAT16_FORMS = native.extension.bfloat16_forms() if native.extension else ()
CPU_INFO = Path("/proc/cpuinfo")
CPU_FLAGS = set(CPU_INFO.read_text().split()) if CPU_INFO.is_file() else set()
COMPILED = pytest.mark.skipif(native.extension is None, reason="the compiled kernels are not there")
PACKED = pytest.mark.skipif(
    "pairs" not in BFLOAT16_FORMS or emulatedtiles.lacking() is not None,
    reason=emulatedtiles.lacking() or "this CPU has no AVX512-BF16, which packs factors of tiles",
)


def compiled(name, a, b, *, form, out=None):
    """Return the product of the compiled form, which must have one."""
    out = np.full((len(a), b.shape[1]), np.nan, dtype=np.float32) if out is None else out
    assert getattr(native.extension, name)(a, b, out, form) is out
    return out


def assert_bits(found: np.ndarray, expected: np.ndarray, *what: object) -> None:
    """Fail if any bit differs, of the signs of zeros and of what is not a number too."""
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32), str(what))


def digest(x: np.ndarray) -> str:
    return hashlib.sha256(x.astype("<f4").tobytes()).hexdigest()[:16]


def some_factors(rows, inner, columns, seed=0):
    """Return factors of random bits that do not depend on how NumPy draws normal numbers."""
    rng = np.random.default_rng(seed)
    a, b = (
        rng.integers(-(2**23), 2**23, shape) * 2.0 ** rng.integers(-26, -20, shape)
        for shape in ((rows, inner), (inner, columns))
    )
    return a.astype(np.float32), b.astype(np.float32)


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.setflags(write=False)
    return x


A, B = factors(4, 6, 3)
SQUARE, OUT = factors(6, 6, 6)[0], np.empty((4, 3), dtype=np.float32)
WIDE = np.zeros((6, 20), dtype=np.float32)
LEFT_TO_NUMPY = {
    "other inner sizes": (A, B[:5], OUT),
    "other rows": (A[:3], B, OUT),
    "other columns": (A, B[:, :2], OUT),
    "a transposed product": (A, B, OUT.T),
    "columns of a product side by side": (A, B, np.empty((3, 4), dtype=np.float32).T),
    "float64": (A.astype(np.float64), B, OUT),
    "a factor of float64": (A, B.astype(np.float64), OUT),
    "a product of float64": (A, B, OUT.astype(np.float64)),
    "whole numbers": (A.astype(np.int32), B, OUT),
    "swapped bytes": (A.astype(">f4"), B, OUT),
    "a product into its factor": (SQUARE, SQUARE.copy(), SQUARE),
    "a product into its other factor": (SQUARE.copy(), SQUARE, SQUARE),
    "a product into a part of its factor": (WIDE[:, :6], SQUARE, WIDE[:, 5:11]),
    "nothing to write to": (A, B, read_only(OUT)),
    "a vector": (A, B[:, 0], OUT[:, 0]),
    "many matrices": (A[None], B[None], OUT[None]),
    "neither rows nor columns": (WIDE[:4, ::3][:, :6], B, OUT),
    "every second column": (A, B, np.empty((4, 6), dtype=np.float32)[:, ::2]),
    "rows from behind": (A[::-1], B, OUT),
    "one row many times": (np.broadcast_to(A[:1], (4, 6)), B, OUT),
    "a list": (A.tolist(), B, OUT),
}
REFUSED = {
    *("other inner sizes", "other rows", "other columns", "a transposed product"),
    "nothing to write to",
}
