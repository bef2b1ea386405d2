"""Work dealt to places by its cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["deal"]


def deal(
    costs: Sequence[float], places: Sequence[int], shares: Sequence[int] = ()
) -> tuple[tuple[int, ...], ...]:
    """Return where each piece of work is done, so that no place has much more than others.

    The costliest piece comes first, and goes to the place with the least by then (longest
    processing time first; Graham 1969: at most 4/3 of the least that is possible). What is equal
    goes to the first.

    Parameters
    ----------
    costs : sequence of float
    places : sequence of int
        At least one.
    shares : sequence of int, optional
        Number of places that each piece is spread over evenly, if there are as many; 1 by default.

    Returns
    -------
    tuple of tuple of int
        The places of each piece.
    """
    loads = dict.fromkeys(places, 0.0)
    most = [min(n, len(loads)) for n in shares] or [1] * len(costs)
    found: list[tuple[int, ...]] = [()] * len(costs)
    # What counts is the part that one place gets. Sorting is stable, so equal pieces keep their
    # order and every run deals alike.
    for i in sorted(range(len(costs)), key=lambda i: -costs[i] / most[i]):
        found[i] = tuple(sorted(loads, key=lambda place: loads[place])[: most[i]])
        for place in found[i]:
            loads[place] += costs[i] / most[i]
    return tuple(found)
