"""Settings of asynchronous training, which pretraining and fine-tuning have in common."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

from syncpretrain.errors import SettingsError
from syncpretrain.pretraining.schedule.names import ASYNC

__all__ = ["AsyncFields", "check_async"]

MOST = 1_000_000  # minibatches; more is a slip of the keyboard

Steps = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Staleness = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


class AsyncFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How replicas and the parameter server of an asynchronous schedule go together.

    Attributes
    ----------
    push_every : int
        Local steps after which a replica pushes the change that they made.
    fetch_every : int or None
        Local steps after which it fetches the parameters; None for as often as it pushes.
    async_rate : str
        ``staleness`` divides a change by its staleness, the number of changes that the server took
        since the replica fetched (Zhang, Gupta et al. 2016); ``constant`` takes it whole.
    delay_compensation : float
        lambda_0 of the compensation for the delay (Zheng et al. 2017), 0 for none.
    max_staleness : int or None
        A replica whose change is staler fetches anew, and repeats its steps.
    simulate_staleness : int or None
        With runtime ``serial``: every change is applied this number of changes late.
    trim_replicas : bool
        Whether replicas that train no more minibatches a second, as the run begins, are stopped.
    """

    push_every: Steps = 1
    fetch_every: Steps | None = None
    async_rate: Literal["staleness", "constant"] = "staleness"
    delay_compensation: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    max_staleness: Staleness | None = None
    simulate_staleness: Staleness | None = None
    trim_replicas: bool = False


def check_async(
    fields: AsyncFields, *, schedule: str, runtime: str, has_momentum: bool, prefix: str = ""
) -> None:
    """Refuse what an asynchronous schedule does not have, and what it alone has.

    Parameters
    ----------
    fields : AsyncFields
    schedule, runtime : str
    has_momentum : bool
        Whether a local step depends on others than its own gradient.
    prefix : str
        Of the names of the options.

    Raises
    ------
    SettingsError
        Naming the setting.
    """
    defaults = AsyncFields()
    if schedule != ASYNC:
        for name in AsyncFields.__struct_fields__:
            value = getattr(fields, name)
            if value != getattr(defaults, name):
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
    if strength and (fields.push_every > 1 or has_momentum):
        other = "push_every above 1" if fields.push_every > 1 else "momentum"
        raise SettingsError(
            f"{prefix}delay_compensation: got {strength:g} with {other}, expected plain steps along"
            " one gradient; take push_every 1, and sgd without momentum"
        )
    if fields.trim_replicas and runtime == "serial":
        raise SettingsError(
            f"{prefix}trim_replicas: got it with runtime serial, whose replicas take turns; take"
            f" {prefix}runtime threads or processes"
        )
    if fields.simulate_staleness is not None and runtime != "serial":
        raise SettingsError(
            f"{prefix}simulate_staleness: got {fields.simulate_staleness} with runtime {runtime},"
            f" where it is what it is; take {prefix}runtime serial"
        )
