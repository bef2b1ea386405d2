"""Checkpoints of a run: write due ones, find the newest, delete old ones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from syncpretrain.array_files import read_arrays
from syncpretrain.errors import CheckpointError, ModelFileError
from syncpretrain.models.stack import Stack, load
from syncpretrain.observers.history import ErrorCurve, ErrorHistory
from syncpretrain.runs.folder import unwritten
from syncpretrain.runs.identity import RunIdentity, check_header, identity_from
from syncpretrain.settings import Settings
from syncpretrain.storage import remove_temporaries
from syncpretrain.workers.state import FINETUNE_STATE, FinetuneState, State, state_file_of

T = TypeVar("T")

CHECKPOINTS_NAME = "checkpoints"
MARKS_NAME = "updates"  # the folder of models by updates
REFUSED_SUFFIX = ".refused"  # added to the name of a checkpoint that is refused
PRETRAINED_NAME = "pretrained.safetensors"
IDENTITY_KEY, CURVES_KEY = "run", "curves"  # in the info of the pretrained stack


@dataclass(eq=False)
class Checkpoints:
    """Checkpoints of one run; this process owns the run folder.

    Parameters
    ----------
    out : Path
        The run folder; checkpoints lie in ``checkpoints/`` in it.
    settings : Settings
    identity : RunIdentity
        Written into each checkpoint, and compared when it is read.
    report : callable
        Called with a sentence that the user should read.
    """

    out: Path
    settings: Settings
    identity: RunIdentity
    report: Callable[[str], Any]

    def __post_init__(self) -> None:
        self._folder = self.out / CHECKPOINTS_NAME
        self._state_file = state_file_of(self.settings.pretrain)
        self._epochs, self._seconds = self.settings.run.interval()
        self._header: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.identity))
        self._last_time = time.monotonic()
        self._last_done: tuple[int, ...] = ()  # epochs of each layer at the newest checkpoint
        if self._folder.is_dir():
            remove_temporaries(self._folder)

    def save_pretraining(
        self, state: Callable[[], State], *, done: Sequence[int], final: bool
    ) -> None:
        """Write the state of pretraining, if a checkpoint is due or ``final``."""
        if final or self._is_due(done):
            self._write("pretrain", sum(done), self._state_file, state, done)

    def save_finetuning(
        self, state: Callable[[], FinetuneState], *, done: int, final: bool
    ) -> None:
        """Write the state of fine-tuning, if a checkpoint is due or ``final``."""
        if final or self._is_due([done]):
            self._write("finetune", done + 1, FINETUNE_STATE, state, [done])

    def save_mark(self, layer: int, update: int, stack: Stack) -> None:
        """Write a stack up to a layer as it was after some updates; it is never deleted."""
        path = self.out / MARKS_NAME / f"layer-{layer}-{update:08d}.safetensors"
        try:
            path.parent.mkdir(exist_ok=True)
            stack.save(path)
        except OSError as error:
            self.report(f"warning: {unwritten(path, error)}")

    def save_pretrained(self, stack: Stack) -> None:
        """Write the result of pretraining, and delete the checkpoints of pretraining.

        Checkpoints of fine-tuning belong to an earlier result that was lost: delete them too.
        """
        curves = stack.history.curves() if stack.history is not None else ()
        own = {IDENTITY_KEY: self._header, CURVES_KEY: msgspec.to_builtins(curves)}
        kept = replace(stack, info=stack.info | own)

        def write(path: Path) -> None:
            prune_checkpoints(self._folder, "finetune", 0)
            kept.save(path)

        self._write_file(self._folder / PRETRAINED_NAME, write, "pretrain", 0)
        self._last_done = ()

    def delete(self) -> None:
        """Delete the checkpoints of a run that is done, and the folder if nothing else is in it."""
        try:
            for stem in ("pretrain", "finetune"):
                prune_checkpoints(self._folder, stem, 0)
            (self._folder / PRETRAINED_NAME).unlink(missing_ok=True)
            if self._folder.is_dir():
                remove_temporaries(self._folder)
                if not any(self._folder.iterdir()):
                    self._folder.rmdir()
        except OSError as error:
            reason = f"{error.strerror}; the run is complete and does not need it"
            self.report(f"warning: {self._folder} could not be deleted: {reason}")

    def newest_pretrain_state(self) -> State | None:
        """Return the newest valid state of pretraining, None if there is none."""
        state: State | None = self._newest("pretrain", self._state_file)
        self._last_done = state.done if state is not None else ()
        return state

    def newest_finetune_state(self) -> FinetuneState | None:
        """Return the newest valid state of fine-tuning, None if there is none."""
        state: FinetuneState | None = self._newest("finetune", FINETUNE_STATE)
        self._last_done = (state.epoch - 1,) if state is not None else ()
        return state

    def pretrained(self) -> Stack | None:
        """Return the result of pretraining, None if it is not finished."""
        path = self._folder / PRETRAINED_NAME
        if not path.is_file():
            return None
        try:
            stack = load(path)
            info = dict(stack.info)
            check_header(info.pop(IDENTITY_KEY, {}), self.identity)
            curves = msgspec.convert(info.pop(CURVES_KEY, []), list[ErrorCurve])
            return replace(stack, info=info, history=ErrorHistory(curves) if curves else None)
        except (ModelFileError, CheckpointError, msgspec.ValidationError) as error:
            where = "" if str(error).startswith(str(path)) else f"{path}: "
            self.report(f"warning: {where}{error}; pretraining is repeated")
            return None

    def _is_due(self, done: Sequence[int]) -> bool:
        if self._seconds is not None:
            return time.monotonic() - self._last_time >= self._seconds
        before = self._last_done or (0,) * len(done)
        most = max(now - then for now, then in zip(done, before, strict=True))
        return most >= (self._epochs or 1)

    def _newest(self, stem: str, file: Any) -> Any:
        """Return the newest valid state of a kind of file, None if there is none."""
        read = partial(file.read, check=partial(check_header, now=self.identity))
        return newest_checkpoint(self._folder, stem, read, self.report)

    def _write(
        self, stem: str, number: int, file: Any, state: Callable[[], Any], done: Sequence[int]
    ) -> None:
        """Write a state in its kind of file."""
        path, keep = checkpoint_path(self._folder, stem, number), self.settings.run.keep
        if self._write_file(path, lambda own: file.write(own, state(), self._header), stem, keep):
            self._last_done = tuple(done)

    def _write_file(self, path: Path, write: Callable[[Path], Any], stem: str, keep: int) -> bool:
        """Write a file, then delete the checkpoints it replaces; report a failure."""
        self._last_time = time.monotonic()
        try:
            self._folder.mkdir(exist_ok=True)
            write(path)
            prune_checkpoints(self._folder, stem, keep)
        except OSError as error:
            reason = f"{error.strerror or error}; those before it are kept"
            self.report(f"warning: no checkpoint could be written to {path}: {reason}")
            return False
        self._last_time = time.monotonic()
        return True


def has_pretrained(folder: Path) -> bool:
    """Return whether a run folder still has the result of pretraining."""
    return (folder / CHECKPOINTS_NAME / PRETRAINED_NAME).is_file()


def checkpoint_path(folder: Path, stem: str, number: int) -> Path:
    """Return the file of a checkpoint; a higher number is a newer one."""
    return folder / f"{stem}-{number:08d}.safetensors"


def newest_checkpoint(
    folder: Path, stem: str, read: Callable[[Path], T], report: Callable[[str], Any]
) -> T | None:
    """Return the newest checkpoint that can be read, None if there is none.

    ``report`` is called with a sentence for each newer checkpoint that is refused. A refused file
    is renamed, so that :func:`prune_checkpoints` does not count it.
    """
    found = _checkpoints_in(folder, stem)
    for number, path in enumerate(reversed(found), start=1):
        try:
            return read(path)
        except CheckpointError as error:
            onward = "the one before it is used" if number < len(found) else "none is before it"
            report(f"warning: {error}; {onward}")
            _rename_refused(path, report)
    return None


def prune_checkpoints(folder: Path, stem: str, keep: int) -> None:
    """Delete all but the ``keep`` newest checkpoints; if ``keep`` is 0, also refused files."""
    found = _checkpoints_in(folder, stem)
    for path in found[: max(0, len(found) - keep)]:
        path.unlink(missing_ok=True)
    if keep == 0:
        for path in _checkpoints_in(folder, stem, REFUSED_SUFFIX):
            path.unlink(missing_ok=True)


def _rename_refused(path: Path, report: Callable[[str], Any]) -> None:
    try:
        path.replace(path.with_name(path.name + REFUSED_SUFFIX))
    except OSError as error:
        report(f"warning: {path} could not be renamed: {error.strerror}; delete it by hand")


def _checkpoints_in(folder: Path, stem: str, suffix: str = "") -> list[Path]:
    """Return the checkpoints, from the oldest to the newest."""
    pattern = re.compile(re.escape(stem) + r"-(\d{8,})\.safetensors" + re.escape(suffix))
    if not folder.is_dir():
        return []
    found = [(m, path) for path in folder.iterdir() if (m := pattern.fullmatch(path.name))]
    return [path for _, path in sorted((int(m[1]), path) for m, path in found)]


def checkpointed_identity(folder: Path, report: Callable[[str], Any]) -> RunIdentity | None:
    """Return the identity in a run's newest valid checkpoint, for a run without ``run.json``.

    None without a checkpoint.
    """
    saved = folder / CHECKPOINTS_NAME

    def read(path: Path) -> RunIdentity:
        return identity_from(read_arrays(path)[0].get("run", {}))

    with suppress(ModelFileError, CheckpointError):
        return identity_from(load(saved / PRETRAINED_NAME).info.get(IDENTITY_KEY, {}))
    return newest_checkpoint(saved, "pretrain", read, report)
