"""Training steps of every kind, each preceded by what a test wants to happen there."""

from collections.abc import Callable
from typing import Any

from syncpretrain.learners.base import Learner
from syncpretrain.learners.by_examples import ByExamples, ByExamplesOnDevices
from syncpretrain.learners.steps import ByUnits, FusedDivergence, WholeStep

KINDS = (WholeStep, FusedDivergence, ByExamples, ByExamplesOnDevices, ByUnits)
Before = Callable[[Learner, int, int], Any]


def before_steps(monkeypatch, before: Before) -> None:
    """Call ``before`` with the learner, the epoch and the step; a value of it replaces the step."""
    for kind in KINDS:

        def train_step(self, X, rows, *, epoch, step, original=kind.train_step, **how):
            error = before(self.learner, epoch, step)
            if error is None:
                error = original(self, X, rows, epoch=epoch, step=step, **how)
            return error

        monkeypatch.setattr(kind, "train_step", train_step)


def after_steps(monkeypatch, after: Callable[[], None]) -> None:
    """Call ``after`` at the end of every step."""
    for kind in KINDS:

        def train_step(self, *args, original=kind.train_step, **how):
            error = original(self, *args, **how)
            after()
            return error

        monkeypatch.setattr(kind, "train_step", train_step)
