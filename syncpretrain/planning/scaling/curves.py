"""Curves: the predicted runs of several ways to train a stack, by the number of devices.

There are two kinds of runs.

*With a schedule of layers*, a group of devices trains each layer. A group stands for one worker of
the simulations of a machine (:mod:`syncpretrain.planning.simulate` and
:mod:`syncpretrain.planning.simulate`), which play the schedules that the runtimes execute. A
whole version reaches the layer above as activations or as the parameters of all layers below,
whichever is faster; the pass that computes it counts as the reader's, as on one machine. A
minibatch passes a link of its own, beside the training. With fewer devices than layers, a free
device takes any layer; that its parameters move there is left out, as little beside an epoch.

*With a parameter server*, a discrete-event model plays the asynchronous run; it is pure, without
threads, clocks or arrays. Each worker repeats three things (Algorithm 4 of the slides on MPI):
fetch the parameters, compute gradients, push them. All of them pass the links of the server, one
message after the other in each direction, and it applies one update at a time::

    time ->      0   1   2   3   4   5   6   7
    worker 1     fet computing.. pus
    worker 2         fet computing.. pus
    server out   1   2
    server in                    1   2

So the workers' own pace counts until the server's links or its updates are busy all the time; more
workers then only wait. Their updates grow staler, by one for each of them; how much less is learned
by a stale gradient is not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.planning.scaling.job import PARAMETER_COPIES, PAYING, Cluster, Job, Placed, Scaled
from syncpretrain.planning.scaling.work import LayerCosts, Network, works_of
from syncpretrain.planning.simulate import EpochCost, StreamCost, play_stream, simulate
from syncpretrain.pretraining.build import build_schedule
from syncpretrain.schedule.kinds import ASYNC, SCHEDULES
from syncpretrain.schedule.stream import BLOCK_MINIBATCHES, RING_MINIBATCHES, StreamPlan
from syncpretrain.settings import PretrainSettings, settings_from
from syncpretrain.settings.fields import OF_SCHEDULES, refuse
from syncpretrain.workers.worker import PROBE_ROWS


def scaled(job: Job, devices: int) -> Scaled:
    """Return the predicted run of a job on a number of devices.

    Raises
    ------
    SettingsError
        If there are too few for the numbers of replicas that it names.
    """
    placed = Placed.of(job, devices)
    return _played(placed).on(devices, placed.used, placed.replicas)


class _Played(NamedTuple):
    """Result of a run: its seconds, the seconds in which its devices compute, and bytes."""

    seconds: float
    computing: float
    bytes_moved: float
    memory: float

    def on(
        self, devices: int, used: int, replicas: tuple[int, ...], staleness: float | None = None
    ) -> Scaled:
        """Return it as the run on a number of devices; ``used`` of them have work."""
        idle = 1 - self.computing / (devices * self.seconds) if self.seconds else 0.0
        own = self.seconds, min(1.0, max(0.0, idle)), self.bytes_moved, self.memory
        return Scaled(devices, used, *own, replicas, staleness)


@lru_cache(maxsize=64)  # devices that have no work change nothing
def _played(placed: Placed) -> _Played:
    return _streamed(placed) if placed.job.settings.handoff == "minibatch" else _by_versions(placed)


class _Handed(NamedTuple):
    """A version that one group gets from another: seconds, seconds of the network, and bytes."""

    seconds: float
    network: float
    size: float


def _handed(placed: Placed, layer: int) -> _Handed:
    """Return what one version of the layer below costs a layer, counted from 0."""
    job, own, below = placed.job, placed.replicas[layer], placed.replicas[layer - 1]
    passes = [job.rows / job.settings.batch_size * job.group(i, own).forward for i in range(layer)]
    stays = SCHEDULES[job.settings.schedule].one_at_a_time and own == below
    if stays or placed.used == 1:
        waits = job.rows / job.settings.batch_size * job.group(layer - 1, own).forward_network
        return _Handed(passes[-1], waits, 0.0)
    activations = FLOAT_BYTES * job.rows * job.works[layer - 1].hidden
    copies = own if job.split == "units" else 1  # each needs all units' inputs of all examples
    streams = 1 if job.split == "units" else min(own, below)
    sent = job.network.transfer(activations / streams)
    parameters = FLOAT_BYTES * sum(work.parameters for work in job.works[:layer])
    chained = job.network.broadcast(parameters, own)
    ways = {
        "activations": _Handed(passes[-1] + sent, sent, activations * copies),
        "parameters": _Handed(sum(passes) + chained, chained, parameters * own),
    }
    return ways.get(job.versions) or min(ways.values(), key=lambda handed: handed.seconds)


def _by_versions(placed: Placed) -> _Played:
    job, groups = placed.job, placed.groups()
    handed = [_Handed(0.0, 0.0, 0.0), *(_handed(placed, i) for i in range(1, len(groups)))]
    costs = []
    for work, group, version in zip(job.works, groups, handed, strict=True):
        crowd = _crowding(placed, work.crowding, group.devices)
        costs.append(EpochCost({1: job.steps * group.step}, {1: version.seconds}, work.end, crowd))
    schedule = build_schedule(job.settings, slots=placed.places)
    run = simulate(schedule, costs, workers=placed.places, replicas=[1] * len(groups))
    computing = moved = 0.0
    for i, (group, version) in enumerate(zip(groups, handed, strict=True)):
        waits = run.epochs[i] * job.steps * group.step_network + run.transforms[i] * version.network
        alone = run.epochs[i] * job.works[i].end * (1 - 1 / group.devices)
        computing += group.devices * (run.busy[i] - waits - alone)
        moved += run.epochs[i] * job.steps * group.bytes_moved + run.transforms[i] * version.size
    inputs = [float(job.rows)] + [max(1, n) * float(job.rows) for n in run.buffers[:-1]]
    return _Played(run.seconds, computing, moved, placed.memory(inputs))


def _streamed(placed: Placed) -> _Played:
    job, groups = placed.job, placed.groups()
    steps = -(-job.examples // job.settings.batch_size)
    own = job.settings.stream.plans(steps)
    ends = [max(plan.end for plan in own[i:]) for i in range(len(own))]
    stages: list[tuple[StreamPlan, StreamCost, int | None]] = []  # the layer is None for a link
    moved = 0.0
    for i, (work, group) in enumerate(zip(job.works, groups, strict=True)):
        if i and placed.used > 1:
            seconds, size = _link(placed, i)
            passing = replace(own[i], steps=own[i].at(ends[i]))
            moved += size * passing.steps
            if not job.network.is_free:
                stages.append((passing, StreamCost({1: seconds}, seconds), None))
        validated = min(job.held_out, PROBE_ROWS) / job.settings.batch_size
        end = work.end + validated * group.forward
        crowd = _crowding(placed, work.crowding, group.devices)
        again = job.settings.passes_up_again(i + 1) and i + 1 < len(groups)
        step = group.step + (group.forward if again else 0.0)
        cost = StreamCost({1: step}, group.forward, end, crowd, work.handover)
        stages.append((own[i], cost, i))
        moved += group.bytes_moved * own[i].steps
    run = play_stream(
        [plan for plan, _, _ in stages],
        [cost for _, cost, _ in stages],
        steps=steps,
        ring=RING_MINIBATCHES,
        block=BLOCK_MINIBATCHES,
        workers=placed.places,
        replicas=[1] * len(stages),
        links={n + 1 for n, (_, _, layer) in enumerate(stages) if layer is None},
    )
    computing = 0.0
    for busy, (_, _, layer) in zip(run.busy, stages, strict=True):
        if layer is not None:
            group, plan = groups[layer], own[layer]
            forwarded = ends[layer] - plan.end
            if job.settings.passes_up_again(layer + 1) and layer + 1 < len(groups):
                forwarded += plan.steps
            waits = plan.steps * group.step_network + forwarded * group.forward_network
            computing += group.devices * (busy - waits)
    waiting = float(RING_MINIBATCHES * job.settings.batch_size)
    inputs = [float(job.rows)] + [waiting] * (len(groups) - 1)
    return _Played(run.seconds, computing, moved, placed.memory(inputs))


def _link(placed: Placed, layer: int) -> tuple[float, float]:
    """Return the seconds and bytes in which a minibatch passes from one group to the next.

    A block of minibatches is a message, sent when the one before has arrived.
    """
    job, own, below = placed.job, placed.replicas[layer], placed.replicas[layer - 1]
    size = FLOAT_BYTES * job.settings.batch_size * job.works[layer - 1].hidden
    by_units = job.split == "units"
    streams = 1 if by_units else min(own, below)
    message = job.network.transfer(BLOCK_MINIBATCHES * size / streams)
    return message / BLOCK_MINIBATCHES, size * (own if by_units else 1)


def _crowding(placed: Placed, crowding: float, devices: int) -> float:
    """Return by how much a group becomes slower when all devices are at work."""
    return (1 + crowding * (placed.used - 1)) / (1 + crowding * (devices - 1))


MOST_EXCHANGES = 40  # simulated of each worker; then all repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One turn of a worker.

    Attributes
    ----------
    computing : float
        Seconds of the gradients.
    size : float
        Bytes of the parameters, and of a push.
    applying : float
        Seconds in which a server applies a push.
    servers : int
        They share the parameters evenly, each with a link like a worker's.
    """

    computing: float
    size: float
    applying: float = 0.0
    servers: int = 1


