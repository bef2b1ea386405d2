"""Runs on saved data, with time limits of their own, or dying or stopped at a known moment."""

import itertools
import threading
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
from disturbedsteps import after_steps
from moments import At
from moments import notices_of as notices_of  # most tests take it from here

from syncpretrain.errors import RunInterrupted
from syncpretrain.events import EpochFinished
from syncpretrain.parallel.signals import StopRequest
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.runs.run import train_run
from syncpretrain.settings import settings_from
from syncpretrain.workers.state import PretrainState


class Abort(Exception):  # noqa: N818 - it stands for a death
    """As if the process had died here: nothing handles it."""


class DieAt(At):
    """Raise an error at the n-th event of a kind, counting only those with the given values."""

    def __init__(self, kind, n=1, *, error=Abort, **values):
        super().__init__(kind, self._die, n, **values)
        self._error = error

    def _die(self) -> None:
        raise self._error


def died(settings, out, kind=EpochFinished, n=6, **options):
    """Begin a run that dies at the n-th event of a kind; return its folder."""
    with pytest.raises(Abort):
        train_run(settings, out=out, observers=[DieAt(kind, n)], **options)
    return out


def stop_after(monkeypatch: pytest.MonkeyPatch, minibatches: int) -> None:
    """Stop pretraining after a number of minibatches, as on SIGINT."""
    seen, request = itertools.count(1), StopRequest()

    def count() -> None:
        if next(seen) == minibatches:
            request.signum = 2

    after_steps(monkeypatch, count)
    place = "syncpretrain.pretraining.training.stop_on_signals"
    monkeypatch.setattr(place, lambda: nullcontext(request))


def stopped_after(minibatches, settings, X):
    """Stop pretraining after a number of minibatches; return its state, and the stack so far."""
    states = []

    def save(state: Callable[[], PretrainState], *, done: object, final: bool) -> None:
        if final:
            states.append(state())

    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, minibatches)
        with pytest.raises(RunInterrupted) as caught:
            Pretraining(settings, X, save=save).run()
    return states[-1], caught.value.stack


def pretrain_within(times, X, *, observers=(), **settings):
    """Pretrain as ``syncpretrain.pretrain`` does, with time limits of its own."""
    own = settings_from(**settings).pretrain
    return Pretraining(own, X, observers=observers, times=times).run()


def settings_on(folder, X, layers, *, tuning=3, **given):
    """Save examples in a folder; return the settings of a run on them.

    It has a checkpoint after each epoch and ``tuning`` epochs of fine-tuning, unless ``given``
    says otherwise.
    """
    np.save(folder / "bits.npy", X)
    usual = {
        "data": {"name": str(folder / "bits.npy")},
        "finetune": {"objective": "reconstruction", "epochs": tuning, "batch_size": 40},
        "run": {"checkpoint_every": "1"},
        "blas_threads": 1,
        "epochs": 3,
        "batch_size": 40,
    }
    return settings_from(layers, **(usual | given))


def never() -> bool:
    """Answer whether to stop."""
    return False


def library_threads() -> list[str]:
    """Return the names of the library's threads that live."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("syncpretrain-"))
