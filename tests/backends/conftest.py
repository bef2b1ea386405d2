"""What the tests of devices have in common."""

import numpy as np
import pytest
from backends import BACKENDS, DEVICES, REAL, STAND_INS
from devicearrays import one_of


@pytest.fixture(scope="session")
def targets() -> np.ndarray:
    """Return a class of each of the 200 examples of ``bits``."""
    return np.random.default_rng(1).integers(3, size=200)


double = one_of(["double"])  # the stand-in for CuPy that works at once
backend = one_of(BACKENDS[1:])
device = one_of(DEVICES)
prompt = one_of(["double", *REAL])  # CuPy, or the stand-in that works at once
late = one_of(["deferred", *REAL])  # CuPy, or the stand-in that works as late as it may
stand_in = one_of(STAND_INS)


@pytest.fixture
def unexamined(monkeypatch) -> None:
    """Leave out the product with which a GPU is tried before it is chosen."""
    monkeypatch.setattr("syncpretrain.backends.gpu_check.missing", lambda device: None)