class Served(NamedTuple):
    """Result of some turns: their seconds, and the mean staleness of their updates."""

    seconds: float
    staleness: float


class _Link:
    """One direction of the servers' links: a message after the other."""

    def __init__(self, network: Network, exchange: Exchange) -> None:
        self._own = exchange.size / network.bandwidth  # of a worker's link
        self._shared = self._own / exchange.servers
        self._latency = network.latency
        self._free = 0.0

    def pass_on(self, time: float) -> tuple[float, float]:
        """Return when a message is sent that is ready at a time, and when it has arrived."""
        start = max(time, self._free)
        self._free = start + self._shared
        return start, start + self._own + self._latency


def serve(exchange: Exchange, *, workers: int, turns: int, network: Network) -> Served:
    """Play a number of turns, which the workers share evenly."""
    played = min(turns, workers * MOST_EXCHANGES)
    fetches, pushes = _Link(network, exchange), _Link(network, exchange)
    left = [played // workers + (i < played % workers) for i in range(workers)]
    events = [(0.0, i, "fetch") for i in range(workers) if left[i]]
    heapify(events)
    applied_at: list[int] = [0] * workers  # updates that a worker's parameters have in them
    updates, stale, server_free, clock = 0, 0, 0.0, 0.0
    while events:
        time, i, event = heappop(events)
        if event == "fetch":
            sent, arrived = fetches.pass_on(time + network.latency)
            heappush(events, (sent, i, "read"))
            heappush(events, (arrived + exchange.computing, i, "push"))
        elif event == "read":
            applied_at[i] = updates
        elif event == "push":
            heappush(events, (pushes.pass_on(time)[1], i, "update"))
        else:
            server_free = max(time, server_free) + exchange.applying / exchange.servers
            clock = max(clock, server_free)
            stale += updates - applied_at[i]
            updates += 1
            left[i] -= 1
            if left[i]:
                heappush(events, (time, i, "fetch"))
    return Served(clock * turns / max(1, played), stale / max(1, updates))


def scaled_by_server(job: Job, devices: int) -> Scaled:
    """Return the predicted run of an asynchronous job: layer by layer, each on all devices.

    ``devices`` are the workers; the servers come on top. A worker trains on whole minibatches of
    its own part of the examples, and keeps its part's activations.
    """
    steps = math.ceil(job.steps)
    seconds = computing = moved = stale = 0.0
    turns_of_all = used = 0
    for i, work in enumerate(job.works):
        # The last push of an epoch is of what is left.
        turns = job.settings.epochs[i] * math.ceil(steps / job.push_every)
        crowd = 1 + work.crowding * (devices - 1)
        exchange = Exchange(
            computing=crowd * work.step * steps * job.settings.epochs[i] / turns,
            size=float(FLOAT_BYTES * work.parameters),
            applying=work.fixed,
            servers=job.servers,
        )
        served = serve(exchange, workers=devices, turns=turns, network=job.network)
        passed = job.steps * job.works[i - 1].forward if i else 0.0
        seconds += served.seconds + passed / devices + job.settings.epochs[i] * work.end
        computing += turns * exchange.computing + passed + job.settings.epochs[i] * work.end
        moved += 2 * exchange.size * turns
        stale += served.staleness * turns
        turns_of_all += turns
        used = max(used, min(devices, turns))
    run = _Played(seconds, computing, moved, _memory_by_server(job, devices))
    return run.on(devices, used, (devices,) * len(job.works), stale / max(1, turns_of_all))


def _memory_by_server(job: Job, devices: int) -> float:
    """Return the bytes of a worker with its part of the examples, or of a server if it has more."""
    largest = max(
        PARAMETER_COPIES * work.parameters
        + job.settings.batch_size * 2 * (work.visible + work.hidden)
        + job.rows * work.visible / devices
        for work in job.works
    )
    server = 2 * sum(work.parameters for work in job.works) / job.servers
    return FLOAT_BYTES * max(largest, server)


PLAYED_EPOCHS = 2_000  # of a layer; each is played, of every way and number of devices


class Way(NamedTuple):
    """A way to train: schedule, hand-over, and how many devices a layer gets."""

    schedule: str
    handoff: str = "epoch"
    replicas: str | tuple[int, ...] = PAYING


GREEDY = Way("greedy")
WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "pipeline": Way("synchronized", replicas=(1,)),
        "streamed pipeline": Way("synchronized", "minibatch", (1,)),
        "data parallel": GREEDY,
        "hybrid": Way("synchronized", "minibatch"),
        "asynchronous": Way(ASYNC),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Cluster):
    """The options that all ways to train have in common.

    ``stack`` are the settings of the layers, as keyword arguments of
    :func:`syncpretrain.settings.settings_from`, ``schedule`` and ``handoff`` left out.
    """

    layers: str | Sequence[int]
    stack: Mapping[str, Any]

    def plain(self) -> Options:
        """Return the options of greedy training: without the settings of other schedules."""
        kept = {name: value for name, value in self.stack.items() if name not in OF_SCHEDULES}
        return replace(self, stack=kept)

    def settings(self, way: Way) -> PretrainSettings:
        """Return the settings of a way to train.

        Raises
        ------
        SettingsError
            If they are wrong, or do not fit the way.
        """
        is_async = way.schedule == ASYNC
        refused = {
            "handoff: got minibatch with schedule async, which trains layer by layer; expected"
            " epoch": way.handoff == "minibatch",
            "replicas: got some with schedule async, where every layer has all devices; leave them"
            " out": way.replicas != PAYING,
            f"split: got {self.split} with schedule async, whose workers have minibatches of their"
            " own; expected examples": self.split != "examples",
        }
        if is_async:
            refuse(refused)
        schedule = "greedy" if is_async else way.schedule
        own: dict[str, Any] = {"handoff": way.handoff, "workers": 1, **self.stack}
        return settings_from(self.layers, schedule=schedule, **own).pretrain

    def job(self, way: Way, costs: Sequence[LayerCosts]) -> Job:
        """Return the job of a way to train.

        Raises
        ------
        SettingsError
            If an option is wrong, or does not fit the way.
        """
        settings = self.settings(way)
        replicas = way.replicas
        if not isinstance(replicas, str) and len(replicas) == 1:
            replicas *= len(settings.layers) - 1
        cluster = {own.name: getattr(self, own.name) for own in fields(Cluster)}
        return Job(settings=settings, works=works_of(settings, costs), replicas=replicas, **cluster)


