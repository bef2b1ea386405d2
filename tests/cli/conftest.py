"""What the tests of commands have in common."""

from collections.abc import Callable

import pytest


@pytest.fixture
def refusal(call) -> Callable[..., str]:
    """Return a function that calls what is to be refused, and returns the one line printed."""

    def run(*arguments: object) -> str:
        out, err = call(*arguments, status=2)
        assert (out, err.count("\n"), err[-1]) == ("", 1, "\n"), err
        return err[:-1]

    return run
