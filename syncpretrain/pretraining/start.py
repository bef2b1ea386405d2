"""Choose the driver of a run: by epochs, streamed, asynchronous, or without any pretraining."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from numpy.typing import ArrayLike

from syncpretrain import __version__
from syncpretrain.backends.choice import why_no_fused_steps, why_no_gpu
from syncpretrain.backends.host_rows import HostRows
from syncpretrain.errors import SettingsError
from syncpretrain.events import Notice, Observer, RunFinished, RunStarted
from syncpretrain.learners.first_layers import untrained_stack
from syncpretrain.models.stack import Stack
from syncpretrain.observers.errors import Observed
from syncpretrain.parallel.timeouts import TIMEOUTS, Timeouts
from syncpretrain.pretraining.build import backend_of_layers, placement_text
from syncpretrain.pretraining.build_data import build_data
from syncpretrain.pretraining.driver import Pretraining
from syncpretrain.schedule.kinds import ASYNC, UNTRAINED
from syncpretrain.schedule.reads import Reads
from syncpretrain.settings.devices import why_not_on_a_device
from syncpretrain.settings.sections import PretrainSettings
from syncpretrain.workers.restarts import Restarts

if TYPE_CHECKING:
    from syncpretrain.pretraining.asynchronous.driver import AsyncPretraining
    from syncpretrain.pretraining.streamed.driver import StreamedPretraining

__all__ = ["Driver", "Untrained", "driver_for", "placement_of", "rows_of"]


class Untrained(Observed):
    """A run without pretraining, by the interface of ``Pretraining``.

    Its layers have trained 0 epochs; there is nothing to save before fine-tuning, nor to resume.

    Parameters
    ----------
    settings, X, validation, observers, replay
        As of :class:`syncpretrain.pretraining.driver.Pretraining`.
    """

    slots = 1

    def __init__(
        self,
        settings: PretrainSettings,
        X: ArrayLike,
        validation: ArrayLike | None = None,
        *,
        observers: Iterable[Observer] = (),
        replay: Reads | None = None,
    ) -> None:
        if replay is not None:
            raise SettingsError(
                "replay: got one with schedule none, where there is nothing to read"
            )
        super().__init__(observers)
        self.save: Callable[..., None] | None = None
        self.resume: Any = None
        self.settings, data, self.scaling = build_data(settings, X, validation)
        self._examples = len(data.train)

    def run(self) -> Stack:
        """Return the stack."""
        s, now = self.settings, time.monotonic()
        depth = len(s.epochs)
        self.emit(
            RunStarted(
                now,
                s.layers,
                (0,) * depth,
                s.schedule,
                s.pace,
                s.runtime,
                self.slots,
                self._examples,
                ((),) * depth,
            )
        )
        stack = self.stack()
        now = time.monotonic()
        self.emit(RunFinished(now, 0.0, (0.0,) * depth))
        return stack

    def stack(self) -> Stack:
        """Return the stack of random weights; the same seed gives the same."""
        s = self.settings
        stack = untrained_stack(
            s.shapes, s.hidden_units, s.visible_units, seed=s.seed, scaling=self.scaling
        )
        stack.info.update(
            {
                "syncpretrain": __version__,
                "epochs": [0] * len(s.epochs),
                "pretrain": msgspec.json.decode(msgspec.json.encode(s)),
            }
        )
        return stack


Driver: TypeAlias = "Pretraining | StreamedPretraining | AsyncPretraining | Untrained"


def driver_for(
    settings: PretrainSettings,
    X: ArrayLike,
    validation: ArrayLike | None = None,
    *,
    observers: Iterable[Observer] = (),
    replay: Reads | None = None,
    times: Timeouts = TIMEOUTS,
    restarts: Restarts | None = None,
) -> Driver:
    """Return the driver of a run, everything checked; see ``pretrain`` for the parameters.

    ``restarts`` are for processes of layers that die.

    Raises
    ------
    SettingsError, DataError
        If the run is not possible.
    """
    driver = _driver(settings, X, validation, tuple(observers), replay, times, restarts)
    own = driver.settings
    idle = why_no_gpu(settings.backend, why_not_on_a_device(own))
    slow = why_no_fused_steps(own.backend, own.precision) if own.model == "rbm" else None
    missing = "missing values (NaN) are left out of gradients and errors" if own.missing else None
    for message in filter(None, (idle, slow, missing, _far_data(driver), placement_of(driver))):
        for observer in driver.observers:
            observer(Notice(time.monotonic(), message))
    return driver


def placement_of(driver: Driver) -> str | None:
    """Return which layers are on which of several GPUs in words, or None."""
    own = driver.settings
    if own.schedule in (ASYNC, UNTRAINED):
        return None
    return placement_text(backend_of_layers(own), len(own.layers) - 1)


def rows_of(driver: Driver) -> Any:
    """Return the rows on which layer 1 trains, as the driver holds them; None where it does not."""
    inputs = getattr(driver, "inputs", None)
    return None if inputs is None else inputs.train


def _far_data(driver: Driver) -> str | None:
    """Return a notice of data that a GPU has no room for, or None."""
    rows = rows_of(driver)
    if not isinstance(rows, HostRows) or rows.is_stored:  # a file's are read as they are needed
        return None
    return "the GPU has no room for the data: they stay on the host, and are copied block by block"


def _driver(
    settings: PretrainSettings,
    X: ArrayLike,
    validation: ArrayLike | None,
    observers: tuple[Observer, ...],
    replay: Reads | None,
    times: Timeouts,
    restarts: Restarts | None,
) -> Driver:
    own: dict[str, Any] = {"observers": observers, "times": times, "restarts": restarts}
    if settings.schedule == UNTRAINED:
        return Untrained(settings, X, validation, observers=observers, replay=replay)
    if settings.schedule == ASYNC and replay is None:
        from syncpretrain.pretraining.asynchronous.driver import AsyncPretraining

        return AsyncPretraining(settings, X, validation, observers=observers, times=times)
    if settings.schedule == ASYNC:
        raise SettingsError(
            "replay: got one with schedule async, expected none; its layers read no versions"
        )
    if settings.handoff == "epoch":
        return Pretraining(settings, X, validation, replay=replay, **own)
    if replay is not None:
        raise SettingsError(
            "replay: got one with handoff minibatch, expected none; a streamed run depends on its"
            " seed alone"
        )
    from syncpretrain.pretraining.streamed.driver import StreamedPretraining

    return StreamedPretraining(settings, X, validation, **own)
