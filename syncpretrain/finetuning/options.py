"""The settings of one fine-tuning, and what they leave open fixed for a machine and a stack."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from syncpretrain.backends.choice import resolve_backend
from syncpretrain.parallel.blas import blas_threads as resolve_threads
from syncpretrain.settings.convert import checked
from syncpretrain.settings.devices import check_tuning_backend, why_not_tuned_on_a_device
from syncpretrain.settings.finetuning import FinetuneSettings

__all__ = ["STEPPING", "TuningOptions", "shared_out", "tuning_options"]

STEPPING = ("adam", "sgd")  # the others search along lines
WORTH_SHARING = 10**7  # examples of a minibatch times weights: some tenths of a ms a step


class TuningOptions(FinetuneSettings, frozen=True, kw_only=True):
    """The settings of one call, checked together."""

    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    blas_threads: Annotated[int, msgspec.Meta(ge=1)] | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        FinetuneSettings.__post_init__(self)
        check_tuning_backend(self.backend, self)


def tuning_options(settings: FinetuneSettings | dict[str, Any], **others: Any) -> TuningOptions:
    """Return the options of a fine-tuning from its settings and others on top.

    Raises
    ------
    SettingsError
        If a value is wrong, or they do not go together.
    """
    plain = settings if isinstance(settings, dict) else msgspec.to_builtins(settings)
    return checked({**plain, **others}, TuningOptions)


def shared_out(options: TuningOptions, widths: Sequence[int]) -> tuple[TuningOptions, int]:
    """Return the options with all that they left open, and the BLAS threads of each replica.

    ``widths`` are the units of the input and of each layer of the stack.
    """
    replicas, shards = options.replicas, options.shards
    backend = resolve_backend(options.backend, why_not_tuned_on_a_device(options))
    if backend != "numpy":
        replicas = 1
    if replicas is None:
        threads = resolve_threads(options.blas_threads)
        work = options.batch_size * sum(below * above for below, above in pairwise(widths))
        if options.optimizer not in STEPPING or work < WORTH_SHARING:
            replicas = 1
        else:
            replicas, threads = min(threads, shards or threads), 1
    else:
        threads = options.blas_threads or 1
    shards = shards or replicas
    return (
        msgspec.structs.replace(options, replicas=replicas, shards=shards, backend=backend),
        threads,
    )
