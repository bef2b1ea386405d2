"""Placement: how many devices each layer gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from syncpretrain.errors import SettingsError

__all__ = ["EVERY", "PAYING", "Load", "place"]

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
    return _spread(group, load, devices=devices, most=most, every=rule == EVERY)


def _spread(
    group: Sequence[int], load: Load, *, devices: int, most: Sequence[int], every: bool
) -> list[int]:
    """Give the longest layer more devices, again and again, until none are left."""
    counts = [1] * len(group)
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
