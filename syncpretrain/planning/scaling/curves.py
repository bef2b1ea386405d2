"""Curves: the predicted runs of several ways to train a stack, by the number of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.planning.scaling.costs import LayerCosts, works_of
from syncpretrain.planning.scaling.job import Job, Placed, Scaled
from syncpretrain.planning.scaling.network import Network
from syncpretrain.planning.scaling.pipeline import scaled
from syncpretrain.planning.scaling.placement import PAYING
from syncpretrain.planning.scaling.server import scaled_by_server
from syncpretrain.settings import PretrainSettings, settings_from

__all__ = [
    "ASYNCHRONOUS",
    "GREEDY",
    "WAYS",
    "Curve",
    "Options",
    "Way",
    "check_way",
    "curve",
    "greedy_seconds",
]

ASYNCHRONOUS = "async"
PLAYED_EPOCHS = 2_000  # of a layer; each is played, of every way and number of devices
OF_SCHEDULES = ("delay", "finish", "group_size", "pace", "refresh_epochs")


@dataclass(frozen=True, slots=True)
class Way:
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
        "asynchronous": Way(ASYNCHRONOUS),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that all ways to train have in common.

    ``stack`` are the settings of the layers, as keyword arguments of
    :func:`syncpretrain.settings.settings_from`, ``schedule`` and ``handoff`` left out.
    """

    layers: str | Sequence[int]
    stack: Mapping[str, Any]
    network: Network
    examples: int
    held_out: int = 0
    split: str = "examples"
    servers: int = 1
    push_every: int = 1

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
        is_async = way.schedule == ASYNCHRONOUS
        if is_async and way.handoff == "minibatch":
            raise SettingsError(
                "handoff: got minibatch with schedule async, which trains layer by layer; expected"
                " epoch"
            )
        if is_async and way.replicas != PAYING:
            raise SettingsError(
                "replicas: got some with schedule async, where every layer has all devices; leave"
                " them out"
            )
        if is_async and self.split != "examples":
            raise SettingsError(
                f"split: got {self.split} with schedule async, whose workers have minibatches of"
                " their own; expected examples"
            )
        schedule = "greedy" if is_async else way.schedule
        return settings_from(
            self.layers, schedule=schedule, handoff=way.handoff, workers=1, **self.stack
        ).pretrain

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
        return Job(
            settings=settings,
            works=works_of(settings, costs),
            examples=self.examples,
            held_out=self.held_out,
            network=self.network,
            replicas=replicas,
            split=self.split,
            servers=self.servers if way.schedule == ASYNCHRONOUS else 0,
            push_every=self.push_every,
        )


@dataclass(frozen=True, slots=True)
class Curve:
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


def greedy_seconds(options: Options, costs: Sequence[LayerCosts]) -> float:
    """Return the seconds of greedy training on one device."""
    return scaled(options.plain().job(GREEDY, costs), 1).seconds


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
    any_costs = [LayerCosts(step=1.0)] * (len(settings.layers) - 1)
    job = options.job(way, any_costs)
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
    play = scaled_by_server if way.schedule == ASYNCHRONOUS else scaled
    runs = tuple(play(job, count) for count in sorted(set(devices)))
    return Curve(name, greedy_seconds(options, costs), runs)
