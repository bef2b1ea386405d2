"""Timings measured of a stack on a machine: all that a plan needs to know of both.

Timings are kept in the user's cache folder, by a hash of all that they depend on, so that a second
run of the same stack need not measure again.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np

from syncpretrain import __version__
from syncpretrain.data.fetch import cache_folder
from syncpretrain.errors import DataError
from syncpretrain.parallel.blas import loaded_libraries, usable_cores
from syncpretrain.settings import PretrainSettings
from syncpretrain.storage import write_atomically

CORE, GPU = "core", "GPU"
PIECES = "pieces"  # a cut of a step that changes no bits


@dataclass(frozen=True, slots=True)
class LayerTimings:
    """Seconds of one layer's pieces of work.

    Attributes
    ----------
    step : float
        A minibatch, by one worker, with all other cores at rest.
    sharded : mapping of (str, int) to mapping of int to float
        A minibatch cut by "examples", "units" or "filters" into shards, or into "pieces", by the
        number of workers.
    contention : float
        Factor by which ``step`` grows when all workers are busy with other layers.
    products : float
        Only the matrix products of ``step``.
    transform : mapping of int to float
        A row of this layer's input made by the layer below, by the number of workers; empty for
        layer 1, which reads the data.
    validation : float
        Seconds at the end of an epoch: the copy that is published, and the validation error.
    blas_step, blas_transform, blas_validation : float or None
        The same by one worker with all cores for BLAS; None if BLAS has one core.
    parts : mapping of int to float
        ``step`` on fewer rows, by their number, as far as that was asked for.
    """

    step: float
    products: float
    sharded: Mapping[tuple[str, int], Mapping[int, float]]
    transform: Mapping[int, float]
    validation: float
    contention: float = 1.0
    blas_step: float | None = None
    blas_transform: float | None = None
    blas_validation: float | None = None
    parts: Mapping[int, float] = field(default_factory=dict)

    def milliseconds(self) -> dict[str, object]:
        """Return the timings of a minibatch in milliseconds."""
        sharded = {
            f"{split}, {shards} shards, {workers} workers": 1e3 * seconds
            for (split, shards), by_size in self.sharded.items()
            for workers, seconds in by_size.items()
        }
        return {
            "step_ms": 1e3 * self.step,
            "contention": self.contention,
            "products_ms": 1e3 * self.products,
            "blas_step_ms": None if self.blas_step is None else 1e3 * self.blas_step,
            "sharded_ms": sharded,
        }


@dataclass(frozen=True, slots=True)
class Exchange:
    """Seconds of a replica's exchange of one layer's parameters with the server.

    ``fetch`` and ``push`` are seconds of the server, ``local`` seconds of the replica besides its
    steps.
    """

    fetch: float = 0.0
    push: float = 0.0
    local: float = 0.0

    def server(self, period: int) -> float:
        """Return the seconds of the server in a task, if one of ``period`` tasks fetches."""
        return self.fetch / period + self.push


@dataclass(frozen=True, slots=True)
class Timings:
    """The layers' timings, from the lowest up.

    ``seconds`` is what measuring took, ``handover`` what a minibatch of a layer in a stream takes
    beside its step, ``exchanges`` what each layer's replicas do beside theirs. ``notes`` say what
    was measured in part only, in sentences. ``unit`` is what a worker is: a core, or a GPU.
    ``kept`` is the date of an earlier run that measured them, and their file.
    """

    layers: tuple[LayerTimings, ...]
    workers: int
    blas_threads: int
    seconds: float = 0.0
    handover: float = 0.0
    exchanges: tuple[Exchange, ...] = ()
    notes: tuple[str, ...] = ()
    unit: str = CORE
    kept: str = ""


def no_faster_than_linear(seconds: Mapping[int, float]) -> dict[int, float]:
    """Return seconds by the number of workers, none below the share of one worker's.

    Smaller values were measured when the machine was faster for a moment: tiny steps take several
    times as long at one moment as at another.
    """
    return {workers: max(own, seconds[1] / workers) for workers, own in sorted(seconds.items())}


def sizes(most: int) -> list[int]:
    """Return the numbers of workers worth a try inside one layer: 2, 4, 8 and so on, and all."""
    return sorted({2**i for i in range(1, most.bit_length()) if 2**i < most} | {most} - {1})


def place_of_timings(settings: PretrainSettings, *numbers: int | None) -> Path | None:
    """Return where the timings of a stack are kept; None if no cache folder is known.

    ``numbers`` are the rows and the workers that they were asked for.
    """
    # A home folder may be shared by machines, so the machine's name counts. BLAS tells the kernels
    # that it takes on this CPU. Libraries are found in another order each time.
    names = "prefix", "version", "architecture"
    blas = sorted({str([each.get(name) for name in names]) for each in loaded_libraries().info()})
    machine = platform.node(), usable_cores(), __version__, np.__version__, blas
    own = {k: v for k, v in msgspec.to_builtins(settings).items() if k not in ("epochs", "seed")}
    key = sha256(msgspec.json.encode((machine, own, numbers), order="sorted")).hexdigest()
    with suppress(DataError):
        return cache_folder() / "timings" / key[:32]
    return None


def remembered(place: Path | None, measure: Callable[[], Timings]) -> Timings:
    """Return the timings that are kept somewhere; without any there, measure and keep them."""
    if place is None:
        return measure()
    with suppress(OSError, msgspec.MsgspecError):  # they are measured anew
        return msgspec.msgpack.decode(place.read_bytes(), type=Timings)
    timings = measure()
    with suppress(OSError):  # a later run measures anew
        place.parent.mkdir(parents=True, exist_ok=True)
        kept = replace(timings, kept=f"{date.today().isoformat()}, in {place}")
        write_atomically(place, msgspec.msgpack.encode(kept))
    return timings
