"""The schedule of a run, from its settings and, in a replay, from recorded reads; its ranks."""

from __future__ import annotations

from dataclasses import replace

from syncpretrain.errors import SettingsError
from syncpretrain.pretraining.runtime.ranks.placement import RankShares
from syncpretrain.schedule.epochs import Schedule
from syncpretrain.schedule.kinds import SCHEDULES, ScheduleOptions
from syncpretrain.schedule.pace import Fixed, Pace
from syncpretrain.schedule.reads import LayerPlan, Reads
from syncpretrain.settings.drift import parsed_waking
from syncpretrain.settings.sections import PretrainSettings

__all__ = ["build_schedule", "layer_plans", "rank_shares"]

SHAREABLE = ("examples", "units")  # splits whose shards may be on several ranks


def build_schedule(
    settings: PretrainSettings, *, slots: int, replay: Reads | None = None
) -> Schedule:
    """Return the schedule of a run, or of the replay of recorded reads.

    Raises
    ------
    SettingsError
        If the recorded reads are those of another number of layers.
    """
    plans = layer_plans(settings)
    if replay is not None:  # which has been decided
        plans = [replace(plan, drift=None) for plan in plans]
    return Schedule(plans, _pace(settings, plans, replay), slots=slots)


def layer_plans(settings: PretrainSettings) -> list[LayerPlan]:
    """Return the plan of each layer."""
    drifts = map(parsed_waking, settings.refresh_when)
    return list(map(LayerPlan, settings.epochs, settings.refresh_epochs, drifts))


def rank_shares(settings: PretrainSettings) -> RankShares:
    """Return how many ranks may share each layer: its replicas, split by examples or units."""
    layers = range(1, len(settings.layers))
    return RankShares(
        tuple(
            settings.replicas[layer - 1] if settings.split_of(layer) in SHAREABLE else 1
            for layer in layers
        ),
        SCHEDULES[settings.schedule].one_at_a_time,
    )


def _pace(settings: PretrainSettings, plans: list[LayerPlan], replay: Reads | None) -> Pace:
    if replay is not None:
        if len(replay) != len(plans):
            raise SettingsError(
                f"replay: the recorded run has {len(replay)} layers, this one {len(plans)}"
            )
        if not 1 <= len(replay[0]) <= plans[0].epochs:  # fewer are those of a run that was stopped
            raise SettingsError(
                f"replay: layer 1 has {len(replay[0])} recorded epochs, expected 1 to"
                f" {plans[0].epochs}"
            )
        return Fixed(replay)
    kind = SCHEDULES[settings.schedule]
    drain = settings.finish == "drain"
    options = ScheduleOptions(drain=drain, group_size=settings.group_size)
    if settings.pace == "free" and kind.free is not None:
        return kind.free(plans, options)
    return kind.lockstep(plans, options)
