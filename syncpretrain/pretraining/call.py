"""``pretrain``: the library's first function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from numpy.typing import ArrayLike

from syncpretrain.data.minibatches import Minibatches
from syncpretrain.errors import SettingsError
from syncpretrain.events import Observer
from syncpretrain.models.stack import Stack
from syncpretrain.pretraining.schedule.reads import Reads
from syncpretrain.pretraining.start import driver_for
from syncpretrain.settings import settings_from

__all__ = ["pretrain"]


def pretrain(
    X: ArrayLike | Minibatches | Iterable[ArrayLike] | Callable[[int], Any],
    *,
    layers: str | Sequence[Any],
    validation: ArrayLike | None = None,
    observers: Iterable[Observer] = (),
    replay: Reads | None = None,
    **settings: Any,
) -> Stack:
    """Pretrain a stack of RBMs or autoencoders, the layers in parallel (Santara et al. 2016).

    Parameters
    ----------
    X : array-like of shape (n_examples, layers[0]), or iterable of such arrays
        Values in [0, 1], or bytes, which are divided by 255; for Gaussian visible units any
        finite values, which are standardized. With ``handoff="minibatch"``, what ``numpy.load``
        maps with ``mmap_mode="r"`` is read a minibatch at a time, and X may be
        :class:`~syncpretrain.Minibatches`, or an iterable of arrays that stands for them.
    layers : sequence of int, or str
        Units of the input and of each layer, such as [784, 1000, 500, 250, 30]; with convolutions
        a text such as "1x28x28,conv:20x5,pool:2,500", or a sequence of :class:`ImageShape`,
        :class:`Conv`, :class:`Pool` and units.
    validation : array-like of shape (n_held_out, layers[0]), optional
        Held-out examples; each layer's error on them is reported after every epoch.
    observers : iterable of callable
        Called with each event of :mod:`syncpretrain.events`, in this thread.
    replay : tuple of tuple of int, optional
        For each layer, the upstream version of each of its epochs, as a run recorded them.
    **settings
        Fields of :class:`syncpretrain.settings.PretrainSettings`, such as ``schedule``, ``epochs``,
        ``workers``, ``learning_rate`` and ``seed``. One value stands for all layers.

    Returns
    -------
    Stack

    Raises
    ------
    SettingsError, DataError
        For a wrong argument, before any worker starts.
    DivergedError, WorkerError, StalledError
        If a layer fails; ``stack`` of the error holds every layer's last finite state.
    RunInterrupted
        On Ctrl-C or SIGTERM, after the running minibatch; ``stack`` holds what was learned.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.eye(8, dtype=np.float32).repeat(4, axis=0)
    >>> pretrain(X, layers=[8, 4, 2], epochs=2, batch_size=8).widths
    (8, 4, 2)
    """
    if others := settings.keys() & {"data", "finetune"}:
        raise SettingsError(f"{min(others)}: is no setting of pretrain(); see finetune() for that")
    wanted = settings_from(layers, **settings).pretrain
    rows = cast("ArrayLike", X)  # or what gives them, which the driver looks at
    return driver_for(wanted, rows, validation, observers=observers, replay=replay).run()
