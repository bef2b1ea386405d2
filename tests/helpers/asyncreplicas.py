"""Replicas whose changes are whole numbers, which float32 adds up exactly in any order."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 1000


class CountingReplica:
    """Step t adds t + 1 to every parameter.

    The first replica that finds no file ``dies`` makes it and kills itself in step 5; the first
    that finds no file ``fails`` raises there.
    """

    def __init__(self, dies: str | None, fails: str | None, data: Sequence[Any]) -> None:
        self.parameters = [np.zeros((SIZE // 10, 5), np.float32), np.zeros(SIZE // 2, np.float32)]
        self.steps = np.zeros(1, np.float32)
        self._dies, self._fails, self._data = dies, fails, data

    def train(self, epoch: int, step: int) -> list[float]:
        """Take a step; its error is the step."""
        for array in self.parameters:
            array += step + 1
            if step >= 5 and is_first(self._dies):
                os.kill(os.getpid(), signal.SIGKILL)  # with one array of two changed
        if step >= 5 and is_first(self._fails):
            raise ArithmeticError("a step went wrong")
        self.steps += 1
        return [float(step) + float(self._data[0].sum())]

    def state(self) -> dict[str, Any]:
        """Return the number of steps."""
        return {"steps": self.steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go back to a number of steps."""
        np.copyto(self.steps, state["steps"])


def is_first(name: str | None) -> bool:
    """Return whether nobody has asked with this name of a file."""
    if name is None:
        return False
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