class Curve(NamedTuple):
    """The predicted runs of one way to train, and what they are compared with.

    ``base`` is the seconds of greedy training on one device.
    """

    name: str
    base: float
    runs: tuple[Scaled, ...]

    def speedup(self, run: Scaled) -> float:
        """Return how many times faster than greedy training on one device a run is."""
        return self.base / run.seconds

    def report(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        rows = [{"speedup": self.speedup(run), **msgspec.to_builtins(run)} for run in self.runs]
        return {"name": self.name, "greedy_seconds": self.base, "runs": rows}


def check_way(way: Way, options: Options, devices: Sequence[int]) -> None:
    """Refuse what :func:`curve` would, before anything is measured.

    Raises
    ------
    SettingsError
        Naming the option.
    """
    settings = options.settings(way)
    if max(settings.epochs) > PLAYED_EPOCHS:
        raise SettingsError(
            f"epochs: got {max(settings.epochs)}, expected at most {PLAYED_EPOCHS}, which are"
            " played one by one; what follows grows in proportion"
        )
    job = options.job(way, [LayerCosts(step=1.0)] * (len(settings.layers) - 1))
    if not isinstance(job.replicas, str):
        Placed.of(job, min(devices))


def curve(
    name: str, way: Way, options: Options, costs: Sequence[LayerCosts], devices: Sequence[int]
) -> Curve:
    """Return the predicted runs of a way to train, one for each number of devices.

    Raises
    ------
    SettingsError
        If an option is wrong, or does not fit the way.
    """
    job = options.job(way, costs)
    play = scaled_by_server if way.schedule == ASYNC else scaled
    runs = tuple(play(job, count) for count in sorted(set(devices)))
    # The first figure is of greedy training on one device.
    return Curve(name, scaled(options.plain().job(GREEDY, costs), 1).seconds, runs)
