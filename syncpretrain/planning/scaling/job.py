"""Job of a cluster: its training, the devices of each layer, and its predicted result.

The last functions parse the texts of its options: bandwidths, latencies, devices, replicas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.kernels.arrays import FLOAT_BYTES
from syncpretrain.planning.scaling.work import SPLITS, GroupWork, LayerWork, Network
from syncpretrain.schedule.kinds import SCHEDULES
from syncpretrain.settings import PretrainSettings
from syncpretrain.settings.fields import refuse
from syncpretrain.workers.worker import PROBE_ROWS

PAYING, EVERY = "auto", "all"  # as many devices as make it faster; all, whether they do or not
Load = Callable[[int, int], float]  # seconds of a layer, counted from 0, on a number of devices


def place(
    rule: str | Sequence[int],
    group: Sequence[int],
    load: Load,
    *,
    devices: int,
    most: Sequence[int],
) -> list[int]:
    """Return the devices of each layer of a group that trains at the same time.

    Parameters
    ----------
    rule : str or sequence of int
        ``auto``, ``all``, or a number for each layer of the group.
    group : sequence of int
        Layers, counted from 0.
    load : callable
        Returns the seconds of a layer on a number of devices; the group's longest is minimized.
    devices : int
    most : sequence of int
        The most devices of each layer of the group.

    Raises
    ------
    SettingsError
        If there are too few devices for the numbers given.
    """
    if not isinstance(rule, str):
        counts = list(rule)
        if sum(counts) > devices and max(counts) > 1:
            raise SettingsError(
                f"replicas: got {','.join(map(str, counts))}, which take {sum(counts)} devices;"
                f" expected at most {devices}, the fewest of --devices"
            )
        return counts
    # The longest layer gets more devices, again and again, until none are left.
    counts, every = [1] * len(group), rule == EVERY
    free = devices - len(group)
    if free <= 0:
        return counts
    sizes = [
        list(range(1, limit + 1)) if every else _faster_sizes(load, layer, limit)
        for layer, limit in zip(group, (min(n, free + 1) for n in most), strict=True)
    ]
    places = [0] * len(group)
    longest = [(-load(layer, 1), i) for i, layer in enumerate(group)]
    heapify(longest)
    while longest:
        _, i = heappop(longest)
        if places[i] + 1 == len(sizes[i]):
            if every:
                continue
            break  # the longest cannot become shorter, so that others need not
        needed = sizes[i][places[i] + 1] - counts[i]
        if needed > free:
            break
        places[i] += 1
        counts[i] += needed
        free -= needed
        heappush(longest, (-load(group[i], counts[i]), i))
    return counts


def _faster_sizes(load: Load, layer: int, most: int) -> list[int]:
    """Return the numbers of devices at which a layer is faster than with any fewer."""
    sizes, least = [1], load(layer, 1)
    for size in range(2, most + 1):
        if (seconds := load(layer, size)) < least:
            sizes.append(size)
            least = seconds
    return sizes


PARAMETER_COPIES = 3  # weights, velocity, gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices, the network between them, and what they train on, for any way to train.

    Attributes
    ----------
    examples, held_out : int
    network : Network
    split : str
        ``examples`` or ``units``: how the devices of a layer share a minibatch.
    servers : int
        Servers of an asynchronous run, besides the devices; the parameters are spread over the
        servers.
    push_every : int
        Minibatches between two exchanges with the server.
    """

    examples: int
    held_out: int = 0
    network: Network = field(default_factory=Network)
    split: str = "examples"
    servers: int = 1
    push_every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Cluster):
    """A stack to train on a cluster.

    Attributes
    ----------
    settings : PretrainSettings
        Settings; only schedule, hand-over, epochs and minibatch size count.
    works : tuple of LayerWork
        One a layer, from the lowest up.
    replicas : str or tuple of int
        Devices of a layer: ``auto`` for as many as make it faster, ``all``, or a number a layer.
    versions : str
        A version reaches the layer above as ``activations``, as ``parameters`` of all layers below,
        from which the reader computes them in every epoch, or ``auto``: whichever is faster.
    """

    settings: PretrainSettings
    works: tuple[LayerWork, ...]
    replicas: str | tuple[int, ...] = PAYING
    versions: str = "auto"

    def __post_init__(self) -> None:
        depth, batch = len(self.settings.layers) - 1, self.settings.batch_size
        is_word = isinstance(self.replicas, str)
        got = repr(self.replicas) if is_word else ",".join(map(str, self.replicas))
        is_wrong = not is_word and (len(self.replicas) != depth or min(map(int, self.replicas)) < 1)
        refused = {
            f"batch_size: got {batch}, expected at most {self.examples}, the examples to train"
            " on": batch > self.examples,
            f"split: got {self.split!r}, expected {' or '.join(SPLITS)}": self.split not in SPLITS,
            f"replicas: got {got}, expected {PAYING}, {EVERY}, or a number a layer": is_word
            and self.replicas not in (PAYING, EVERY),
            f"replicas: got {got}, expected {depth} numbers of at least 1, one a layer": is_wrong,
        }
        refuse(refused)

    @property
    def rows(self) -> int:
        """How many examples' activations each version has."""
        return self.examples + min(self.held_out, PROBE_ROWS)

    @property
    def steps(self) -> float:
        """Minibatches of an epoch; the last one may count as a part."""
        return self.examples / self.settings.batch_size

    def group(self, layer: int, devices: int) -> GroupWork:
        """Return the work of a layer, counted from 0, on a number of devices."""
        return GroupWork.of(
            self.works[layer],
            devices,
            batch_size=self.settings.batch_size,
            split=self.split,
            network=self.network,
        )

    def most(self, layer: int) -> int:
        """Return the number of devices that a layer, counted from 0, can use."""
        work = self.works[layer]
        return min(work.visible, work.hidden) if self.split == "units" else self.settings.batch_size

    def load(self, layer: int, devices: int) -> float:
        """Return the seconds of a layer's own epochs on a number of devices."""
        own = self.steps * self.group(layer, devices).step + self.works[layer].end
        return self.settings.epochs[layer] * own


