"""Messages between rank 0, which leads a run, and the ranks that hold its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from syncpretrain.cluster.transport import Port
from syncpretrain.kernels.arrays import Array
from syncpretrain.models.layer import Layer
from syncpretrain.parallel.replicas.server import AsyncRules, Push
from syncpretrain.parallel.replicas.steps import Load, ReplicaFactory, Save, Work
from syncpretrain.parallel.timeouts import Timeouts
from syncpretrain.pretraining.runtime.ranks.parameter_windows import WindowPlaces
from syncpretrain.pretraining.runtime.ranks.sent_data import SentSplit
from syncpretrain.pretraining.runtime.split import Split
from syncpretrain.pretraining.runtime.streamed.rings import Passes, RingSize
from syncpretrain.pretraining.schedule.machine import Train

__all__ = [
    "CONTROL",
    "DUMP",
    "AnyPlace",
    "DropVersion",
    "EpochLayer",
    "GiveShare",
    "HandUp",
    "HandedUp",
    "Place",
    "RankOrder",
    "ReplicaAnswer",
    "ReplicaOrder",
    "ReplicaPlace",
    "ReportSlice",
    "RunEnded",
    "RunJob",
    "RunOver",
    "SendSlice",
    "ServerPlace",
    "ServerRank",
    "SetSlice",
    "SliceOf",
    "StreamLayer",
    "TakeChange",
    "TakeShare",
    "TrainShare",
    "TunerPlace",
    "port",
]

CONTROL: Port = (0, "control")  # RunJob, RunOver and RunEnded, to every rank but 0
DUMP: Port = (0, "dump")  # asks for the stacks of all threads on stderr


def port(run: int, name: str, layer: int = 0) -> Port:
    """Return a port of a run.

    To the ranks: ``orders`` of a layer, ``workers`` of a layer, ``minibatches`` of the layer below
    it, ``activations`` of the layer below it, ``versions`` of a layer, to be handed up or dropped,
    ``group`` of a layer from the others that hold it, and ``stop``; to rank 0: ``reports`` or
    ``answers`` of a layer, ``failures`` in minibatches that were answered for, ``progress``, and
    ``left``.
    Replicas and servers of an asynchronous run have ports as layers have: ``slices`` of a replica
    are those of parameters that it fetches, ``change N`` is its change for server N.
    """
    return run, name, layer


@dataclass(frozen=True, slots=True)
class Place:
    """What a rank holds: the number of a layer, and the ranks that share it if there are several.

    The first rank of the ``group`` answers for it.
    """

    layer: int
    group: tuple[int, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class EpochLayer(Place):
    """A layer that trains on versions: its number and its ``WorkerFactory``.

    ``ranks_above`` have the layer above, if that gets activations from here.
    """

    worker_factory: Callable[..., Any]
    ranks_above: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamLayer(Place):
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
class ReplicaPlace(Place):
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
class ServerPlace(Place):
    """A server of a slice of the parameters: its number, and the rank of each replica."""

    rules: AsyncRules
    replicas: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TunerPlace(Place):
    """A share of a fine-tuning: what builds a :class:`Tuner`, and its threads on each rank."""

    factory: Callable[..., Any]
    threads: int


@dataclass(frozen=True, slots=True)
class TrainShare:
    """Message to a tuner: share the steps of an epoch, from the ``first`` on."""

    epoch: int
    first: int


@dataclass(frozen=True, slots=True)
class GiveShare:
    """Message to a tuner: send the first rank what this one remembers of its slice."""


@dataclass(frozen=True, slots=True)
class TakeShare:
    """Message to a tuner: go on from a state of ``steps`` steps."""

    parameters: Array
    optimizer: Mapping[str, Array]
    steps: int


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


AnyPlace = EpochLayer | StreamLayer | ReplicaPlace | ServerPlace | TunerPlace


@dataclass(frozen=True, slots=True)
class RunJob:
    """Message to a rank: the layers that it holds in a run, and the data if it needs them.

    The data are a ``SentSplit`` on the way.
    """

    run: int
    layers: tuple[AnyPlace, ...]
    data: Split | SentSplit | None
    blas_threads: int
    times: Timeouts


@dataclass(frozen=True, slots=True)
class RankOrder:
    """An epoch to train, on what the data become through a chain of snapshots.

    ``chain`` is None where the layer's rank has computed that already, or the layer reads the data,
    or where the activations ``are_sent`` by the rank of the layer below.
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
    """Message to a layer's rank: nothing needs a version any more, of this layer or that below."""

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
    """Message to a rank: what became of what rank 0 was called for, so that all return the same.

    ``status`` is that of a command.
    """

    value: Any = None
    error: BaseException | None = None
    status: int = 0
