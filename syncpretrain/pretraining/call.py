"""``pretrain``: the library's first function, and the checkpoint from which a call goes on."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from syncpretrain.data.blocks import chunks
from syncpretrain.data.columns import Columns
from syncpretrain.data.examples import as_examples, check_values, evenly_spaced
from syncpretrain.data.facts import Look, look_at, units_of_array
from syncpretrain.data.file_rows import FileRows, rows_in_file
from syncpretrain.data.frames import check_bernoulli, encoded, is_frame
from syncpretrain.data.meaning import ALL_ONES, Meaning, check_precision
from syncpretrain.data.minibatches import Minibatches, is_iterable_of_arrays
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import (
    CheckpointError,
    PoorResultWarning,
    RunInterrupted,
    SettingsError,
    WorkerError,
)
from syncpretrain.events import Observer, all_observers
from syncpretrain.models.diagnosis import baselines, on_layers
from syncpretrain.models.inputs import constant_columns
from syncpretrain.models.stack import Stack
from syncpretrain.observers import observing
from syncpretrain.observers.history import ErrorHistory
from syncpretrain.pretraining.build_data import settled
from syncpretrain.pretraining.driver import driver_for, rows_of
from syncpretrain.pretraining.training import Driver
from syncpretrain.schedule.kinds import Reads
from syncpretrain.settings import ELSEWHERE, PretrainSettings
from syncpretrain.settings.by_data import in_words
from syncpretrain.settings.checks import check_blas_threads
from syncpretrain.settings.convert import check_names
from syncpretrain.settings.fields import names_of
from syncpretrain.units.kinds import kind_of, visible_kind
from syncpretrain.workers.state import State, state_file_of

AUTO_UNITS = "auto"  # by columns
JUDGED_ROWS = 1000  # for the verdict
ARGUMENTS = ("hidden", "validation", "verbose", "warn", "observers", "replay", "resume", "weights")


def pretrain(
    X: ArrayLike | Minibatches | Iterable[ArrayLike] | Callable[[int], Any],
    *,
    layers: str | Sequence[Any] | None = None,
    hidden: int | Sequence[int] | None = None,
    validation: ArrayLike | None = None,
    verbose: bool = False,
    warn: bool = True,
    observers: Iterable[Observer] = (),
    replay: Reads | None = None,
    resume: str | PathLike[str] | None = None,
    weights: ArrayLike | None = None,
    **settings: Any,
) -> Stack:
    """Pretrain a stack of RBMs or autoencoders, the layers in parallel (Santara et al. 2016).

    Parameters
    ----------
    X : array-like of shape (n_examples, width), data frame, or iterable of such arrays
        Values in [0, 1], or bytes, which are divided by 255 unless all are 0 or 1; other values
        make the visible units Gaussian, for which each column is standardized. With
        ``handoff="minibatch"``, what ``numpy.load`` maps with ``mmap_mode="r"`` is read a minibatch
        at a time, and X may be :class:`~syncpretrain.Minibatches`, or an iterable of arrays that
        stands for them.
    layers : sequence of int, or str
        Units of the input and of each layer, such as [784, 1000, 500, 250, 30]; with convolutions
        a text such as "1x28x28,conv:20x5,pool:2,500", or a sequence of :class:`ImageShape`,
        :class:`Conv`, :class:`Pool` and units.
    hidden : int, or sequence of int
        Units of each layer without the input's, such as [1000, 500, 250, 30]; instead of
        ``layers``.
    validation : array-like of shape (n_held_out, width), optional
        Held-out examples; each layer's error on them is reported after every epoch.
    verbose : bool
        Print the progress on standard error, as the command line does.
    warn : bool
        Warn of a poor result, where the stack is not fine-tuned next.
    observers : iterable of callable
        Called with each event of :mod:`syncpretrain.events`, in this thread.
    replay : tuple of tuple of int, optional
        For each layer, the upstream version of each of its epochs, as a run recorded them.
    resume : path, optional
        A folder for a checkpoint, written every minute and at a stop. If it holds one, the same
        call goes on from there, to the bits of a call that was not stopped.
    weights : array-like of shape (n_examples,), optional
        Weight of each row of X in the gradient, 0 or more. Weights are divided by their mean once;
        a minibatch is still divided by its number of rows, so that an epoch counts a row of weight
        2 as two rows, and chains count by the mean weight of the minibatch. For dense RBMs with
        ``handoff="epoch"``, in all runtimes on the CPU; with ``persistent`` it needs ``chains``,
        and no count units or missing values. Errors and the standardization of columns count rows
        alike.
    **settings
        One value stands for all layers. Without a value, the first three follow from the data
        (see the page "Choosing settings"). These matter most:

        * ``epochs``: passes of each layer over its input;
        * ``batch_size``: examples in a minibatch;
        * ``visible_units``: "bernoulli" for values in [0, 1], "gaussian" for others, "auto" for
          what suits each column: a data frame's columns of text become categories;
        * ``learning_rate``: 0.1, and lower with units that have no limits;
        * ``model``: "rbm", "autoencoder", "denoising" or "contractive";
        * ``hidden_units``: "bernoulli", or "gaussian", "relu" and, of autoencoders, "tanh";
        * ``weight_decay``: 0.0002;
        * ``early_stopping``: what ends a layer's epochs before it overfits;
        * ``workers``: threads of all layers; default the usable cores;
        * ``seed``: of everything that is drawn.

        The other fields of :class:`syncpretrain.settings.PretrainSettings` may be given, too.

    Returns
    -------
    Stack
        Its ``history`` has the errors of each layer and epoch, its ``info`` the settings.

    Warns
    -----
    PoorResultWarning
        If the result is no better than the mean of the data, or most units of a layer are
        constant.

    Raises
    ------
    SettingsError, DataError, CheckpointError
        For a wrong argument, before any worker starts.
    DivergedError, WorkerError, StalledError
        If a layer fails; ``stack`` of the error holds every layer's last finite state.
    RunInterrupted
        On Ctrl-C, SIGTERM or SIGHUP, after the running minibatch; ``stack`` holds what was learned.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.eye(8, dtype=np.float32).repeat(4, axis=0)
    >>> pretrain(X, hidden=[4, 2], epochs=50).widths
    (8, 4, 2)
    """

    def work() -> Stack:
        _check_given(settings)
        taken = rows_by_columns(X, validation, settings.get("visible_units"))
        look = look_at(taken.X, streams=settings.get("handoff") == "minibatch")
        given = settings | {"visible_units": taken.units}
        wanted, chosen = settled(_layers(layers, hidden, look), look, given)
        check_blas_threads(wanted.schedule, wanted.blas_threads)
        with observing(verbose) as printing:
            watching = all_observers(observers, *printing)
            rows, held_out, meaning = _prepared(look, taken.validation, wanted.visible_units)
            own: Any = {"observers": watching, "replay": replay, "weights": weights}
            driver = driver_for(wanted, rows, held_out, **own)
            saved = None
            if resume is not None:
                more = {"weights": driver.weights, "validation": held_out}
                saved = SavedCall(resume, driver.settings, look.X, **more)
                driver.save, driver.resume = saved.save, saved.newest()
            for message in _notices(driver, taken.columns, look, chosen):
                driver.notify(message)
            # An iterable knows the meaning of the first array that it gave.
            meaning = meaning or getattr(rows_of(driver), "meaning", None)
            stack = _trained(driver, taken.columns, meaning)
        if saved is not None:
            saved.delete()
        sample = () if look.facts is None else _sample(rows)
        return _judged(stack, sample, driver.history, chosen, warn=warn)

    if settings.get("runtime") != "mpi":
        return work()
    from syncpretrain.pretraining.on_ranks import on_every_rank

    return on_every_rank(work)


def _notices(
    driver: Driver, columns: Columns | None, look: Look, chosen: dict[str, Any]
) -> Iterator[str]:
    """Yield what follows from the data, and what is odd about them."""
    if look.facts is not None and chosen:
        yield in_words(look.facts, chosen)
    if constant := constant_columns(driver.scaling, columns):
        yield str(constant)
    # An iterable began with bytes of 0 and 1, which a stream divides.
    if getattr(rows_of(driver), "are_all_ones", False):
        yield ALL_ONES.format("X, its first array")


def _judged(
    stack: Stack, sample: Any, history: ErrorHistory, chosen: dict[str, Any], *, warn: bool
) -> Stack:
    """Return a stack with its history and a verdict, after a warning of a poor result."""
    trained = history.layers if any(stack.info["epochs"]) else ()  # random weights were asked for
    sentences = on_layers(baselines(stack.for_prepared_rows(), sample), trained)
    for sentence in sentences if warn else ():
        warnings.warn(sentence, PoorResultWarning, stacklevel=4)
    info: dict[str, Any] = {"by_data": chosen} if chosen else {}
    info |= {"verdict": sentences} if sentences else {}
    return replace(stack, info=stack.info | info, history=history)


def _check_given(settings: dict[str, Any]) -> None:
    """Refuse settings that a call has not."""
    if others := settings.keys() & {"data", "finetune"}:
        raise SettingsError(f"{min(others)}: is no setting of pretrain(); see finetune() for that")
    check_names(settings, (*names_of(PretrainSettings), *ARGUMENTS, "columns", "run"))
    if settings.get("marks"):
        raise SettingsError(
            f"marks: got {settings['marks']}, expected 0: only a run has a folder for models by"
            " updates; take syncpretrain train with --checkpoint-every log:50"
        )


def _trained(driver: Driver, columns: Columns | None, meaning: Meaning | None) -> Stack:
    """Return the driver's stack with the columns that it was trained on, and their meaning.

    Or raise the driver's error, with such a stack.
    """

    def marked(stack: Stack) -> Stack:
        kept = {"columns": columns, "meaning": meaning}
        found = {name: msgspec.to_builtins(x) for name, x in kept.items() if x is not None}
        return replace(stack, info=stack.info | found)

    try:
        return marked(driver.run())
    except (WorkerError, RunInterrupted) as error:
        error.stack = None if error.stack is None else marked(error.stack)
        raise


def _layers(layers: Any, hidden: Any, look: Look) -> Any:
    """Return the widths, the input's included."""
    if (layers is None) == (hidden is None):
        got = "nothing" if layers is None else "layers and hidden"
        raise SettingsError(
            f"layers: got {got}, expected one of the two: layers=[784, 500, 30] with the input's"
            " width, or hidden=[500, 30] without"
        )
    if hidden is None:
        return layers
    if look.facts is None:
        raise SettingsError(
            "hidden: got it with an iterable, whose width is not known, expected layers=, the"
            " input's width first"
        )
    units = [hidden] if isinstance(hidden, (int, np.integer)) else hidden
    if isinstance(units, str) or not all(isinstance(n, (int, np.integer)) for n in units):
        raise SettingsError(
            f"hidden: got {hidden!r}, expected whole numbers, such as [500, 30]; convolutions need"
            " layers="
        )
    return [look.facts.columns, *map(int, units)]


