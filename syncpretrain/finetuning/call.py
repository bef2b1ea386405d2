"""``finetune``: the library's second function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from numpy.typing import ArrayLike

from syncpretrain.data import labels
from syncpretrain.data.dataset import is_labelled
from syncpretrain.data.examples import as_examples, checked_rows
from syncpretrain.data.file_rows import rows_in_file
from syncpretrain.errors import DataError, PoorResultWarning
from syncpretrain.events import Observer, all_observers, tell
from syncpretrain.finetuning.options import TUNING_ARGUMENTS, TuningOptions, tuning_options
from syncpretrain.finetuning.prepared import Finetuning
from syncpretrain.finetuning.tasks import Form, Part
from syncpretrain.models.inputs import is_bounded
from syncpretrain.models.stack import Stack
from syncpretrain.observers import observing
from syncpretrain.settings.by_data import in_words
from syncpretrain.settings.convert import check_names
from syncpretrain.settings.fields import names_of
from syncpretrain.workers.state import FinetuneState, Saver


def finetune(
    stack: Stack,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    validation: ArrayLike | None = None,
    validation_y: ArrayLike | None = None,
    verbose: bool = False,
    warn: bool = True,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] | None = None,
    save: Saver | None = None,
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
    X : array-like of shape (n_examples, input units), or data frame
        As for pretraining: values in [0, 1], or any where the visible units are Gaussian. What
        ``numpy.load`` maps with ``mmap_mode="r"`` is read a minibatch at a time.
    y : array-like of shape (n_examples,) or (n_examples, outputs), optional
        Texts and whole numbers are classes; -1, None or NaN means no label, and a ``Notice`` tells
        the observers how many rows have none. Other numbers are a regression's, and so are more
        than 50 different whole numbers of a float type; NaN means no target. Rows without a target
        are left out. ``objective="regression"`` or ``"classification"`` overrides this choice: with
        the second, y of shape (n_examples, classes) has the probability of each class.
    weights : array-like of shape (n_examples,), optional
        Relative weight of each row in the loss; rows without a target do not count. The reported
        errors are not weighted.
    validation : array-like of shape (n_validation, input units), optional
        After each epoch the error is measured on it: on all rows where ``patience`` depends on
        it, else on 1,000 evenly spaced ones.
    validation_y : array-like, optional
        Its targets, if there is a ``y``. A class that y has not counts as wrong, and is
        reported to the observers with a ``Notice``.
    verbose : bool
        Print the progress on standard error, as the command line does.
    warn : bool
        Warn of a poor result.
    observers : sequence of callable
        Each is called with ``FinetuneStarted``, ``Progress`` (of layer 0, the whole stack) and
        ``FinetuneEpochFinished`` events, in this thread. The training error is the running one of
        the epoch's minibatches: squared and summed over units, or the share of wrong classes.
    stop : callable, optional
        Asked before each minibatch whether to stop.
    save : callable, optional
        Called after each epoch but the last, and at a stop with ``final=True``: given a function
        that returns a ``FinetuneState``, and ``done``, the number of finished epochs.
    resume : FinetuneState, optional
        State of a call with the same arguments to continue from; the result is bit-identical.
    stall_seconds : float, optional
        Seconds that a worker may wait in a minibatch for others that share it; default 600.
    **settings
        Fields of :class:`syncpretrain.settings.FinetuneSettings`, and ``seed`` (of the order of
        the minibatches, of dropout, of the head's first weights), ``blas_threads`` (default all
        usable cores) and ``backend`` (``auto``, ``numpy``, ``cupy`` or ``cupy:1``: as of
        :class:`syncpretrain.settings.PretrainSettings`, on one GPU). ``objective`` follows from y
        unless it is given, ``epochs`` and ``batch_size`` from the number of rows with a target (see
        the page "Choosing settings"). ``learning_rate`` is 0.001 for adam and 0.1 for sgd unless it
        is given. With ``runtime="mpi"`` every rank makes the same call, and gets the same stack.

    Returns
    -------
    Stack
        With ``decoder_weight`` in every layer, or with a head; and a record of this call at the
        end of the list ``info["finetune"]``. Its ``history.finetune`` has the errors of each epoch.

    Warns
    -----
    PoorResultWarning
        If the result is no better than the mean of the targets, or the most frequent class; or if
        labels may be meant otherwise: -1 as a class, or nearly as many classes as rows as numbers.

    Raises
    ------
    SettingsError
        If a setting is out of its range, the minibatch is larger than X, a package is missing,
        or the memory too small.
    DataError
        If X, y or ``validation`` cannot be trained on, or do not fit each other or the stack.
    DivergedError
        If training leaves the finite numbers, or ends an epoch far worse than it began and worse
        than a constant guess. Its ``stack`` is the stack after the last good epoch.
    StalledError
        If a worker waits too long for the others.
    RunInterrupted
        On Ctrl-C, SIGTERM or SIGHUP, or if ``stop`` said so. Its ``stack`` is the stack after the
        last whole minibatch.
    """
    check_names(settings, (*names_of(TuningOptions), *TUNING_ARGUMENTS))

    def work() -> Stack:
        tuning = _prepared(stack, Part(X, y, "y", weights), validation, validation_y, settings)
        doubts = _doubts(y) if tuning.options.objective == "classification" else []
        for doubt in doubts if warn else ():
            warnings.warn(doubt, PoorResultWarning, stacklevel=3)
        with observing(verbose) as printing:
            watching = all_observers(observers, *printing)
            for told in (*_notices(tuning), *(f"warning: {doubt}" for doubt in doubts)):
                tell(watching, told)
            tuned = tuning.run(
                stack,
                observers=watching,
                stop=stop,
                save=save,
                resume=resume,
                stall_seconds=stall_seconds,
            )
        for sentence in tuned.info.get("verdict", ()) if warn else ():
            warnings.warn(sentence, PoorResultWarning, stacklevel=3)
        return tuned

    if settings.get("runtime") != "mpi":
        return work()
    from syncpretrain.pretraining.on_ranks import on_every_rank

    return on_every_rank(work)


