"""The checkpoint of a call of ``pretrain``, from which the same call goes on to the same bits."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from syncpretrain.data.blocks import chunks
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import CheckpointError, SettingsError
from syncpretrain.pretraining.state_files import State, state_file_of
from syncpretrain.settings import ELSEWHERE, PretrainSettings

__all__ = ["SavedCall"]

STATE_NAME = "pretrain.safetensors"
SAVE_SECONDS = 60.0  # between two checkpoints


class SavedCall:
    """The folder of a call that may be stopped.

    Parameters
    ----------
    folder : path
        Is made where it is missing.
    settings : PretrainSettings
        With the values that followed from the data.
    X : Any
        What is trained on; of an iterable or a file only the shape is compared.

    Raises
    ------
    SettingsError
        If the folder cannot be made.
    """

    def __init__(self, folder: str | PathLike[str], settings: PretrainSettings, X: Any) -> None:
        self._file = state_file_of(settings)
        self.path = Path(folder) / STATE_NAME
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"resume: got {folder}, expected a folder ({error.strerror or error})"
            ) from error
        plain = msgspec.json.decode(msgspec.json.encode(settings))
        self._header = {
            "settings": {name: plain[name] for name in plain if name not in ELSEWHERE},
            "data": _data_record(X),
        }
        self._saved = time.monotonic()

    def newest(self) -> State | None:
        """Return the state that an earlier call left behind; None without one.

        Raises
        ------
        CheckpointError
            If it is damaged, or of another call.
        """
        if not self.path.is_file():
            return None
        state: State = self._file.read(self.path, self._check)
        return state

    def save(self, state: Callable[[], State], *, done: Any, final: bool) -> None:
        """Write the state, if it is time to, or at a stop; training goes on where that fails."""
        if not final and time.monotonic() - self._saved < SAVE_SECONDS:
            return
        self._saved = time.monotonic()
        try:
            self._file.write(self.path, state(), self._header)
        except OSError as error:
            reason = error.strerror or error
            warnings.warn(f"resume: {self.path} could not be written: {reason}", stacklevel=2)

    def delete(self) -> None:
        """Delete the state of a call that is done."""
        self.path.unlink(missing_ok=True)

    def _check(self, header: dict[str, Any]) -> None:
        was, now = header.get("settings", {}), self._header["settings"]
        differing = sorted(name for name in now if was.get(name) != now[name])
        if header.get("data") != self._header["data"]:
            differing.insert(0, "X")
        if differing:
            raise CheckpointError(
                f"is of another call, in which {differing[0]} was another; give what it was begun"
                " with, or another folder"
            )


def _data_record(X: Any) -> dict[str, Any]:
    """Return a record that identifies examples: JSON values."""
    if isinstance(X, SparseRows):
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(own).data for own in X.csr))
        return {"shape": list(X.shape), "sha256": digest.hexdigest()}
    if not isinstance(X, np.ndarray):
        return {"shape": list(getattr(X, "shape", ()))}
    digest = hashlib.sha256(X.dtype.str.encode())
    for rows in chunks(X.shape):
        digest.update(np.ascontiguousarray(X[rows]).data)
    return {"shape": list(X.shape), "sha256": digest.hexdigest()}
