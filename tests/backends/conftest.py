"""What the tests of devices have in common."""

from __future__ import annotations

import pytest
from backends import backend_of

from syncpretrain.backends.base import Backend


@pytest.fixture
def double(monkeypatch) -> Backend:
    """Return the stand-in for CuPy that works at once."""
    return backend_of("double", monkeypatch)
