"""When checkpoints are written, and how a run finds its own again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from syncpretrain import checkpoint
from syncpretrain.cut import Cut
from syncpretrain.cutfile import read_cut, write_cut
from syncpretrain.data.dataset import Dataset
from syncpretrain.data.examples import evenly_spaced
from syncpretrain.errors import ModelFileError
from syncpretrain.finetuning.state import FinetuneState, read_state, write_state
from syncpretrain.modelfile import read_stack, write_stack
from syncpretrain.settings import Settings
from syncpretrain.stack import Stack

__all__ = ["FOLDER_NAME", "Checkpoints"]

FOLDER_NAME = "checkpoints"
PRETRAINED_NAME = "pretrained.safetensors"
FINGERPRINT_ROWS = 1000  # of each part
ELSEWHERE = ("runtime", "workers", "backend")  # a run may go on with others


class Checkpoints:
    """The checkpoints of one run.

    Parameters
    ----------
    folder : Path
        That of the run; they lie in ``checkpoints/`` in it.
    settings : Settings
    data : Dataset
    tell : callable
        Given a sentence that the user should read.
    """

    def __init__(
        self, folder: Path, settings: Settings, data: Dataset, tell: Callable[[str], Any]
    ) -> None:
        self._folder = folder / FOLDER_NAME
        self._tell = tell
        self._keep = settings.run.keep
        self._epochs, self._seconds = settings.run.interval()
        self._identity = _identity(settings, data)
        self._last_time = time.monotonic()
        self._last_epoch = 0

    def save_cut(self, make: Callable[[], Cut], *, final: bool) -> None:
        """Write where pretraining stands, if it is time to, or at a stop."""
        if final or self._is_due(lambda: make().past.done[0]):
            cut = make()
            self._write("pretrain", sum(cut.past.done), lambda path: self._write_cut(path, cut))
            self._last_epoch = cut.past.done[0]

    def save_finetuning(self, make: Callable[[], FinetuneState], final: bool) -> None:
        """Write where fine-tuning stands, if it is time to, or at a stop."""
        if final or self._is_due(lambda: make().epoch - 1):
            state = make()
            self._write(
                "finetune", state.epoch, lambda path: write_state(path, state, self._identity)
            )
            self._last_epoch = state.epoch - 1

    def save_pretrained(self, stack: Stack) -> None:
        """Write what pretraining came to; its own checkpoints are needed no more."""
        self._folder.mkdir(exist_ok=True)
        write_stack(stack, self._folder / PRETRAINED_NAME)
        checkpoint.prune(self._folder, "pretrain", 0)
        self._last_time, self._last_epoch = time.monotonic(), 0

    def forget(self) -> None:
        """Delete the checkpoints of a run that is done."""
        for stem in ("pretrain", "finetune"):
            checkpoint.prune(self._folder, stem, 0)
        (self._folder / PRETRAINED_NAME).unlink(missing_ok=True)
        if self._folder.is_dir():
            self._folder.rmdir()

    def newest_cut(self) -> Cut | None:
        """Return the newest good cut, None if there is none."""

        def read(path: Path) -> Cut:
            return read_cut(path, {"pretrain": self._identity["pretrain"], **self._data()})

        return checkpoint.newest(self._folder, "pretrain", read, self._tell)

    def newest_finetuning(self) -> FinetuneState | None:
        """Return the newest good state of fine-tuning, None if there is none."""

        def read(path: Path) -> FinetuneState:
            return read_state(path, self._identity)

        return checkpoint.newest(self._folder, "finetune", read, self._tell)

    def pretrained(self) -> Stack | None:
        """Return what pretraining came to, None if it is not over."""
        path = self._folder / PRETRAINED_NAME
        if not path.is_file():
            return None
        try:
            return read_stack(path)
        except ModelFileError as error:
            self._tell(f"warning: {error}; pretraining is repeated")
            return None

    def _data(self) -> dict[str, Any]:
        return {"data": self._identity["data"]}

    def _write_cut(self, path: Path, cut: Cut) -> None:
        write_cut(path, cut, {"pretrain": self._identity["pretrain"], **self._data()})

    def _is_due(self, epoch: Callable[[], int]) -> bool:
        if self._seconds is not None:
            return time.monotonic() - self._last_time >= self._seconds
        return epoch() - self._last_epoch >= (self._epochs or 1)

    def _write(self, stem: str, number: int, write: Callable[[Path], Any]) -> None:
        path = checkpoint.numbered(self._folder, stem, number)
        try:
            self._folder.mkdir(exist_ok=True)
            write(path)
            checkpoint.prune(self._folder, stem, self._keep)
        except OSError as error:
            self._tell(
                f"warning: no checkpoint could be written to {path}:"
                f" {error.strerror or error}; those before it are kept"
            )
        self._last_time = time.monotonic()


def _identity(settings: Settings, data: Dataset) -> dict[str, Any]:
    """Return what must be the same for a run to go on to the same bits."""
    sections = msgspec.to_builtins(settings)
    pretrain = {k: v for k, v in sections["pretrain"].items() if k not in ELSEWHERE}
    digest = hashlib.sha256()
    for part in (data.train, data.validation):
        digest.update(str(part.shape).encode())
        digest.update(np.ascontiguousarray(evenly_spaced(part, FINGERPRINT_ROWS)).data)
    identity = {
        "pretrain": pretrain,
        "finetune": sections["finetune"],
        "labels": sections["data"]["labels"],
        "data": digest.hexdigest(),
    }
    # as it comes back from a file
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(identity))
    return plain
