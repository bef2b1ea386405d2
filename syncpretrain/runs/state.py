"""State of a run, by the files in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from syncpretrain.runs.folder import METRICS_NAME
from syncpretrain.runs.lock import owner_of

__all__ = ["RunState", "state_of"]

KILLED = "its process left no reason: it was killed, or lost its machine"


class RunState(NamedTuple):
    """How a run ended, if it did.

    Attributes
    ----------
    name : str
        ``finished``, ``running``, ``stopped`` (by a signal, or its process is gone), ``failed`` or
        ``damaged``.
    reason : str
        Of a failed, stopped or damaged run; the owner of a running one, empty of a finished one.
    """

    name: str
    reason: str = ""


def state_of(folder: Path, stopped: tuple[bool, str] | None, damage: str = "") -> RunState:
    """Return the state of a run.

    Parameters
    ----------
    folder : Path
    stopped : tuple of bool and str, or None
        What the last event of the run says, if that is its end before its time: whether it failed,
        and the reason.
    damage : str
        Why the settings, or the figures of a finished run, cannot be read.
    """
    if not damage and (folder / METRICS_NAME).exists():
        return RunState("finished")
    owner = owner_of(folder)
    if owner is not None:  # damaged settings may be those that it is about to write
        return RunState("running", owner)
    if damage:
        return RunState("damaged", damage)
    if stopped is None:
        return RunState("stopped", KILLED)
    failed, reason = stopped
    return RunState("failed" if failed else "stopped", reason)
