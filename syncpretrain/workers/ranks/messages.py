"""Messages between rank 0, which leads a run, and the ranks that hold its layers.

The data are sent as bytes where every value is a 255th of one: a link of 1 Gb/s takes longer for
float32 than a layer takes for half an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from syncpretrain.cluster.transport import Port
from syncpretrain.data.blocks import ByteRows, in_bytes
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.replicas.server import Push
from syncpretrain.parallel.replicas.steps import Load, ReplicaFactory, Save, Work
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.schedule.schedule import Train
from syncpretrain.settings.fields import AsyncFields
from syncpretrain.workers.ranks.parameter_windows import WindowPlaces
from syncpretrain.workers.split import Split
from syncpretrain.workers.streamed.inputs import Passes, RingSize

__all__ = [
    "CONTROL",
    "DUMP",
    "Assignment",
    "DropVersion",
    "EpochAssignment",
    "HandUp",
    "HandedUp",
    "RankOrder",
    "ReplicaAnswer",
    "ReplicaAssignment",
    "ReplicaOrder",
    "ReportSlice",
    "RunEnded",
    "RunJob",
    "RunOver",
    "SendSlice",
    "SentSplit",
    "ServerAssignment",
    "ServerRank",
    "SetSlice",
    "SliceOf",
    "StreamAssignment",
    "TakeChange",
    "port",
    "received",
    "to_send",
]


@dataclass(frozen=True, slots=True)
class SentSplit:
    """Training and validation rows on their way."""

    train: Any
    validation: Any


def to_send(data: Split) -> SentSplit:
    """Return what is sent for some data, in the fewest bytes that keep all bits."""
    return SentSplit(*(in_bytes(rows) for rows in data))


def received(data: SentSplit) -> Split:
    """Return the data that were sent."""
    return Split(
        *(
            rows.rows() if isinstance(rows, ByteRows) else rows
            for rows in (data.train, data.validation)
        )
    )


CONTROL: Port = (0, "control")  # RunJob, RunOver and RunEnded, to every rank but 0
DUMP: Port = (0, "dump")  # asks for the stacks of all threads on stderr


def port(run: int, name: str, layer: int = 0) -> Port:
    """Return a port of a run.

    To the rank of a layer: ``orders``, ``workers``, ``minibatches`` and ``activations`` from the
    layer below, ``versions`` to hand up or to drop, ``group`` from other ranks that hold the layer,
    and ``stop``. To rank 0: ``reports`` or ``answers`` of a layer, ``failures`` in blocks that were
    answered before, ``progress``, and ``left``.

    Replicas and servers of an asynchronous run have ports as layers have: a replica fetches its
    parameters from ``slices``, and sends its change for server N to ``change N``.
    """
    return run, name, layer


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a rank is to do: the number of a layer, and the ranks that share it, if several do.

    The first rank of the ``group`` answers for all.
    """

    layer: int
    group: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def worker(self) -> Any:
        """The class of the worker that takes it; None where the runtime has one for its kind."""
        return None


@dataclass(frozen=True, slots=True)
class EpochAssignment(Assignment):
    """A layer that trains on versions: its number and its ``WorkerFactory``.

    ``ranks_above`` have the layer above, if that gets activations from here.
    """

    worker_factory: Callable[..., Any]
    ranks_above: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamAssignment(Assignment):
    """A layer of a stream: its ``StreamedLayerFactory`` and rings; as of :class:`LayerPlace`.

    ``ranks_above`` have the layer above; a step has ``replicas`` threads on each rank.
    """

    layer_factory: Callable[..., Any]
    passes: Passes
    below: RingSize | None
    above: RingSize | None
    handed_up: range
    ranks_above: tuple[int, ...]
    replicas: int


@dataclass(frozen=True, slots=True)
class ReplicaAssignment(Assignment):
    """A replica of an asynchronous run: its number, what builds it, and what it trains on.

    ``size`` is the number of its parameters. The ``servers`` have them, or windows; else rank 0.
    """

    factory: ReplicaFactory
    data: tuple[Array, ...]
    size: int
    servers: tuple[ServerRank, ...] | WindowPlaces = ()


@dataclass(frozen=True, slots=True)
class ServerRank:
    """A server of a slice of the parameters, as replicas see it: its number and its rank."""

    number: int
    rank: int
    own: tuple[int, int]  # where the slice begins and ends


@dataclass(frozen=True, slots=True)
class ServerAssignment(Assignment):
    """A server of a slice of the parameters: its number, and the rank of each replica."""

    rules: AsyncFields
    replicas: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SetSlice:
    """Message to a server: its parameters, and what the compensation remembers of them."""

    parameters: Array
    mean_square: Array


@dataclass(frozen=True, slots=True)
class SendSlice:
    """Message to a server: send a replica the parameters as they are now."""

    replica: int


@dataclass(frozen=True, slots=True)
class TakeChange:
    """Message to a server: add a share of a replica's next change, or drop it if None."""

    replica: int
    share: float | None


@dataclass(frozen=True, slots=True)
class ReportSlice:
    """Message to a server: send rank 0 what it has."""


@dataclass(frozen=True, slots=True)
class SliceOf:
    """A slice of a vector, from or to a server; ``mean_square`` is with a report alone."""

    server: int
    values: Array
    mean_square: Array | None = None


@dataclass(frozen=True, slots=True)
class ReplicaOrder:
    """Message to a replica: an order, with the parameters if it fetches them."""

    order: Work | Save | Load
    fetched: Array | None


@dataclass(frozen=True, slots=True)
class ReplicaAnswer:
    """Message of a replica: its answer, or how it failed.

    If it trained, the ``change`` is here, unless servers have it, or a ``push`` to windows.
    """

    number: int
    answer: Any
    change: Array | None = None
    push: Push | None = None


@dataclass(frozen=True, slots=True)
class RunJob:
    """Message to a rank: the layers that it holds in a run, and the data if it needs them.

    The data are a ``SentSplit`` on the way.
    """

    run: int
    layers: tuple[Assignment, ...]
    data: Split | SentSplit | None
    blas_threads: int
    times: Timeouts


@dataclass(frozen=True, slots=True)
class RankOrder:
    """An epoch to train, and the chain of snapshots through which the data become its input.

    ``chain`` is None in three cases: the rank has computed that input already, the layer reads the
    data, or the rank of the layer below sends the activations (``are_sent``).
    """

    command: Train
    chain: tuple[Layer, ...] | None
    are_sent: bool = False


@dataclass(frozen=True, slots=True)
class HandUp:
    """Message to a layer's rank: send the activations of a version to the layer above."""

    version: int


@dataclass(frozen=True, slots=True)
class DropVersion:
    """Message to a layer's rank: drop a version of the layer, or of the layer below."""

    layer: int
    version: int


@dataclass(frozen=True, slots=True)
class HandedUp:
    """A minibatch for the layer above, and the validation examples if a pass ended with it."""

    number: int
    minibatch: Array
    validation: Array | None


@dataclass(frozen=True, slots=True)
class RunOver:
    """Message to a rank: a run needs its layers no more."""

    run: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Message to a rank: the end of a call on rank 0, so that all ranks return the same.

    ``status`` is the exit status of a command.
    """

    value: Any = None
    error: BaseException | None = None
    status: int = 0
