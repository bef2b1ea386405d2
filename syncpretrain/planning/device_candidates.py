"""Ways to train a stack on GPUs, with their settings. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from syncpretrain.pretraining.schedule.kinds import SCHEDULES

__all__ = ["candidates_on_devices"]


def candidates_on_devices(
    backend: str, *, depth: int, gpus: int, delay: float | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and settings, the simplest first: layers in turn, at a time, and in shards.

    With a ``delay``, that of streams, these are among them; a stream has no shards.
    """
    kinds = {name: kind for name, kind in SCHEDULES.items() if kind.candidate is not None}
    workers = {name: 1 if kind.one_at_a_time else depth for name, kind in kinds.items()}
    own = {
        name: {"schedule": name, "backend": backend, "workers": workers[name]}
        for name, kind in kinds.items()
        if kind.one_at_a_time or depth > 1
    }
    for name, options in own.items():
        yield str(kinds[name].candidate), options
    for name, options in own.items() if gpus > 1 else ():
        yield f"{kinds[name].shared_candidate}, examples split", {**options, "split": "examples"}
    for name, kind in kinds.items() if delay is not None else ():
        if kind.can_stream:
            streamed = {"handoff": "minibatch", "delay": delay, "workers": depth}
            yield "streamed", {"schedule": name, "backend": backend, **streamed}
