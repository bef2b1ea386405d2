"""Asynchronous training with a parameter server, as a discrete-event model.

Pure: no threads, clocks or arrays. Each worker repeats three things (Algorithm 4 of the slides on
MPI): fetch the parameters, compute gradients, push them. All of them pass the links of the server,
one message after the other in each direction, and it applies one update at a time::

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
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.planning.scaling.job import PARAMETER_COPIES, Job, Scaled
from syncpretrain.planning.scaling.network import Network

__all__ = ["Exchange", "Served", "scaled_by_server", "serve"]

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


@dataclass(frozen=True, slots=True)
class Served:
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
    idle = max(0.0, 1 - computing / (devices * seconds)) if seconds else 0.0
    return Scaled(
        devices,
        used,
        seconds,
        idle,
        moved,
        _memory(job, devices),
        (devices,) * len(job.works),
        stale / max(1, turns_of_all),
    )


def _memory(job: Job, devices: int) -> float:
    """Return the bytes of a worker with its part of the examples, or of a server if it has more."""
    largest = max(
        PARAMETER_COPIES * work.parameters
        + job.settings.batch_size * 2 * (work.visible + work.hidden)
        + job.rows * work.visible / devices
        for work in job.works
    )
    server = 2 * sum(work.parameters for work in job.works) / job.servers
    return FLOAT_BYTES * max(largest, server)