def _prepared(
    stack: Stack, train: Part, validation: Any, validation_y: Any, settings: dict[str, Any]
) -> Finetuning:
    """Return the fine-tuning of examples and settings as :func:`finetune` takes them."""
    objective = "reconstruction" if train.y is None else labels.objective_of(train.y)
    options = tuning_options({"objective": objective, **settings})
    held_out = None
    if validation is None and validation_y is not None:
        raise DataError("validation_y: got targets without validation, expected their rows too")
    if validation is not None:
        rows = as_examples(stack.rows_of(validation, "validation"), "validation")
        held_out = Part(rows, validation_y, "validation_y")
    train = train._replace(X=_examples(train.X, stack, options))
    given = [name for name, value in settings.items() if value is not None]
    return Finetuning(Form.of(stack), options, train, held_out, given=given)


def _notices(tuning: Finetuning) -> Iterator[str]:
    """Yield what a fine-tuning found in its data."""
    for name, count in tuning.unlabelled.items():
        yield from labels.rows_without(*count, name)
    if tuning.by_data:
        yield f"fine-tuning: {in_words(tuning.facts, tuning.by_data)}"


def _examples(X: ArrayLike, stack: Stack, options: TuningOptions) -> Any:
    """Return examples to train on; examples in a mapped file stay there."""
    X = as_examples(stack.rows_of(X, "X"), "X")
    rows = rows_in_file(X) if options.backend == "numpy" else None
    bounded = is_bounded(stack.units[0], stack.scaling)
    if rows is None or (stack.meaning and stack.meaning.prepare(X, bounded=bounded) is not X):
        return X  # which the stack prepares
    return checked_rows(rows, bounded=bounded)


def _doubts(y: ArrayLike | None) -> list[str]:
    """Return sentences about classes that may be meant as something else."""
    if labels.are_shares(y):
        return []
    classes = labels.as_classes(y, "y")
    return labels.doubts_about(classes[is_labelled(classes)], labels.minus_ones(y), "y")
