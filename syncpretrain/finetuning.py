"""Fine-tune a stack by backpropagation through the unrolled autoencoder.

The stack is unrolled into encoder and decoder (Hinton and Salakhutdinov 2006): layers 1..K up,
then K..1 down with weights of their own, which start as the transposed ones of a tied layer.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncpretrain.data.examples import check_examples, evenly_spaced
from syncpretrain.data.order import minibatches, steps_per_epoch
from syncpretrain.errors import DataError, DivergedError, RunInterrupted, SettingsError
from syncpretrain.events import Event, FinetuneEpochFinished, FinetuneStarted, Observer, Progress
from syncpretrain.kernels.backprop import Pair
from syncpretrain.learners.unrolled import UnrolledAutoencoder
from syncpretrain.runtime.blas import blas_limit
from syncpretrain.runtime.blas import blas_threads as resolve_threads
from syncpretrain.runtime.signals import stop_on_signals
from syncpretrain.settings import FinetuneSettings, checked
from syncpretrain.stack import Layer, Stack

__all__ = ["finetune"]

Array = NDArray[np.float32]
LEARNING_RATES = {"adam": 0.001, "sgd": 0.1}
VALIDATION_ROWS = 1000
PROGRESS_SECONDS = 0.2
EXPLODED = 2.0  # times the error before the first update


class _Options(FinetuneSettings, frozen=True, kw_only=True):
    """The settings of one call, checked together."""

    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    blas_threads: Annotated[int, msgspec.Meta(ge=1)] | None = None

    @property
    def rate(self) -> float:
        """The learning rate, the optimizer's usual one unless it was given."""
        return self.learning_rate or LEARNING_RATES[self.optimizer]


def finetune(
    stack: Stack,
    X: ArrayLike,
    *,
    validation: ArrayLike | None = None,
    epochs: int = 10,
    optimizer: str = "adam",
    learning_rate: float | None = None,
    batch_size: int = 100,
    seed: int = 0,
    blas_threads: int | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] | None = None,
) -> Stack:
    """Return a new stack that reconstructs X better; the one given stays as it is.

    Minimizes the squared error between an example and its reconstruction, summed over its units
    and averaged over the minibatch (Hinton and Salakhutdinov 2006; Santara et al. 2016, 3). The
    same seed and the same number of BLAS threads give the same bits.

    Parameters
    ----------
    stack : Stack
        Pretrained layers.
    X : array-like of shape (n_examples, input units)
        Values in [0, 1].
    validation : array-like of shape (n_validation, input units), optional
        After each epoch the error is measured on it, on 1,000 evenly spaced rows if it has more.
    epochs : int
        Passes over X.
    optimizer : str
        "adam" (Kingma and Ba 2015) or "sgd".
    learning_rate : float, optional
        Default 0.001 for adam, 0.1 for sgd.
    batch_size : int
        Examples in a minibatch; the last one of an epoch may be smaller.
    seed : int
        Sets the order of the minibatches.
    blas_threads : int, optional
        Default all usable cores.
    observers : sequence of callable
        Each is called with ``FinetuneStarted``, ``Progress`` (of layer 0, the whole stack) and
        ``FinetuneEpochFinished`` events, in this thread. The training error is the running one of
        the epoch's minibatches.
    stop : callable, optional
        Asked before each minibatch whether to stop.

    Returns
    -------
    Stack
        With ``decoder_weight`` in every layer, and a record of this call at the end of the list
        ``info["finetune"]``.

    Raises
    ------
    SettingsError
        If a setting is out of its range, or the minibatch is larger than X.
    DataError
        If X or ``validation`` cannot be trained on, or their width is not the stack's.
    DivergedError
        If training leaves the finite numbers, or ends an epoch far worse than it began and worse
        than a constant guess. Its ``stack`` is that of the last good epoch.
    RunInterrupted
        On Ctrl-C or SIGTERM, or if ``stop`` said so. Its ``stack`` is that after the last
        whole minibatch.
    """
    given = {
        "objective": "reconstruction",
        "epochs": epochs,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "seed": seed,
        "blas_threads": blas_threads,
    }
    options = checked(given, _Options)
    examples = _checked_examples(X, "X", stack)
    held_out = None if validation is None else _checked_examples(validation, "validation", stack)
    if options.batch_size > len(examples):
        raise SettingsError(
            f"batch_size: got {options.batch_size}, expected at most {len(examples)}, the examples"
            " in X"
        )
    threads = resolve_threads(options.blas_threads)
    with blas_limit(threads), stop_on_signals() as request:

        def should_stop() -> bool:
            return request() or (stop is not None and stop())

        run = _Run(stack, examples, held_out, options, threads, observers, should_stop)
        try:
            tuned = run.train()
            if request():  # in the last minibatch
                raise RunInterrupted("fine-tuning was stopped at its end", stack=tuned)
        except RunInterrupted as stopped:
            stopped.signum = request.signum or stopped.signum
            raise
        return tuned


