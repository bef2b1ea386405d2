"""The result of a fine-tuning with its history and the verdict on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from syncpretrain.data.examples import evenly_spaced
from syncpretrain.models.stack import Stack
from syncpretrain.models.verdict import mean_error, on_tuning
from syncpretrain.observers.errors import ErrorHistory

__all__ = ["continued", "judged"]

MOST_ROWS_JUDGED = 1000  # whose spread an error is compared with


def continued(history: ErrorHistory | None) -> ErrorHistory:
    """Return the history of a fine-tuning, which begins with that of pretraining."""
    return ErrorHistory([] if history is None else list(history.layers))


def judged(
    tuned: Stack, objective: str, history: ErrorHistory, targets: Any, cause: str | None = None
) -> Stack:
    """Return the stack with its history, and the verdict in its info.

    ``targets`` are those trained on, of shape (n, outputs); ``cause`` is why nothing can be learned
    of the rows, if it is known.
    """
    if objective == "classification":
        constant = 1 - float(targets.mean(axis=0).max())  # the most frequent class is right
    else:
        constant = mean_error(evenly_spaced(targets, MOST_ROWS_JUDGED))
    info = dict(tuned.info)
    before = info.pop("verdict", [])  # of pretraining: a cause, if the result is poor
    sentences = on_tuning(objective, history.finetune, constant, examples=len(targets))
    sentences = [cause] if cause else sentences
    if sentences:
        info["verdict"] = [*before, *sentences]
    return replace(tuned, info=info, history=history)
