"""Every error that the library raises on purpose, one class per thing that happened."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = [
    "AveragingError",
    "CheckpointError",
    "DataError",
    "DivergedError",
    "IterableError",
    "ModelFileError",
    "NovelValueWarning",
    "PoorResultWarning",
    "RunInterrupted",
    "SaveError",
    "ScheduleError",
    "SettingsError",
    "StalledError",
    "SyncpretrainError",
    "WorkerError",
    "needed",
]


def needed(module: str, otherwise: Exception) -> Any:
    """Return a module of a package that may be missing; raise ``otherwise`` if it is."""
    try:
        import_module(module.partition(".")[0])  # a part may have been imported before
        return import_module(module)
    except ImportError:
        raise otherwise from None


class SyncpretrainError(Exception):
    """Base of all errors of this library; ``except SyncpretrainError`` catches each of them.

    Only :class:`RunInterrupted` is none: it is a KeyboardInterrupt.
    """


class SettingsError(SyncpretrainError, ValueError):
    """A setting is outside its range or contradicts another one."""


class DataError(SyncpretrainError, ValueError):
    """Data is missing, unreadable, or of a shape or range that cannot be trained on."""


class IterableError(DataError):
    """An iterable of examples raised an exception, which is the ``__cause__``."""


class ModelFileError(SyncpretrainError, ValueError):
    """A model or run folder is missing, damaged, or of another format."""


class CheckpointError(SyncpretrainError, ValueError):
    """A checkpoint is missing, damaged, or of another run."""


class SaveError(SyncpretrainError, OSError):
    """A result could not be written where it belongs; the message says where it is instead."""


class ScheduleError(SyncpretrainError, RuntimeError):
    """The schedule was asked for an illegal move; the message contains the moves so far."""


class WorkerError(SyncpretrainError, RuntimeError):
    """A layer's worker failed; the original exception is the ``__cause__``.

    ``stack``, a :class:`syncpretrain.Stack` or None, holds every layer at its last finite state.
    """

    def __init__(self, message: str, *, stack: Any = None) -> None:
        super().__init__(message)
        self.stack = stack


class AveragingError(SyncpretrainError, RuntimeError):
    """Gradients cannot be averaged any more: a worker failed, died, left, or did not come in time.

    Also raised for a worker that is used twice, too late, or in a place where it cannot be.
    """


class DivergedError(WorkerError):
    """Training left the finite numbers, or its weights or its error ran away."""


class StalledError(WorkerError):
    """No worker made progress before the deadline."""


class RunInterrupted(KeyboardInterrupt):
    """The run was stopped by a signal after the running minibatch.

    ``stack``, a :class:`syncpretrain.Stack` or None, holds what was learned so far, ``signum`` the
    signal (2 for Ctrl-C).
    """

    def __init__(self, message: str, *, stack: Any = None, signum: int = 2) -> None:
        super().__init__(message)
        self.stack = stack
        self.signum = signum


class PoorResultWarning(UserWarning):
    """A result is no better than a constant, most units are constant, or labels look odd.

    Labels look odd where -1, which stands for no label, is as frequent as a class, and where nearly
    every row is a class of its own.
    """


class NovelValueWarning(UserWarning):
    """Values are new to a model: of a column that never varied, or far from how it was scaled."""
