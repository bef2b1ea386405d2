"""The backends that a behavioural test runs on, and why one is left out."""

from collections.abc import Iterable
from typing import Any

import fakecuda
import fakecupy
import numpy as np
import pytest

from syncpretrain.backends import recorder
from syncpretrain.backends.base import Backend
from syncpretrain.backends.choice import USUAL_BACKEND
from syncpretrain.backends.cublas import Cublas
from syncpretrain.backends.cuda_fused import LEAST_CAPABILITY
from syncpretrain.backends.cuda_source import CudaSource
from syncpretrain.backends.cupy_backend import CupyBackend
from syncpretrain.backends.gpu_check import import_cupy, missing
from syncpretrain.backends.recorder import GraphRecorder
from syncpretrain.backends.rows import HostRows
from syncpretrain.events import EpochFinished, Event
from syncpretrain.kernels.dispatch import register

NO_GPU = missing()
STAND_INS = ["double", "deferred"]  # see fakecupy.py
BACKENDS = ["numpy", *STAND_INS, "cupy"]
REAL = [] if NO_GPU else ["cupy"]
DEVICES = [*STAND_INS, *REAL]
LATE = ["deferred", *REAL]


def on_devices(cases: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return devices with cases: all where work is done late, the first where it is done at once.

    A missing wait shows as other numbers where work is late, and both do the same arithmetic.
    """
    cases = list(cases)
    return [(name, case) for case in cases for name in LATE] + [("double", cases[0])]


def backend_of(name: str, monkeypatch) -> Backend:
    """Return a backend whose forms are registered: NumPy, the stand-in for CuPy, or CuPy."""
    if name == "numpy":
        return Backend()
    monkeypatch.delenv(USUAL_BACKEND, raising=False)
    if name == "cupy" and NO_GPU is not None:
        pytest.skip(f"no CUDA GPU here: {NO_GPU}")
    if name in STAND_INS and fakecuda.COMPILER is None:
        pytest.skip("no g++ here to compile the kernels' source for the CPU")
    is_late = name == "deferred"
    cupy = import_cupy() if name == "cupy" else fakecupy.install(monkeypatch, deferred=is_late)
    backend = CupyBackend(cupy)
    register(backend.array_type, dict(backend.forms))
    return backend


def with_tensor_cores(name: str, monkeypatch) -> CupyBackend:
    """Return a device with tensor cores: of the stand-in, or a GPU."""
    monkeypatch.setattr(fakecupy, "CAPABILITY", "90")
    found = backend_of(name, monkeypatch)
    assert isinstance(found, CupyBackend)
    if int(found.xp.cuda.Device().compute_capability) < LEAST_CAPABILITY:
        pytest.skip("no tensor cores for TF32 here")
    return found


def queued_on(monkeypatch) -> list[str]:
    """Return a list of what is given to a device from now on, CuPy's or the stand-in's.

    Kernels and functions of cuBLAS have their names there.
    """
    queued: list[str] = []

    def note(owner: type, method: str, what: str | None = None) -> None:
        real = getattr(owner, method)

        def noted(self, first, *others, **named):
            queued.append(what or first)
            return real(self, first, *others, **named)

        monkeypatch.setattr(owner, method, noted)

    note(CudaSource, "launch")
    note(Cublas, "_call")
    note(GraphRecorder, "_launch", "graph")
    note(HostRows, "_copy", "rows of the host")
    return queued


def leave_free(monkeypatch, memory: int) -> None:
    """Let each device have that many bytes of free memory."""
    monkeypatch.setattr(CupyBackend, "_free_of", lambda self, device: memory)


def as_it_is(monkeypatch) -> None:
    """Let every block be worked launch by launch."""
    monkeypatch.setattr(
        recorder.GraphRecorder, "_record", lambda self, *_: setattr(self, "reason", "not asked for")
    )


def errors_of(events: Iterable[Event]) -> np.ndarray:
    """Return layer, epoch and errors of each epoch that ended, which must be numbers."""
    ends = sorted(
        (e.layer, e.epoch, e.train_error, e.validation_error)
        for e in events
        if isinstance(e, EpochFinished)
    )
    assert {type(number) for row in ends for number in row} == {int, float}
    return np.array(ends)
