"""Fetch a file into the user's cache folder, whole and checked or not at all."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from syncpretrain.data.idx import read_idx
from syncpretrain.errors import DataError
from syncpretrain.storage import write_atomically

__all__ = [
    "FailedBeforeError",
    "brief",
    "cache_folder",
    "check_online",
    "check_writable",
    "download",
    "fetched",
]

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
FILE_SECONDS = 300.0
MAX_BYTES = 1 << 25  # MNIST's biggest file is a third of it
FAILURE_NAME = "download-failed"  # a file whose age is that of the last failure
PAUSE_SECONDS = 24 * 3600.0


class FailedBeforeError(DataError):
    """A download that failed less than a day ago was not tried again."""


def cache_folder() -> Path:
    """Return this library's folder in the user's cache; it need not exist.

    Raises
    ------
    DataError
        If the user has no home that is known.
    """
    try:
        found = _cache_folder()
    except (RuntimeError, KeyError):
        found = Path()
    if not found.is_absolute():
        raise DataError(
            "the user's cache folder is not known, as there is no home folder; set HOME,"
            " XDG_CACHE_HOME or SYNCPRETRAIN_DATA to a folder"
        )
    return found


def _cache_folder() -> Path:
    try:
        import pooch
    except ImportError:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(root) / "syncpretrain"
    return Path(pooch.os_cache("syncpretrain"))


def download(urls: Sequence[str], path: Path, *, sha256: str) -> None:
    """Fetch an IDX file from the first mirror that has it, and rename it into place.

    After a failure it is not tried again for a day, unless ``SYNCPRETRAIN_OFFLINE=0`` asks for it.

    Parameters
    ----------
    urls : sequence of str
        Where to look, each tried once.
    path : Path
        Where the file goes; its folder is made. Never seen there before it is whole and checked.
    sha256 : str
        The sum of the unpacked bytes.

    Raises
    ------
    DataError
        If ``SYNCPRETRAIN_OFFLINE`` is set, pooch is missing, or no mirror sent the right file: in
        a few words, with the details as its cause.
    FailedBeforeError
        If it was not tried, because it failed less than a day ago.
    """
    offline = check_online()
    check_writable(path.parent)
    failed = path.parent / FAILURE_NAME
    if offline != "0" and _is_recent(failed):
        raise FailedBeforeError(
            "the download failed less than a day ago; SYNCPRETRAIN_OFFLINE=0 tries again"
        )
    reasons = []
    for url in urls:
        try:
            _place(_fetch(url), path, sha256=sha256)
        except ImportError as error:
            raise DataError("it cannot be downloaded without pooch") from error
        except Exception as error:  # whatever the network does, the caller has another source
            reasons.append(f"{urlsplit(url).hostname}: {brief(error)}")
        else:
            failed.unlink(missing_ok=True)
            return
    with suppress(OSError):  # a full disk: then it is tried again, and nothing is lost
        failed.parent.mkdir(parents=True, exist_ok=True)
        failed.touch()
    raise DataError("the download failed") from DataError(f"{path.name}: {'; '.join(reasons)}")


def check_online() -> str:
    """Return the value of ``SYNCPRETRAIN_OFFLINE``, unless it forbids downloads.

    Raises
    ------
    DataError
    """
    offline = os.environ.get("SYNCPRETRAIN_OFFLINE", "")
    if offline not in ("", "0"):
        raise DataError("SYNCPRETRAIN_OFFLINE is set")
    return offline


class _Bounded(io.BytesIO):
    """A buffer that ends a download which never would: too long, or too slow."""

    def __init__(
        self,
        most: int | None = None,
        seconds: float | None = None,
        report: Callable[[int], object] = lambda done: None,
    ) -> None:
        super().__init__()
        self._most = MAX_BYTES if most is None else most
        self._seconds = FILE_SECONDS if seconds is None else seconds
        self._deadline = time.monotonic() + self._seconds
        self._report = report

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if self.tell() + len(data) > self._most:
            raise OSError(f"more than {self._most:,} bytes were sent")
        if time.monotonic() > self._deadline:
            raise OSError(f"it took more than {self._seconds:g} s")
        written = super().write(data)
        self._report(self.tell())
        return written


def _fetch(url: str) -> bytes:
    return fetched(url)


def fetched(
    url: str,
    *,
    most: int | None = None,
    seconds: float | None = None,
    report: Callable[[int], object] = lambda done: None,
) -> bytes:
    """Return the bytes at an address. Waits at most 5 s to connect, 30 s for the next bytes.

    Parameters
    ----------
    url : str
    most, seconds : int and float, optional
        Bytes and time after which the download is given up; default those of MNIST's files.
    report : callable
        Called with the number of bytes so far.

    Raises
    ------
    ImportError
        Without pooch.
    OSError
        Whatever the network does, and if too much is sent, or too slowly.
    """
    import pooch

    # The downloader alone, without pooch's cache: that would log, and check the packed bytes.
    # Packed files are to come as they are, whatever a server knows of their packing.
    fetch = pooch.HTTPDownloader(
        timeout=(CONNECT_SECONDS, READ_SECONDS),
        chunk_size=1 << 16,
        headers={"Accept-Encoding": "identity"},
    )
    buffer = _Bounded(most, seconds, report)
    fetch(url, buffer, None)
    return buffer.getvalue()


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to, or made, before anything is fetched for it.

    Raises
    ------
    DataError
    """
    try:
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        good = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError:  # within a folder that cannot be read
        there, good = folder, False
    if not good:
        raise DataError(f"{there} cannot be written to; SYNCPRETRAIN_DATA names another folder")


def _is_recent(failed: Path) -> bool:
    """Return whether there is such a file, made within the last day."""
    try:
        age = time.time() - failed.stat().st_mtime
    except OSError:
        return False
    return 0 <= age < PAUSE_SECONDS  # below 0 the clock was set back


def _place(data: bytes, path: Path, *, sha256: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data, check=lambda written: read_idx(written, sha256=sha256))


def brief(error: Exception) -> str:
    """Return the message of an error, or where it runs to several lines the name of its class."""
    text = str(error)
    return text if 0 < len(text) <= 100 else type(error).__name__
