"""Settings of asynchronous training, shared by pretraining and fine-tuning."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Protocol

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.schedule.kinds import ASYNC

__all__ = ["ASYNC_DEFAULTS", "AsyncFields", "AsyncRate", "Staleness", "Steps", "check_async"]

MOST = 1_000_000  # minibatches; more is a slip of the keyboard

AsyncRate = Literal["staleness", "constant"]
Steps = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Staleness = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


ASYNC_DEFAULTS: dict[str, Any] = {
    "push_every": 1,
    "fetch_every": None,
    "async_rate": "staleness",
    "delay_compensation": 0.0,
    "max_staleness": None,
    "simulate_staleness": None,
    "trim_replicas": False,
    "servers": 1,
}


class AsyncFields(Protocol):
    """Fields of an asynchronous schedule.

    Attributes
    ----------
    push_every : int
        Local steps after which a replica pushes its change.
    fetch_every : int or None
        Local steps after which a replica fetches the parameters; None for as often as it pushes.
    async_rate : str
        ``staleness`` divides a change by its staleness, the number of changes that the server
        applied since the replica fetched (Zhang, Gupta et al. 2016); ``constant`` applies it whole.
    delay_compensation : float
        lambda_0 of the compensation for the delay (Zheng et al. 2017), 0 for none.
    max_staleness : int or None
        Largest staleness of a change; with a larger one, the replica fetches and repeats its steps.
    simulate_staleness : int or None
        With runtime ``serial``: every change is applied this number of changes late.
    trim_replicas : bool
        True stops replicas that do not make the error fall faster, as the run begins.
    servers : int
        Slices of the parameters, each with a thread of the server or, with runtime ``mpi``, a rank.
    """

    @property
    def push_every(self) -> int: ...  # noqa: D102 - above
    @property
    def fetch_every(self) -> int | None: ...  # noqa: D102
    @property
    def async_rate(self) -> str: ...  # noqa: D102
    @property
    def delay_compensation(self) -> float: ...  # noqa: D102
    @property
    def max_staleness(self) -> int | None: ...  # noqa: D102
    @property
    def simulate_staleness(self) -> int | None: ...  # noqa: D102
    @property
    def trim_replicas(self) -> bool: ...  # noqa: D102
    @property
    def servers(self) -> int: ...  # noqa: D102


def check_async(
    fields: AsyncFields, *, schedule: str, runtime: str, has_momentum: bool, prefix: str = ""
) -> None:
    """Refuse settings that an asynchronous schedule lacks, and settings that only it has.

    Parameters
    ----------
    fields : AsyncFields
    schedule, runtime : str
    has_momentum : bool
        True if a local step depends on more than its own gradient.
    prefix : str
        Prefix of the options' names.

    Raises
    ------
    SettingsError
        Naming the setting.
    """
    if schedule != ASYNC:
        for name, default in ASYNC_DEFAULTS.items():
            value = getattr(fields, name)
            if value != default:
                raise SettingsError(
                    f"{prefix}{name}: got {value} with schedule {schedule}, expected none; take"
                    f" {prefix}schedule {ASYNC}"
                )
        return
    if fields.fetch_every is not None and fields.fetch_every % fields.push_every:
        raise SettingsError(
            f"{prefix}fetch_every: got {fields.fetch_every} with push_every {fields.push_every},"
            " expected a multiple of it; what was not pushed would be lost at a fetch"
        )
    strength = fields.delay_compensation
    if not math.isfinite(strength):
        raise SettingsError(f"{prefix}delay_compensation: got {strength}, expected a finite number")
    steps = max(fields.push_every, fields.fetch_every or 1)
    if strength and (steps > 1 or has_momentum):
        name = "push_every" if fields.push_every > 1 else "fetch_every"
        other = f"{name} above 1" if steps > 1 else "momentum"
        raise SettingsError(
            f"{prefix}delay_compensation: got {strength:g} with {other}, expected plain steps along"
            " one gradient, of fetched parameters; take push_every and fetch_every 1, and sgd"
            " without momentum"
        )
    if fields.trim_replicas and runtime == "serial":
        raise SettingsError(
            f"{prefix}trim_replicas: got it with runtime serial, whose replicas take turns; take"
            f" {prefix}runtime threads or processes"
        )
    if fields.servers > 1 and runtime == "serial":
        raise SettingsError(
            f"{prefix}servers: got {fields.servers} with runtime serial, whose replicas take turns,"
            f" expected 1; take {prefix}runtime threads or processes"
        )
    if fields.simulate_staleness is not None and runtime != "serial":
        raise SettingsError(
            f"{prefix}simulate_staleness: got {fields.simulate_staleness} with runtime {runtime},"
            f" where it is what it is; take {prefix}runtime serial"
        )