def _prepared(look: Look, validation: Any, units: str) -> tuple[Any, Any, Meaning | None]:
    """Return examples to train on and to validate with, and the meaning of their numbers.

    An iterable of arrays is returned as it is, without a meaning.
    """
    meaning = _meaning_of(look, units)
    if meaning is None:
        return look.X, validation, None
    held_out = None if validation is None else meaning.prepare(validation, "validation")
    return meaning.prepare(look.X), held_out, meaning


def _meaning_of(look: Look, units: str) -> Meaning | None:
    """Return what numbers of the examples mean to visible units; None where nothing was read."""
    kind, meaning = kind_of(units), look.meaning
    if meaning is None:
        rows = look.X if isinstance(look.X, FileRows) else rows_in_file(look.X)
        if rows is None:
            return None
        if not kind.is_unit_interval:
            check_precision(rows)
        return Meaning.of(rows, bounded=kind.is_unit_interval)
    if kind.blocks is not None:  # which takes bytes as they are
        normal = kind.normal_columns(np, len(meaning.origin))
        origin = np.where(normal, meaning.origin, 0.0)
        return Meaning("numbers", tuple(origin.tolist()))
    return Meaning(meaning.values) if kind.is_unit_interval else meaning


def _sample(X: Any) -> Any:
    """Return some of the examples, to judge the stack by."""
    return evenly_spaced(X if hasattr(X, "shape") else np.asarray(X), JUDGED_ROWS)


