"""History: the figures of a run whose events are known."""

from __future__ import annotations

import pytest

from syncpretrain.events import (
    EpochFinished,
    EpochStarted,
    LayerFinished,
    Notice,
    Progress,
    RunFinished,
    RunStarted,
)
from syncpretrain.observers.history import History

EVENTS = [
    Notice(9.0, "data"),
    RunStarted(10.0, (4, 3, 2), (2, 1), "synchronized", "free", "threads", 2, 100),
    EpochStarted(10.0, 1, 1, 0),
    Progress(11.0, 1, 1, 0.5),
    EpochFinished(12.0, 1, 1, 0, 10.0, 0.0, 5.0, 5.5),
    EpochStarted(12.0, 1, 2, 0),
    EpochStarted(12.5, 2, 1, 1),
    EpochFinished(14.0, 1, 2, 0, 12.0, 0.0, 4.0, None),
    EpochFinished(14.0, 2, 1, 1, 13.0, 0.25, 3.0, 3.5),
    LayerFinished(14.0, 1),
    EpochStarted(14.0, 2, 2, 2),
]


@pytest.fixture
def history():
    history = History()
    for event in EVENTS:
        history(event)
    return history


def test_epochs_and_reads(history):
    assert history.epochs == (2, 1)
    assert history.reads == ((0, 0), (1,))  # the epoch under way does not count


def test_busy_and_idle_of_an_unfinished_run(history):
    assert history.pretrain_seconds == 4.0
    assert history.busy_seconds == (4.0, 1.0)
    assert history.idle_seconds == (0.0, 3.0)


def test_progress_tells_the_time_but_is_not_kept(history):
    history(Progress(15.0, 2, 2, 0.5))
    assert history.pretrain_seconds == 5.0
    assert history.events == [event for event in EVENTS if not isinstance(event, Progress)]


def test_a_finished_run_has_the_drivers_figures(history):
    history(RunFinished(20.0, 8.0, (4.5, 8.5)))
    history(Notice(30.0, "fine-tuning takes no part"))
    assert history.pretrain_seconds == 8.0
    assert history.busy_seconds == (4.5, 8.5)
    assert history.idle_seconds == (3.5, 0.0)


def test_before_the_run_everything_is_empty():
    history = History()
    history(EVENTS[0])
    assert history.epochs == history.reads == history.busy_seconds == history.idle_seconds == ()
    assert history.pretrain_seconds == 0.0


def test_a_layer_that_never_trained():
    history = History()
    history(EVENTS[1])
    assert history.epochs == (0, 0)
    assert history.reads == ((), ())
