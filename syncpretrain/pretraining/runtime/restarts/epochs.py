"""Epochs of a layer that the next process goes on with, if this one is killed.

The state is kept in the middle of an epoch, and at its end, together with the report of it, before
that is sent. So the next process either goes on in the epoch that it is asked for, or has the
report of it already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from syncpretrain.learners.cursor import Cursor
from syncpretrain.pretraining.runtime.layer_state import LayerState
from syncpretrain.pretraining.runtime.messages import Finished
from syncpretrain.pretraining.runtime.process_messages import Order, Report
from syncpretrain.pretraining.runtime.restarts.keeping import Keeping
from syncpretrain.pretraining.runtime.restarts.state import KeptStates
from syncpretrain.pretraining.runtime.worker import LayerWorker

__all__ = ["KeptEpochs"]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A layer in an epoch, or after it, which the report says; ``warnings`` are of that epoch."""

    epoch: int
    state: LayerState
    warnings: tuple[str, ...] = ()
    report: Report | None = None


class KeptEpochs:
    """A worker that keeps its states; it first goes to the newest one.

    Parameters
    ----------
    worker : LayerWorker
    kept : KeptStates
    obey : callable
        Has the worker train the epoch of an order; returns the report.
    """

    def __init__(
        self, worker: LayerWorker, kept: KeptStates, obey: Callable[[Order], Report]
    ) -> None:
        self._worker, self._obey, self._keeping = worker, obey, Keeping(kept)
        self._epoch = 0  # that is trained
        self._before: tuple[str, ...] = ()  # warnings of it, from earlier processes
        found: _Kept | None = kept.newest()
        if found is None:
            found = _Kept(0, worker.state())
            self._keeping.keep(found)
        else:
            worker.load_state(found.state)
        self._found: _Kept | None = found
        worker.keeper = self

    def __call__(self, order: Order) -> Report:
        """Train the epoch of an order, or what is left of it; return its report."""
        found, self._found = self._found, None
        self._epoch, self._before = order.command.epoch, ()
        if found is not None and found.epoch == self._epoch:
            if found.report is not None:
                return found.report
            # It has trained on its input, which therefore is there.
            order = replace(order, source=replace(order.source, snapshot=None))
            self._before = found.warnings
        report = self._obey(order)
        message = report.message
        report = replace(
            report, message=replace(message, warnings=(*self._before, *message.warnings))
        )
        if isinstance(message, Finished):
            state = message.state or self._worker.live_state(Cursor())
            self._keeping.keep(_Kept(self._epoch, state, report=report))
        return report

    @property
    def is_due(self) -> bool:
        """Whether the state is to be kept."""
        return self._keeping.is_due

    def keep(self, state: LayerState, warnings: tuple[str, ...]) -> None:
        """Keep a state in the middle of the running epoch."""
        self._keeping.keep(_Kept(self._epoch, state, (*self._before, *warnings)))