class Taken(NamedTuple):
    """Examples and validation examples to train on, their visible units, and their columns."""

    X: Any
    validation: Any
    units: str | None
    columns: Columns | None = None


def rows_by_columns(X: Any, validation: Any, units: str | None) -> Taken:
    """Return data frames as arrays, and for the units ``auto`` those that suit the columns.

    Raises
    ------
    DataError
        Naming the column that cannot be trained on.
    SettingsError
        For the units ``auto`` with an iterable.
    """
    if not is_frame(X):
        if units == AUTO_UNITS and is_iterable_of_arrays(X):
            raise SettingsError(
                "visible_units: got auto with an iterable, whose columns are not known beforehand,"
                " expected bernoulli or gaussian, or kinds by columns, such as gaussian:5,softmax:3"
            )
        if units == AUTO_UNITS:
            units = units_of_array(as_examples(X, "X"))
        return Taken(X, validation, units)
    rows, columns = encoded(X, "softmax" if units == AUTO_UNITS else units or "", bounded=False)
    if units == AUTO_UNITS:
        units = units_of_array(rows, columns)
    # Without units they follow from the values; others are refused with the settings.
    kind = None if units is None else visible_kind(units)
    bounded = kind is not None and kind.is_unit_interval
    check_values(rows, "X", bounded=bounded, names=columns.names, missing=True)
    if kind is not None:
        check_bernoulli(rows, str(units), columns)
    if is_frame(validation):
        validation, _ = encoded(validation, "", "validation", bounded=bounded, known=columns)
    return Taken(rows, validation, units, columns)


