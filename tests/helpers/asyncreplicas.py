"""Replicas whose changes are whole numbers, which float32 adds up exactly in any order."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from killings import die, is_first
from localranks import local_ranks
from trialruns import never

from syncpretrain.parallel.replicas.server import ParameterServer
from syncpretrain.parallel.replicas.steps import tasks_of
from syncpretrain.parallel.timeouts import TIMEOUTS
from syncpretrain.settings.fields import AsyncFields
from syncpretrain.workers.replicas import replicas_in

SIZE, STEPS = 1000, 40
WHOLE = AsyncFields(async_rate="constant")
DATA = (np.ones((2, 3), np.float32),)
EXCHANGES = ("messages", "windows")


class CountingReplica:
    """Step t adds t + 1 to every parameter.

    The first replica that finds no file ``dies`` makes it and kills itself in step 5; the first
    that finds no file ``fails`` raises there.
    """

    def __init__(self, dies: Path | None, fails: Path | None, data: Sequence[Any]) -> None:
        self.parameters = [np.zeros((SIZE // 10, 5), np.float32), np.zeros(SIZE // 2, np.float32)]
        self.steps = np.zeros(1, np.float32)
        self._dies, self._fails, self._data = dies, fails, data

    def train(self, epoch: int, step: int) -> list[float]:
        """Take a step; its error is the step."""
        for array in self.parameters:
            array += step + 1
            if step >= 5 and self._dies and is_first(self._dies):
                die()  # with one array of two changed
        if step >= 5 and self._fails and is_first(self._fails):
            raise ArithmeticError("a step went wrong")
        self.steps += 1
        return [float(step) + float(self._data[0].sum())]

    def state(self) -> dict[str, Any]:
        """Return the number of steps."""
        return {"steps": self.steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go back to a number of steps."""
        np.copyto(self.steps, state["steps"])


def place_of(name: str, ranks: int = 3) -> AbstractContextManager[Any]:
    """Return what surrounds a fleet: the ranks where it exchanges by "messages" or "windows"."""
    return local_ranks(ranks) if name in EXCHANGES else nullcontext()


class Fleet:
    """Replicas that count, with what they reported; what is ``given`` are its other rules."""

    def __init__(
        self, runtime, *, dies=None, fails=None, times=TIMEOUTS, servers=1, replicas=3, **given
    ):
        rules = msgspec.structs.replace(WHOLE, **given)
        self.parameters = np.zeros(SIZE, np.float32)
        self.server = ParameterServer(self.parameters, rules, servers)
        self.told, self.trained, self.errors = [], [], 0.0
        on_ranks = runtime in EXCHANGES
        self.fleet = replicas_in(
            "mpi" if on_ranks else runtime,
            self.server,
            rules,
            partial(CountingReplica, dies, fails),
            DATA,
            report=self.told.append,
            times=times,
            replicas=replicas,
            **({"exchange": runtime} if on_ranks else {}),
        )

    def each(self, task, errors, staleness):
        self.trained.append((task, staleness))
        self.errors += errors[0]

    def train(self, steps=STEPS, *, stop=never):
        with self.fleet:
            return self.fleet.train(tasks_of(1, 0, steps, 1), stop, self.each)

    def assert_adds_up(self, steps):
        np.testing.assert_array_equal(self.parameters, np.float32(steps * (steps + 1) / 2))
