"""Packages that some tests of data need, each by its name."""

import pytest


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas", reason="a DataFrame is needed")


@pytest.fixture
def sparse():
    return pytest.importorskip("scipy.sparse", reason="a matrix of SciPy is needed")
