"""The oracle of the contract suite."""

from functools import cache

import pytest
from contractruns import SERIAL, ended


@pytest.fixture(scope="session")
def alone(bits):
    """Return a function that trains in turns, once for all runtimes with the same options."""

    @cache
    def once(handoff, given):
        return ended(bits, SERIAL, handoff, **dict(given))

    def train(runtime, handoff, **options):
        given = {**runtime.options, **options}
        return once(handoff, tuple(sorted(given.items())))

    return train
