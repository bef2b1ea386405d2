"""Files of columns: those of a run's table, as JSON beside its settings."""

from __future__ import annotations

from pathlib import Path

import msgspec

from syncpretrain.data.columns import Columns
from syncpretrain.errors import DataError
from syncpretrain.storage import write_atomically

__all__ = ["read_columns", "write_columns"]


def write_columns(columns: Columns, path: Path) -> None:
    """Write columns as JSON, the file whole or not at all.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    write_atomically(path, msgspec.json.format(msgspec.json.encode(columns), indent=2) + b"\n")


def read_columns(path: Path) -> Columns | None:
    """Return the columns in a file; None where there is no such file.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Columns)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); put it back, or begin a new run"
        ) from error
