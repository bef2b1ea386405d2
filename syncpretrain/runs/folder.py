"""The folder of a run: the names of its files, its creation, its one owner, and its replacement.

The owner holds a lock that dies with its process. Final files that a full disk refuses go into a
temporary folder instead.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from syncpretrain.errors import SaveError, SettingsError

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]


CARD_NAME = "README.md"
COLUMNS_NAME = "columns.json"
CONFIG_NAME = "config.toml"
EVENTS_NAME = "events.jsonl"
IDENTITY_NAME = "run.json"
LOCK_NAME = "run.lock"
METRICS_NAME = "metrics.json"
TRACE_NAME = "trace.json"
UNSTARTED_FILES = {LOCK_NAME, IDENTITY_NAME}  # of a run that was killed before it had settings


def check_path_text(setting: str, path: Path | str) -> None:
    """Refuse a path that is no UTF-8 text, since no file of a run could name it.

    Raises
    ------
    SettingsError
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="backslashreplace").decode()
        advice = "whose bytes are no UTF-8 text; rename it, or take another"
        raise SettingsError(f"{setting}: got {shown}, {advice}") from None


def is_run_file(path: Path) -> bool:
    """Return whether a path names a file of a run that is in its folder."""
    from syncpretrain.models.model_file import MODEL_NAME  # a list of runs does without

    names = {CARD_NAME, COLUMNS_NAME, CONFIG_NAME, EVENTS_NAME, IDENTITY_NAME, METRICS_NAME}
    is_run = any((path.parent / name).is_file() for name in (IDENTITY_NAME, CONFIG_NAME))
    return is_run and path.name in names | {MODEL_NAME, TRACE_NAME}


def not_a_run(option: str, path: Path, *files: str) -> str:
    """Return the refusal of a path that is not the folder of a run with some files."""
    return f"{option}: got {path}, expected the folder of a run, with {' and '.join(files)} in it"


def unwritten(path: Path, error: OSError) -> str:
    """Return the words for a file that could not be written."""
    return f"{path} could not be written: {error.strerror or error}"


def check_folder(out: Path | None) -> None:
    """Refuse a path that cannot become the run folder, before time is spent on the data."""
    check_path_text("out", out or "")
    try:
        if out is not None and out.exists():
            if not out.is_dir():
                raise SettingsError(f"out: {out} is a file; name a new folder")
            if any(path.name not in UNSTARTED_FILES for path in out.iterdir()):
                raise SettingsError(f"out: {out} is not empty; name a new folder, to lose nothing")
    except OSError as error:
        raise write_refusal(out, error) from None


def make_folder(out: Path | None, layers: Sequence[int]) -> Path:
    """Make the folder, unless it is there and empty; None makes a new one in ``runs/``."""
    if out is None:
        return _make_new_folder(layers)
    try:
        out.mkdir(parents=True, exist_ok=True)
        check_folder(out)
    except OSError as error:
        raise write_refusal(out, error) from None
    return out


def _make_new_folder(layers: Sequence[int]) -> Path:
    """Make a folder in ``runs/`` that is named by date, time and layers."""
    shape = "-".join(map(str, layers)) if len(layers) < 8 else f"{len(layers) - 1}-layers"
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{shape}"
    for number in itertools.count(1):
        out = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        try:
            out.mkdir(parents=True)
        except FileExistsError:
            continue  # another run began in the same second
        except OSError as error:
            raise write_refusal(out, error) from None
        return out
    raise AssertionError  # numbers do not end


def write_refusal(out: Path | None, error: OSError) -> SettingsError:
    """Return the error for a folder that cannot be written to."""
    reason = error.strerror or str(error)
    return SettingsError(f"out: cannot write to {out}: {reason}; name another folder with --out")