STATE_NAME = "pretrain.safetensors"
MOST_TELLING = "layers", "schedule", "handoff"  # others often follow from them
SAVE_SECONDS = 60.0  # between two checkpoints


class SavedCall:
    """The folder of a call that may be stopped; ``examples`` is what the call names them.

    Parameters
    ----------
    folder : path
        Is made where it is missing.
    settings : PretrainSettings
        With the values that followed from the data.
    X : Any
        The examples; for an iterable or a file only the shape is compared.
    **more : ndarray of shape (n, ...), optional
        The weights, and the validation examples, since a state has what layers made of these.

    Raises
    ------
    SettingsError
        If the folder cannot be made.
    """

    examples = "X"

    def __init__(
        self, folder: str | PathLike[str], settings: PretrainSettings, X: Any, **more: Any
    ) -> None:
        self._file = state_file_of(settings)
        if not isinstance(folder, (str, PathLike)):
            raise SettingsError(f"resume: got {folder!r}, expected the path of a folder")
        self.path = Path(folder) / STATE_NAME
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = error.strerror or error
            raise SettingsError(f"resume: got {folder}, expected a folder ({why})") from error
        plain = msgspec.json.decode(msgspec.json.encode(settings))
        own = {name: plain[name] for name in plain if name not in ELSEWHERE}
        data = _data_record(X) | {"validation": ""}
        self._header: dict[str, Any] = {"settings": own, "data": data}
        for name, rows in more.items():
            if isinstance(rows, np.ndarray) and len(rows):
                data[name] = _data_record(rows.reshape(len(rows), -1))["sha256"]
        self._saved, self._way_out = time.monotonic(), "delete the file to begin anew"

    def newest(self) -> State | None:
        """Return the state that an earlier call left behind; None without one.

        Raises
        ------
        CheckpointError
            If it is damaged, or of another call.
        """
        try:
            return self._file.read(self.path, self._check) if self.path.is_file() else None
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {self._way_out}") from error

    def save(self, state: Callable[[], State], *, done: Any, final: bool) -> None:
        """Write the state, if it is time to, or at a stop; training goes on where that fails."""
        if not final and time.monotonic() - self._saved < SAVE_SECONDS:
            return
        self._saved = time.monotonic()
        try:
            self._file.write(self.path, state(), self._header)
        except OSError as error:
            reason = error.strerror or error
            warnings.warn(f"resume: {self.path} could not be written: {reason}", stacklevel=2)

    def delete(self) -> None:
        """Delete the state of a call that is done."""
        self.path.unlink(missing_ok=True)

    def _check(self, header: dict[str, Any]) -> None:
        if (what := self._difference(header)) is not None:
            self._way_out = "give what it was begun with, or another folder"
            raise CheckpointError(f"is of another call, in which {what}")

    def _difference(self, header: dict[str, Any]) -> str | None:
        """Return the most telling difference from the call that wrote a header, if any."""
        was, now = header.get("settings", {}), self._header["settings"]
        others = (name for name in now if was.get(name) != now[name])
        differing = sorted(others, key=lambda name: (name not in MOST_TELLING, name))
        # Before validation examples were kept here, a state did not say whether it had any.
        has = self._header["data"]
        had = {"validation": has["validation"]} | header.get("data", {})
        if own := {name for name in {*had, *has} if had.get(name) != has.get(name)}:
            differing.insert(0, "validation" if own == {"validation"} else self.examples)
        return f"{differing[0]} was {was.get(differing[0], 'another')}" if differing else None


def _data_record(X: Any) -> dict[str, Any]:
    """Return a record that identifies examples: JSON values."""
    if isinstance(X, SparseRows):
        parts, digest = iter(X.csr), hashlib.sha256()
    elif isinstance(X, np.ndarray):
        parts, digest = map(X.__getitem__, chunks(X.shape)), hashlib.sha256(X.dtype.str.encode())
    else:
        return {"shape": list(getattr(X, "shape", ()))}
    for part in parts:
        digest.update(np.ascontiguousarray(part).data)
    return {"shape": list(X.shape), "sha256": digest.hexdigest()}
