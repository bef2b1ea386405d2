"""What the tests of estimators have in common."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def fast_solvers(one_blas_thread: None) -> None:
    """Let scikit-learn's solvers work in one thread."""
