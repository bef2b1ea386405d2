"""Kinds of schedule, by the names that the settings use.

Everything that depends on a kind asks its record: the settings' checks, the driver, the planner,
``compare`` and the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from syncpretrain.schedule.pace import Free, Pace, Planned
from syncpretrain.schedule.reads import LayerPlan, greedy_row, lockstep_row, rounds_row

__all__ = ["ASYNC", "SCHEDULES", "UNTRAINED", "ScheduleKind", "ScheduleOptions", "schedule_kind"]


# Schedules without versions, and so without a pace.
ASYNC = "async"  # replicas and a parameter server
UNTRAINED = "none"  # random weights, which only fine-tuning trains


# Santara et al. 2016 have as many layers in a group as there are devices; here the result may not
# depend on the machine, and 2 are the fewest that train in parallel.
GROUP_SIZE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Settings of a schedule: whether refreshes follow the end of layer 1, and the group size."""

    drain: bool = True
    group_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """One kind of schedule.

    Attributes
    ----------
    lockstep : callable
        Returns the pace in which the upstream version of every epoch is known beforehand, given
        the layers' plans and the :class:`ScheduleOptions`.
    free : callable, optional
        Returns the pace in which a layer takes the newest version, if the kind has one.
    one_at_a_time : bool
        Whether a single layer trains at any time, so that BLAS may use several threads.
    has_groups : bool
        Whether ``group_size`` applies.
    has_refreshes : bool
        Whether a newer version below may wake a layer that has trained its own epochs.
    can_stream : bool
        Whether layers may train on each other's minibatches instead of whole versions.
    candidate, shared_candidate : str or None
        Names in the planner's tables, with one worker a layer and with several; None where the
        planner does not try it.
    """

    lockstep: Callable[[Sequence[LayerPlan], ScheduleOptions], Pace]
    free: Callable[[Sequence[LayerPlan], ScheduleOptions], Pace] | None = None
    one_at_a_time: bool = False
    has_groups: bool = False
    has_refreshes: bool = True
    can_stream: bool = False
    candidate: str | None = None
    shared_candidate: str | None = None


def _greedy(plans: Sequence[LayerPlan], options: ScheduleOptions) -> Pace:
    return Planned(plans, greedy_row)


def _synchronized(plans: Sequence[LayerPlan], options: ScheduleOptions) -> Pace:
    return Planned(plans, partial(lockstep_row, drain=options.drain))


def _free(plans: Sequence[LayerPlan], options: ScheduleOptions) -> Pace:
    return Free(plans, drain=options.drain)


def _rounds(plans: Sequence[LayerPlan], options: ScheduleOptions) -> Pace:
    size = options.group_size or GROUP_SIZE
    rule = partial(rounds_row, group_size=size, drain=options.drain)
    return Planned(plans, rule, group_size=size)


SCHEDULES = {
    "greedy": ScheduleKind(
        lockstep=_greedy,
        one_at_a_time=True,
        has_refreshes=False,
        candidate="greedy",
        shared_candidate="greedy",
    ),
    "synchronized": ScheduleKind(
        lockstep=_synchronized,
        free=_free,
        can_stream=True,
        candidate="pipeline",
        shared_candidate="hybrid",
    ),
    "rounds": ScheduleKind(lockstep=_rounds, has_groups=True),
}


def schedule_kind(name: str) -> ScheduleKind:
    """Return the record of a schedule; of ``none`` and ``async``, which have no pace, of greedy."""
    other = ScheduleKind(lockstep=_greedy, has_refreshes=False, can_stream=name == ASYNC)
    return SCHEDULES.get(name, other)
