"""Shared memory that has a name, which none of this library has."""

from __future__ import annotations

from pathlib import Path

OTHERS = ("mpich_", "sem.", "joblib_")  # of tests that run at the same time
