"""What settings ask for: the schedule of a run and the learners of its layers."""

from __future__ import annotations

from itertools import pairwise

from syncpretrain.errors import SettingsError
from syncpretrain.learners.rbm import RBM, RBMSettings
from syncpretrain.schedule.machine import Schedule
from syncpretrain.schedule.pace import Fixed, Free, Pace
from syncpretrain.schedule.plan import LayerPlan, Reads, greedy_reads, lockstep_reads
from syncpretrain.settings import MomentumSchedule, PretrainSettings

__all__ = ["build_learners", "build_schedule", "layer_plans"]


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
    return Schedule(plans, _pace(settings, plans, replay), slots=slots)


def build_learners(settings: PretrainSettings) -> list[RBM]:
    """Return one learner a layer, from the lowest up, each with its arrays allocated."""
    momentum = MomentumSchedule(settings.momentum)
    return [
        RBM(
            i + 1,
            visible,
            hidden,
            RBMSettings(
                batch_size=settings.batch_size,
                learning_rate=settings.learning_rate[i],
                momentum=momentum,
                weight_decay=settings.weight_decay[i],
                cd_steps=settings.cd_steps[i],
                seed=settings.seed,
            ),
        )
        for i, (visible, hidden) in enumerate(pairwise(settings.layers))
    ]


def layer_plans(settings: PretrainSettings) -> list[LayerPlan]:
    """Return the plan of each layer; an epoch's cost is its products and its input's."""
    sizes = [visible * hidden for visible, hidden in pairwise(settings.layers)]
    rows = zip(
        settings.epochs,
        settings.refresh_epochs,
        settings.cd_steps,
        sizes,
        [0, *sizes],
        strict=False,
    )
    return [
        LayerPlan(epochs, refresh, cost=float((2 * k + 3) * size + below))
        for epochs, refresh, k, size, below in rows
    ]


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
    drain = settings.finish == "drain"
    if settings.pace == "free":
        return Free(plans, drain=drain)
    if settings.schedule == "greedy":
        return Fixed(greedy_reads(plans))
    return Fixed(lockstep_reads(plans, drain=drain))
