"""Messages between the processes of a run: the job, an order to train, and the report after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from syncpretrain.pretraining.runtime.activations import ActivationSource
from syncpretrain.pretraining.runtime.messages import Message
from syncpretrain.pretraining.runtime.restarts.state import KeptStates
from syncpretrain.pretraining.runtime.shared_activations import SharedNumbers, SharedSplits
from syncpretrain.pretraining.runtime.shared_data import SharedSparse
from syncpretrain.schedule.epochs import Train

__all__ = ["Job", "Order", "Report"]


@dataclass(frozen=True, slots=True)
class Job:
    """Message to a process at its start.

    ``splits`` are the data's and the layers' by number, as far as this layer reads them; it writes
    those of the layer below. Of the ``numbers``, the first is 1 once the workers are to stop; then
    follow the progress of each layer's epoch and the number of its workers. ``parent`` is a process
    identifier. ``kept`` is where the layer's states are kept for the next process, if they are.
    """

    layer: int
    worker_factory: Callable[[Any], Any]  # a WorkerFactory
    splits: dict[int, SharedSplits | SharedSparse]
    numbers: SharedNumbers
    blas_threads: int
    parent: int
    kept: KeptStates | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """An epoch to train, and where its input is."""

    command: Train
    source: ActivationSource


@dataclass(frozen=True, slots=True)
class Report:
    """Message of the worker after an order.

    ``computed`` is whether the input was computed; ``trace`` is the traceback of an error.
    """

    message: Message
    computed: bool = False
    trace: str = ""