class _Run:
    """One call of :func:`finetune`, its arguments checked."""

    def __init__(
        self,
        stack: Stack,
        X: Array,
        validation: Array | None,
        options: _Options,
        threads: int,
        observers: Sequence[Observer],
        stop: Callable[[], bool],
    ) -> None:
        self.stack, self.X, self.options, self.threads = stack, X, options, threads
        self.observers, self.stop = observers, stop
        self.validation = None if validation is None else evenly_spaced(validation, VALIDATION_ROWS)
        self.network = UnrolledAutoencoder(
            _unrolled(stack),
            batch_size=options.batch_size,
            optimizer=options.optimizer,
            learning_rate=options.rate,
        )
        self.batch = np.empty((options.batch_size, X.shape[1]), dtype=np.float32)
        self.good = np.empty_like(self.network.parameters)  # at the end of the last good epoch
        self.first_error = math.nan  # of the first minibatch, before any update

    def train(self) -> Stack:
        epochs = self.options.epochs
        self.emit(
            FinetuneStarted(time.monotonic(), "reconstruction", self.options.optimizer, epochs)
        )
        for epoch in range(1, epochs + 1):
            started = time.monotonic()
            train_error = self.train_epoch(epoch)
            self.check_epoch(epoch, train_error)
            np.copyto(self.good, self.network.parameters)
            held_out = None if self.validation is None else self.network.error(self.validation)
            now = time.monotonic()
            self.emit(
                FinetuneEpochFinished(now, epoch, epochs, now - started, train_error, held_out)
            )
        return self.result(epochs=epochs)

    def train_epoch(self, epoch: int) -> float:
        """Train on every minibatch once; return their mean error, each before its update."""
        total, reported, options = 0.0, time.monotonic(), self.options
        steps = steps_per_epoch(len(self.X), options.batch_size)
        order = minibatches(
            len(self.X), options.batch_size, seed=options.seed, layer=0, epoch=epoch
        )
        for step, rows in enumerate(order):
            if self.stop():
                raise self.interrupted(epoch, step)
            # mode="raise" would gather into a buffer of its own first
            x = np.take(self.X, rows, axis=0, out=self.batch[: len(rows)], mode="clip")
            error = self.network.gradient(x)
            if not math.isfinite(error):
                raise self.diverged(epoch, f"the error of minibatch {step + 1} is {error}")
            if not self.network.steps:
                self.first_error = error / len(rows)
            self.network.update()
            total += error
            if time.monotonic() - reported >= PROGRESS_SECONDS:
                reported = time.monotonic()
                self.emit(Progress(reported, 0, epoch, (step + 1) / steps))
        return total / len(self.X)

    def check_epoch(self, epoch: int, error: float) -> None:
        """Refuse parameters that are not finite, and an explosion.

        Sigmoid units hide an explosion: they saturate, and nothing ever becomes infinite.
        """
        smallest, largest = self.network.parameters.min(), self.network.parameters.max()
        if not (math.isfinite(smallest) and math.isfinite(largest)):
            raise self.diverged(epoch, "parameters are no longer finite")
        if error > EXPLODED * self.first_error and error > _constant_guess(self.X):
            raise self.diverged(
                epoch, f"the training error rose from {self.first_error:.4g} to {error:.4g}"
            )

    def diverged(self, epoch: int, cause: str) -> DivergedError:
        stack = self.stack
        if epoch > 1:
            np.copyto(self.network.parameters, self.good)
            stack = self.result(epochs=epoch - 1)
        return DivergedError(
            f"fine-tuning diverged in epoch {epoch}: {cause}; try a learning rate below"
            f" {self.options.rate:g}, and inputs scaled to [0, 1]",
            stack=stack,
        )

    def interrupted(self, epoch: int, step: int) -> RunInterrupted:
        return RunInterrupted(
            f"fine-tuning was stopped in epoch {epoch} of {self.options.epochs}, after"
            f" {step} of its minibatches",
            stack=self.result(epochs=epoch - 1, minibatches_since=step),
        )

    def result(self, **done: int) -> Stack:
        """Return the parameters as a stack of their own; ``done`` says what they went through."""
        options, info = self.options, copy.deepcopy(self.stack.info)
        record: dict[str, Any] = {
            "objective": "reconstruction",
            "optimizer": options.optimizer,
            "learning_rate": options.rate,
            "batch_size": options.batch_size,
            "seed": options.seed,
            "blas_threads": self.threads,
            "examples": len(self.X),
            **done,
        }
        info["finetune"] = [*info.get("finetune", []), record]
        return Stack(_rolled_up(self.network.chain), info)

    def emit(self, event: Event) -> None:
        for observer in self.observers:
            observer(event)


def _unrolled(stack: Stack) -> list[Pair]:
    up = [(layer.weight, layer.hidden_bias) for layer in stack.layers]
    return up + [(layer.decoding, layer.visible_bias) for layer in reversed(stack.layers)]


def _rolled_up(chain: Sequence[Pair]) -> tuple[Layer, ...]:
    depth = len(chain) // 2
    halves = zip(chain[:depth], reversed(chain[depth:]), strict=True)
    return tuple(
        Layer(weight.copy(), hidden_bias.copy(), visible_bias.copy(), decoder_weight.copy())
        for (weight, hidden_bias), (decoder_weight, visible_bias) in halves
    )


def _constant_guess(X: Array) -> float:
    """Return the squared error of guessing the mean of X for every example."""
    mean = X.mean(axis=0, dtype=np.float64)
    total = sum(float(np.square(x - mean).sum()) for x in np.array_split(X, len(X) // 1000 + 1))
    return total / len(X)


def _checked_examples(X: ArrayLike, name: str, stack: Stack) -> Array:
    array = check_examples(X, name)
    if array.shape[1] != stack.widths[0]:
        raise DataError(
            f"{name}: got {array.shape[1]} columns, expected {stack.widths[0]}, the input units of"
            " the stack"
        )
    return array