class Placed(NamedTuple):
    """A job on devices: the devices of each layer, and how many layers train at once.

    Rounds without a group size take as many layers at a time as there are devices, as in the CMU
    project.
    """

    job: Job
    replicas: tuple[int, ...]
    places: int

    @classmethod
    def of(cls, job: Job, devices: int) -> Placed:
        """Place a job.

        Raises
        ------
        SettingsError
            If there are too few devices for the numbers that it names.
        """
        settings = job.settings
        depth = len(job.works)
        kind = SCHEDULES[settings.schedule]
        if kind.has_groups and settings.group_size is None:
            settings = msgspec.structs.replace(settings, group_size=min(devices, depth))
            job = replace(job, settings=settings)
        size = 1 if kind.one_at_a_time else settings.group_size or depth
        replicas: list[int] = []
        for first in range(0, depth, size):
            group = range(first, min(first + size, depth))
            rule = job.replicas if isinstance(job.replicas, str) else job.replicas[first:][:size]
            most = [job.most(layer) for layer in group]
            replicas += place(rule, group, job.load, devices=devices, most=most)
        return cls(job, tuple(replicas), min(devices, size))

    @property
    def used(self) -> int:
        """The devices that have work at any time, at most."""
        firsts = range(0, len(self.replicas), self.places)
        return max(sum(self.replicas[first : first + self.places]) for first in firsts)

    def groups(self) -> list[GroupWork]:
        """Return the work of each layer's group."""
        return [self.job.group(i, n) for i, n in enumerate(self.replicas)]

    def memory(self, inputs: Sequence[float]) -> float:
        """Return the bytes of the device that needs the most, given each layer's rows of input.

        With more layers than devices, the layers that need the most are taken to share a device.
        """
        needs = []
        by_units = self.job.split == "units"
        for work, n, rows in zip(self.job.works, self.replicas, inputs, strict=True):
            parameters = PARAMETER_COPIES * work.parameters / (n if by_units else 1)
            batch = self.job.settings.batch_size * 2 * (work.visible + work.hidden)
            needs.append(parameters + batch + rows * work.visible / (1 if by_units else n))
        together = -(-len(needs) // self.places) if self.places > 1 else len(needs)
        if SCHEDULES[self.job.settings.schedule].one_at_a_time:
            together = 1
        return FLOAT_BYTES * sum(sorted(needs)[-together:])


@dataclass(frozen=True, slots=True)
class Scaled:
    """Predicted result of a job on a number of devices.

    Attributes
    ----------
    devices, used : int
        Number of devices, and of devices that have work.
    seconds : float
    idle : float
        The share of the devices' time in which they compute nothing.
    bytes_moved : float
        Bytes of all messages together.
    memory : float
        Bytes of the device that needs the most.
    replicas : tuple of int
        Devices of each layer.
    staleness : float or None
        Mean number of updates by others between the fetch of the parameters and the update by their
        gradient, in an asynchronous run; else None.
    """

    devices: int
    used: int
    seconds: float
    idle: float
    bytes_moved: float
    memory: float
    replicas: tuple[int, ...]
    staleness: float | None = None


NUMBER = r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)"
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SECOND_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
BITS_A_BYTE = 8
MOST_DEVICES = 65_536
MOST_LATENCY = 1e6  # seconds; more is a slip of the keyboard


