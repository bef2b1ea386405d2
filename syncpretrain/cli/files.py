"""Checks of the files that a command is to write, before it works for them."""

from __future__ import annotations

import os
from pathlib import Path

from syncpretrain.errors import SettingsError
from syncpretrain.models.model_file import MODEL_NAME
from syncpretrain.runs.folder import (
    CARD_NAME,
    COLUMNS_NAME,
    CONFIG_NAME,
    EVENTS_NAME,
    IDENTITY_NAME,
    METRICS_NAME,
    TRACE_NAME,
)
from syncpretrain.storage import expanded

__all__ = ["check_target"]

SIGNS_OF_A_RUN = (IDENTITY_NAME, CONFIG_NAME)
OF_A_RUN = {*SIGNS_OF_A_RUN, CARD_NAME, COLUMNS_NAME, EVENTS_NAME}
OF_A_RUN |= {METRICS_NAME, MODEL_NAME, TRACE_NAME}


def check_target(path: Path, *read: Path | str | None) -> None:
    """Refuse a file that cannot be written, or that would take the place of one that is needed.

    Parameters
    ----------
    path : Path
    *read : Path, str or None
        What the command reads; names of data sets and None do not matter.

    Raises
    ------
    SettingsError
        Saying why.
    """
    if path.is_dir():
        raise SettingsError(f"out: {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise SettingsError(f"out: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise SettingsError(f"out: cannot write to the folder {path.parent}")
    if not path.exists():
        return
    if path.name in OF_A_RUN and any((path.parent / name).is_file() for name in SIGNS_OF_A_RUN):
        raise SettingsError(f"out: {path} is a file of the run in {path.parent}; name another file")
    for other in (expanded(name) for name in read if name is not None):
        if other.is_file() and other.samefile(path):
            raise SettingsError(f"out: {path} is a file that is read; name another one")
