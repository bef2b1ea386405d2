"""``finetune``: its arguments checked, the rest left to the trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from syncpretrain.errors import DataError, RunInterrupted, SettingsError
from syncpretrain.events import Observer
from syncpretrain.finetuning.state import FinetuneSaver, FinetuneState
from syncpretrain.finetuning.tasks import (
    Reconstruction,
    Supervised,
    labels_of,
    numbers_of,
)
from syncpretrain.finetuning.trainer import Examples, Trainer
from syncpretrain.placing import backend_for, resolved_tuning
from syncpretrain.runtime.blas import blas_limit
from syncpretrain.runtime.blas import blas_threads as resolve_threads
from syncpretrain.runtime.signals import stop_on_signals
from syncpretrain.runtime.team import Team, TeamTimes
from syncpretrain.runtime.watch import STALL_SECONDS
from syncpretrain.settings import FinetuneSettings, checked
from syncpretrain.settings.devices import check_tuning_backend
from syncpretrain.stack import Stack

__all__ = ["finetune"]

STEPPING = ("adam", "sgd")
WORTH_SHARING = 10**7  # examples of a minibatch times weights: some tenths of a ms a step


class _Options(FinetuneSettings, frozen=True, kw_only=True):
    """The settings of one call, checked together."""

    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    blas_threads: Annotated[int, msgspec.Meta(ge=1)] | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        FinetuneSettings.__post_init__(self)
        check_tuning_backend(self.backend, self)


def finetune(
    stack: Stack,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    validation: ArrayLike | None = None,
    validation_y: ArrayLike | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] | None = None,
    save: FinetuneSaver | None = None,
    resume: FinetuneState | None = None,
    stall_seconds: float | None = None,
    **settings: Any,
) -> Stack:
    """Return a new stack that does its task better; the one given stays as it is.

    Without ``y`` the task is reconstruction: the stack is unrolled into encoder and decoder
    (Hinton and Salakhutdinov 2006; Santara et al. 2016, 3). With it a head on the code learns to
    predict y, and the layers below with it. The same seed and the same number of shards
    (or of BLAS threads, where there is one) give the same bits.

    Parameters
    ----------
    stack : Stack
        Pretrained layers.
    X : array-like of shape (n_examples, input units)
        As for pretraining: values in [0, 1], or any where the visible units are Gaussian.
    y : array-like of shape (n_examples,) or (n_examples, outputs), optional
        Whole numbers are classes, and -1 stands for no label; other numbers are a regression's,
        and NaN stands for none. Rows without a target are left out.
    validation : array-like of shape (n_validation, input units), optional
        After each epoch the error is measured on it: on all rows where ``patience`` depends on
        it, else on 1,000 evenly spaced ones.
    validation_y : array-like, optional
        Its targets, if there is a ``y``.
    observers : sequence of callable
        Each is called with ``FinetuneStarted``, ``Progress`` (of layer 0, the whole stack) and
        ``FinetuneEpochFinished`` events, in this thread. The training error is the running one of
        the epoch's minibatches: squared and summed over units, or the share of wrong classes.
    stop : callable, optional
        Asked before each minibatch whether to stop.
    save : callable, optional
        Given, after each epoch and at a stop, a function that returns a :class:`FinetuneState`,
        and whether it is the last one.
    resume : FinetuneState, optional
        Where a call with the same arguments goes on, to the same bits.
    stall_seconds : float, optional
        How long a worker may wait in a minibatch for others that share it; default 600.
    **settings
        Fields of :class:`syncpretrain.settings.FinetuneSettings`, and ``seed`` (of the order of
        the minibatches, of dropout, of the head's first weights), ``blas_threads`` (default all
        usable cores) and ``backend`` (``auto``, ``numpy``, ``cupy`` or ``cupy:1``: as of
        :class:`syncpretrain.settings.PretrainSettings`, on one GPU). ``objective`` follows from y
        unless it is given. ``learning_rate`` is 0.001 for adam and 0.1 for sgd unless it is given.

    Returns
    -------
    Stack
        With ``decoder_weight`` in every layer, or with a head; and a record of this call at the
        end of the list ``info["finetune"]``.

    Raises
    ------
    SettingsError
        If a setting is out of its range, or the minibatch is larger than X.
    DataError
        If X, y or ``validation`` cannot be trained on, or do not fit each other or the stack.
    DivergedError
        If training leaves the finite numbers, or ends an epoch far worse than it began and worse
        than a constant guess. Its ``stack`` is that of the last good epoch.
    StalledError
        If a worker waits too long for the others.
    RunInterrupted
        On Ctrl-C or SIGTERM, or if ``stop`` said so. Its ``stack`` is that after the last
        whole minibatch.
    """
    options = checked({"objective": _objective(y), **settings}, _Options)
    _check_targets(options.objective, y, validation, validation_y)
    prepared = _prepared(
        stack, options, (X, y), None if validation is None else (validation, validation_y)
    )
    options, threads = _shared_out(options, stack)
    backend = backend_for(options.backend).for_layer(1)
    stream = backend.stream()
    with stop_on_signals() as request:  # outermost: an interrupt leaves no BLAS limit behind

        def should_stop() -> bool:
            return request() or (stop is not None and stop())

        seed, name = options.seed, "syncpretrain-finetune"
        times = TeamTimes(stall=stall_seconds or STALL_SECONDS)
        workers = Team(options.replicas or 1, name, times)
        with blas_limit(threads), closing(workers) as team, stream:
            trainer = Trainer(
                *prepared, options, seed, observers, should_stop, save, team.run, backend
            )
            try:
                tuned = trainer.train({"seed": seed, "blas_threads": threads}, resume)
            except RunInterrupted as stopped:
                stopped.signum = request.signum or stopped.signum
                raise
        if request():  # in the last minibatch
            raise RunInterrupted(
                "fine-tuning was stopped at its end", stack=tuned, signum=request.signum or 2
            )
    return tuned


def _shared_out(options: _Options, stack: Stack) -> tuple[_Options, int]:
    """Return the options with all that they left open, and the BLAS threads of each replica."""
    replicas, shards = options.replicas, options.shards
    backend = resolved_tuning(options.backend, options)
    if backend != "numpy":
        replicas = 1
    if replicas is None:
        threads = resolve_threads(options.blas_threads)
        work = options.batch_size * sum(layer.weight.size for layer in stack.layers)
        if options.optimizer not in STEPPING or work < WORTH_SHARING:
            replicas = 1
        else:
            replicas, threads = min(threads, shards or threads), 1
    else:
        threads = options.blas_threads or 1
    shards = shards or replicas
    return (
        msgspec.structs.replace(options, replicas=replicas, shards=shards, backend=backend),
        threads,
    )


def _objective(y: ArrayLike | None) -> str:
    """Return what the targets ask for."""
    if y is None:
        return "reconstruction"
    kind = np.asarray(y).dtype.kind
    return "regression" if kind == "f" else "classification"


def _check_targets(
    objective: str, y: ArrayLike | None, validation: ArrayLike | None, validation_y: Any
) -> None:
    if objective == "none":
        raise SettingsError("objective: got none, expected something to fine-tune for")
    if objective == "reconstruction":
        if y is not None:
            raise SettingsError("objective: got reconstruction with targets y; leave one out")
    elif y is None:
        raise SettingsError(f"objective: got {objective} without targets, expected y")
    elif validation is not None and validation_y is None:
        raise DataError("validation_y: got nothing, expected the targets of the validation rows")


def _prepared(
    stack: Stack,
    options: _Options,
    train: tuple[ArrayLike, ArrayLike | None],
    held_out: tuple[ArrayLike, ArrayLike | None] | None,
) -> tuple[Reconstruction | Supervised, Examples, Examples | None]:
    """Return the task and its examples, checked."""
    X = stack.prepared(train[0])
    V = None if held_out is None else stack.prepared(held_out[0], "validation")
    if options.objective == "reconstruction":
        unrolled = Reconstruction(stack, loss=options.loss)
        return unrolled, Examples(X, X), None if V is None else Examples(V, V)

    classifies = options.objective == "classification"
    own = () if stack.head is None else stack.head.classes
    labels = (
        labels_of(train[1], len(X), "y", usual=own)
        if classifies
        else numbers_of(train[1], len(X), "y")
    )
    head = labels.head(stack, options.objective, options.seed)
    task = Supervised(stack, head, options.objective)
    judged = None
    if V is not None and held_out is not None:
        known = (
            labels_of(held_out[1], len(V), "validation_y", labels.classes)
            if classifies
            else numbers_of(held_out[1], len(V), "validation_y", labels.targets.shape[1])
        )
        judged = Examples(V[known.rows], known.targets) if len(known.rows) else None
    everything = len(labels.rows) == len(X)
    return task, Examples(X if everything else X[labels.rows], labels.targets), judged