def bandwidth_from(text: str) -> float:
    """Return bytes a second of a text such as ``10Gb/s`` (bits), ``1.2GB/s`` (bytes) or ``inf``.

    Raises
    ------
    SettingsError
        If the text is no bandwidth, or less than 1 bit a second.
    """
    found = re.fullmatch(rf"{NUMBER}\s*([kMGT]?)(b|B)(?:/s|ps)", text.strip())
    if text.strip() == "inf":
        return math.inf
    bits = math.inf
    if found is not None:
        bits = float(found[1]) * PREFIXES[found[2]] * (BITS_A_BYTE if found[3] == "B" else 1)
    if not 1 <= bits < math.inf:
        raise SettingsError(
            f"bandwidth: got {text!r}, expected bits or bytes a second, such as 10Gb/s or 1.2GB/s,"
            " or inf; at least 1b/s"
        )
    return bits / BITS_A_BYTE


def latency_from(text: str) -> float:
    """Return the seconds of a text such as ``20us``, ``1.5ms`` or ``0s``.

    Raises
    ------
    SettingsError
        If the text is no time.
    """
    found = re.fullmatch(rf"{NUMBER}\s*(s|ms|us|ns)", text.strip())
    number = float(found[1]) if found else math.inf
    if found is None or number * SECOND_UNITS[found[2]] > MOST_LATENCY:
        raise SettingsError(
            f"latency: got {text!r}, expected a time such as 20us, 1.5ms or 0s, of at most"
            f" {MOST_LATENCY:g}s"
        )
    return number * SECOND_UNITS[found[2]]


def devices_from(text: str) -> tuple[int, ...]:
    """Return the numbers of devices of a text such as ``1,2,4`` or ``1,2,4,...,1024``.

    With three or more numbers before the dots, the last three by one factor, the numbers go on by
    that factor; else by the last difference.

    Raises
    ------
    SettingsError
        If a number is out of range, or if the dots do not lead to the number behind them.
    """
    try:
        found = _listed(text)
    except ValueError:
        found = ()
    if not found or not all(1 <= count <= MOST_DEVICES for count in found):
        raise SettingsError(
            f"devices: got {text!r}, expected whole numbers from 1 to {MOST_DEVICES} separated by"
            " commas, such as 1,2,3 or 1,2,4,...,1024"
        )
    return found


def _listed(text: str) -> tuple[int, ...]:
    """Return the numbers of a list; ValueError if it has another form."""
    parts = [part.strip() for part in text.split(",")]
    if "..." not in parts:
        return tuple(map(int, parts))
    dots = parts.index("...")
    found, (last,) = list(map(int, parts[:dots])), map(int, parts[dots + 1 :])
    if len(found) < 2 or min(found) < 1:
        raise ValueError("fewer than two numbers to go on from")
    factor, difference = found[-1] / found[-2], found[-1] - found[-2]
    by_factor = len(found) > 2 and found[-2] / found[-3] == factor and factor > 1
    while found[-1] < last and difference > 0 and found[-1] <= MOST_DEVICES:
        found.append(round(found[-1] * factor) if by_factor else found[-1] + difference)
    if found[-1] != last:
        raise ValueError(f"{last} is passed over")
    return tuple(found)


def replicas_from(text: str) -> str | tuple[int, ...]:
    """Return ``auto``, ``all``, or the numbers of a text such as ``2,1,1``.

    Raises
    ------
    SettingsError
        If it is none of them.
    """
    if text in (PAYING, EVERY):
        return text
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise SettingsError(
            f"replicas: got {text!r}, expected {PAYING}, {EVERY}, or whole numbers from 1 on,"
            " separated by commas"
        )
    return found
