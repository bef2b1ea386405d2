"""Limits of parallel work that joblib sets."""

from __future__ import annotations

from typing import Any

from joblib.parallel import get_active_backend

__all__ = ["parallel_limits"]


def parallel_limits(workers: int | None) -> dict[str, Any]:
    """Return the settings of pretraining and of fine-tuning that limit cores.

    None takes all usable cores, but one core inside a job of joblib, which has given the others to
    its other jobs. One BLAS thread there too: jobs in threads share the limit of their process.
    """
    if workers is None and _is_inside_a_job():
        workers = 1
    return {} if workers is None else {"workers": workers, "blas_threads": workers}


def _is_inside_a_job() -> bool:
    backend, _ = get_active_backend()
    return bool(backend.nesting_level)
