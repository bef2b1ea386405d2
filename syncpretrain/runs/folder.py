"""The folder of a run: the names of its files, and its creation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from syncpretrain.errors import SettingsError
from syncpretrain.runs.lock import LOCK_NAME

__all__ = [
    "CARD_NAME",
    "COLUMNS_NAME",
    "CONFIG_NAME",
    "EVENTS_NAME",
    "IDENTITY_NAME",
    "METRICS_NAME",
    "TRACE_NAME",
    "check_folder",
    "check_text",
    "made_folder",
    "new_folder",
    "not_written",
]

CARD_NAME = "README.md"
COLUMNS_NAME = "columns.json"
CONFIG_NAME = "config.toml"
EVENTS_NAME = "events.jsonl"
IDENTITY_NAME = "run.json"
METRICS_NAME = "metrics.json"
TRACE_NAME = "trace.json"
OF_NO_RUN = {LOCK_NAME, IDENTITY_NAME}  # of a run that was killed before it had settings


def check_text(setting: str, path: Path | str) -> None:
    """Refuse a path whose bytes are no UTF-8, which no file of a run could name.

    Raises
    ------
    SettingsError
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise SettingsError(
            f"{setting}: got {shown}, whose bytes are no UTF-8 text; rename it, or take another"
        ) from None


def check_folder(out: Path | None) -> None:
    """Refuse what cannot become the run folder before time is spent on the data."""
    check_text("out", out or "")
    try:
        if out is not None and out.exists():
            if not out.is_dir():
                raise SettingsError(f"out: {out} is a file; name a new folder")
            if any(path.name not in OF_NO_RUN for path in out.iterdir()):
                raise SettingsError(f"out: {out} is not empty; name a new folder, to lose nothing")
    except OSError as error:
        raise not_written(out, error) from None


def made_folder(out: Path) -> Path:
    """Make the folder, unless it is there and empty."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        check_folder(out)
    except OSError as error:
        raise not_written(out, error) from None
    return out


def new_folder(layers: Sequence[int]) -> Path:
    """Make a folder in ``runs/`` that is named by date, time and layers."""
    shape = "-".join(map(str, layers)) if len(layers) < 8 else f"{len(layers) - 1}-layers"
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{shape}"
    for number in itertools.count(1):
        out = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        try:
            out.mkdir(parents=True)
        except FileExistsError:
            continue  # of a run that began in the same second
        except OSError as error:
            raise not_written(out, error) from None
        return out
    raise AssertionError  # numbers do not end


def not_written(out: Path | None, error: OSError) -> SettingsError:
    """Return the refusal of a folder that cannot be written to."""
    reason = error.strerror or str(error)
    return SettingsError(f"out: cannot write to {out}: {reason}; name another folder with --out")
