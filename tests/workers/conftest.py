"""What jobs of a real ``mpiexec`` are given."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def data(bits, tmp_path, monkeypatch):
    """Return the option for the examples, which are in the working folder."""
    np.save(tmp_path / "X.npy", bits)
    monkeypatch.chdir(tmp_path)
    return ["--data", "X.npy"]
