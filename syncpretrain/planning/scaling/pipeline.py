"""Predicted run of a job with a schedule of layers: a group of devices trains each layer.

A group stands for one worker of the simulations of a machine
(:mod:`syncpretrain.planning.simulate` and :mod:`syncpretrain.planning.simulate_stream`), which play
the schedules that the runtimes execute. A whole version reaches the layer above as activations or
as the parameters of all layers below, whichever is faster; the pass that computes it counts as the
reader's, as on one machine. A minibatch passes a link of its own, beside the training. With fewer
devices than layers, a free device takes any layer; that its parameters move there is left out, as
little beside an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.planning.scaling.job import Job, Placed, Scaled
from syncpretrain.planning.scaling.work import GroupWork
from syncpretrain.planning.simulate import EpochCost, simulate
from syncpretrain.planning.simulate_stream import StreamCost, play_stream
from syncpretrain.pretraining.build import build_schedule
from syncpretrain.schedule.kinds import SCHEDULES
from syncpretrain.schedule.stream import (
    BLOCK_MINIBATCHES,
    RING_MINIBATCHES,
    StreamPlan,
    plans,
)
from syncpretrain.workers.worker import PROBE_ROWS

__all__ = ["scaled"]


def scaled(job: Job, devices: int) -> Scaled:
    """Return the predicted run of a job on a number of devices.

    Raises
    ------
    SettingsError
        If there are too few for the numbers of replicas that it names.
    """
    placed = Placed.of(job, devices)
    run = _played(placed)
    idle = 1 - run.computing / (devices * run.seconds) if run.seconds else 0.0
    return Scaled(
        devices,
        placed.used,
        run.seconds,
        min(1.0, max(0.0, idle)),
        run.bytes_moved if placed.used > 1 else 0.0,
        run.memory,
        placed.replicas,
    )


@dataclass(frozen=True, slots=True)
class _Played:
    """Result of a run: its seconds, the seconds in which its devices compute, and bytes."""

    seconds: float
    computing: float
    bytes_moved: float
    memory: float


@lru_cache(maxsize=64)  # devices that have no work change nothing
def _played(placed: Placed) -> _Played:
    is_streamed = placed.job.settings.handoff == "minibatch"
    return _streamed(placed) if is_streamed else _by_versions(placed)


@dataclass(frozen=True, slots=True)
class _Handed:
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
        train = {1: job.steps * group.step}
        crowd = _crowding(placed, work.crowding, group.devices)
        costs.append(EpochCost(train, {1: version.seconds}, work.end, crowd))
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
    own = plans(job.settings.epochs, delay=job.settings.delay, steps=steps)
    ends = [max(plan.delay + plan.steps for plan in own[i:]) for i in range(len(own))]
    stages: list[tuple[StreamPlan, StreamCost]] = []
    layer_of: list[int | None] = []  # of each stage; None for a link
    moved = 0.0
    for i, (work, group) in enumerate(zip(job.works, groups, strict=True)):
        if i and placed.used > 1:
            seconds, size = _link(placed, i)
            moved += size * (ends[i] - own[i].delay)
            if not job.network.is_free:
                passing = StreamPlan(own[i].delay, ends[i] - own[i].delay)
                stages.append((passing, StreamCost({1: seconds}, seconds)))
                layer_of.append(None)
        end = work.end + _passes(job, group, min(job.held_out, PROBE_ROWS))
        crowd = _crowding(placed, work.crowding, group.devices)
        again = job.settings.passes_up_again(i + 1) and i + 1 < len(groups)
        step = group.step + (group.forward if again else 0.0)
        cost = StreamCost({1: step}, group.forward, end, crowd, work.handover)
        stages.append((own[i], cost))
        layer_of.append(i)
        moved += group.bytes_moved * own[i].steps
    run = play_stream(
        [plan for plan, _ in stages],
        [cost for _, cost in stages],
        steps=steps,
        ring=RING_MINIBATCHES,
        block=BLOCK_MINIBATCHES,
        workers=placed.places,
        replicas=[1] * len(stages),
        links={n + 1 for n, i in enumerate(layer_of) if i is None},
    )
    computing = 0.0
    for busy, layer in zip(run.busy, layer_of, strict=True):
        if layer is not None:
            group, plan = groups[layer], own[layer]
            forwarded = ends[layer] - plan.delay - plan.steps
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


def _passes(job: Job, group: GroupWork, rows: int) -> float:
    """Return the seconds in which a group computes the hidden means of some rows."""
    return rows / job.settings.batch_size * group.forward


def _crowding(placed: Placed, crowding: float, devices: int) -> float:
    """Return by how much a group becomes slower when all devices are at work."""
    return (1 + crowding * (placed.used - 1)) / (1 + crowding * (devices - 1))