class FinalFiles:
    """Writer of the final files: into the run folder, or into a temporary one if that fails.

    Parameters
    ----------
    folder : Path
        The run folder.
    report : callable
        Called with a sentence that the user should read.

    Attributes
    ----------
    folder : Path
    elsewhere : Path or None
        The temporary folder, once a file was written there.
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
        # Else the run folder would look complete without the files before.
        if self.elsewhere is None:
            try:
                write(path)
                return path
            except OSError as error:
                self._reason = unwritten(path, error)
        reason = self._reason if self.elsewhere is None else f"{name} goes with it"
        try:
            if self.elsewhere is None:
                self.elsewhere = Path(tempfile.mkdtemp(prefix=f"syncpretrain-{self.folder.name}-"))
            write(self.elsewhere / name)
        except OSError as error:
            if self.elsewhere is not None and not any(self.elsewhere.iterdir()):
                self.elsewhere.rmdir()
                self.elsewhere = None
            raise SaveError(
                f"{self._reason}; nor could it be kept in a temporary folder:"
                f" {error.strerror or error}. Its checkpoints are in {self.folder}: make room and"
                " go on with --resume"
            ) from error
        self._report(f"warning: {reason}; it is in {self.elsewhere / name}")
        return self.elsewhere / name

    def check(self) -> None:
        """Raise an error if a file of the run is in the temporary folder.

        Raises
        ------
        SaveError
            The message names the temporary folder.
        """
        if self.elsewhere is not None:
            raise SaveError(
                f"{self._reason}. The run is complete, and what could not be written is in"
                f" {self.elsewhere}; make room, then move it there, or repeat the last steps with"
                f" --resume {self.folder}"
            )


@contextmanager
def owned(folder: Path, report: Callable[[str], Any]) -> Iterator[None]:
    """Own a run folder as long as the context lasts; refuse it to other processes.

    The lock is the kernel's, on a file that names its owner. It ends with the process, however
    that ends; the file of a killed owner stays and is taken over. On a file system without locks
    the run goes on, and ``report`` is called with a warning.

    Raises
    ------
    SettingsError
        If another process owns the folder, which the message names, or the file cannot be
        written.
    """
    path = folder / LOCK_NAME
    descriptor = _locked(path, report)
    try:
        yield
    finally:
        try:
            path.unlink(missing_ok=True)  # still locked: no other process can own it yet
        except OSError as error:
            report(f"warning: {path} could not be removed: {error.strerror}; it may be deleted")
        os.close(descriptor)


def owner_of(folder: Path) -> str | None:
    """Return the name of the process that owns a run folder, None if there is none.

    The file of a killed owner is ignored. Where the system or the file system has no
    locks, the process that the file names is the owner as long as it lives on this machine.
    """
    path = folder / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    name = ""
    try:
        name = os.read(descriptor, 200).decode(errors="replace").strip()
        if _has_ended(name) or not _is_at(path, descriptor):
            return None
        if fcntl is None:
            return name
        # Shared, and only while the file names a live process: an owner that is just about to lock
        # it would be refused.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return name or "another process"
    except OSError:
        return name or None  # a file system without locks; a folder has no name
    finally:
        os.close(descriptor)
    return None


def _has_ended(name: str) -> bool:
    """Return whether a lock file names a process of this machine that has ended."""
    found = re.fullmatch(r"process (\d+) on (.+)", name)
    if found is None or found[2] != socket.gethostname():
        return False
    try:
        os.kill(int(found[1]), 0)
    except OSError as error:  # another one if it is a process of another user
        return isinstance(error, ProcessLookupError)
    return False


def _locked(path: Path, report: Callable[[str], Any]) -> int:
    """Return the descriptor of the lock file, locked and with our name in it."""
    name = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _lock_refusal(path, error) from None
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 200).decode(errors="replace").strip()
            os.close(descriptor)
            where = f"{owner or 'another process'}; wait for it, or stop it first"
            raise SettingsError(f"resume: the run in {path.parent} is at work in {where}") from None
        except OSError as error:
            advice = "take care that no second process resumes this run at the same time"
            report(f"warning: {path.parent} cannot be locked ({error.strerror}): {advice}")
        if not _is_at(path, descriptor):
            os.close(descriptor)  # its former owner has just removed it
            continue
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, name)
        except OSError as error:
            os.close(descriptor)
            raise _lock_refusal(path, error) from None
        return descriptor


def _lock_refusal(path: Path, error: OSError) -> SettingsError:
    advice = "make room or make it writable, or begin a new run with another --out"
    return SettingsError(f"cannot write to {path.parent}: {error.strerror}; {advice}")


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
