"""The final files of a run, written elsewhere where the run folder no longer takes them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from syncpretrain.errors import SaveError

__all__ = ["FinalFiles"]


class FinalFiles:
    """Writes files into a run folder, or into a folder of last resort.

    Parameters
    ----------
    folder : Path
        That of the run.
    report : callable
        Called with a sentence that the user should read.

    Attributes
    ----------
    folder : Path
    elsewhere : Path or None
        The folder of last resort, once something was written there.
    """

    def __init__(self, folder: Path, report: Callable[[str], Any]) -> None:
        self.folder, self._report = folder, report
        self._reason = ""
        self.elsewhere: Path | None = None

    def write(self, name: str, write: Callable[[Path], Any]) -> Path:
        """Write a file by ``write(path)``; return where it is.

        Raises
        ------
        SaveError
            If it can be written neither into the run folder nor into the temporary one.
        """
        path = self.folder / name
        if self.elsewhere is None:  # or the folder would look complete, without those before
            try:
                write(path)
                return path
            except OSError as error:
                self._reason = f"{path} could not be written: {error.strerror or error}"
        reason = self._reason if self.elsewhere is None else f"{name} goes with it"
        try:
            if self.elsewhere is None:
                self.elsewhere = Path(tempfile.mkdtemp(prefix=f"syncpretrain-{self.folder.name}-"))
            write(self.elsewhere / name)
        except OSError as error:
            self._leave_empty()
            raise SaveError(
                f"{self._reason}; nor could it be kept in a temporary folder:"
                f" {error.strerror or error}. Its checkpoints are in {self.folder}: make room and"
                " go on with --resume"
            ) from error
        self._report(f"warning: {reason}; it is in {self.elsewhere / name}")
        return self.elsewhere / name

    def _leave_empty(self) -> None:
        """Remove the folder of last resort if it took nothing."""
        if self.elsewhere is not None and not any(self.elsewhere.iterdir()):
            self.elsewhere.rmdir()
            self.elsewhere = None

    def check(self) -> None:
        """Raise if the run folder lacks a file that is elsewhere now.

        Raises
        ------
        SaveError
            Saying where it is.
        """
        if self.elsewhere is not None:
            raise SaveError(
                f"{self._reason}. The run is complete, and what could not be written is in"
                f" {self.elsewhere}; make room, then move it there, or repeat the last steps with"
                f" --resume {self.folder}"
            )
