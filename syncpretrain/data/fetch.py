"""Fetch published data sets, each file whole and checked or not at all.

The files go into the folder of ``SYNCPRETRAIN_DATA``, or into the user's cache folder.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from syncpretrain.data.array_formats import read_idx
from syncpretrain.data.catalogue import CATALOGUE, NamedData, RemoteFile
from syncpretrain.errors import DataError
from syncpretrain.storage import expanded, is_readable, write_atomically

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
FILE_SECONDS = 300.0
SET_SECONDS = 3600.0  # time for one file: the largest takes so long at 50 kB/s
MAX_BYTES = 1 << 25  # MNIST's biggest file is a third of it
CHUNK = 1 << 20
FAILURE_NAME = "download-failed"  # a file written at each failure: its age is the failure's
PAUSE_SECONDS = 24 * 3600.0
Fetching = Callable[[RemoteFile, int], object]


class FailedBeforeError(DataError):
    """A download that failed less than a day ago was not tried again."""


def named_data(name: str) -> NamedData:
    """Return the entry of a data set in the catalogue.

    Raises
    ------
    DataError
        If the catalogue has no such name; the message lists its names.
    """
    if name not in CATALOGUE:
        raise DataError(f"name: got {name!r}, expected one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def cache_folder() -> Path:
    """Return this library's folder in the user's cache; it need not exist.

    Raises
    ------
    DataError
        If the user's home folder is not known.
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
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "syncpretrain"
    return Path(pooch.os_cache("syncpretrain"))


def folder_of(named: NamedData) -> Path:
    """Return the folder of a data set, in ``SYNCPRETRAIN_DATA`` or in the user's cache.

    Raises
    ------
    DataError
        If the user's home folder is not known.
    """
    root = os.environ.get("SYNCPRETRAIN_DATA")
    folder = expanded(root) if root else cache_folder()
    if str(folder).startswith("~"):
        raise DataError(f"SYNCPRETRAIN_DATA is set to {root}, but no such home folder is known")
    return folder / named.name


def is_here(named: NamedData, folder: Path) -> bool:
    """Return whether all files of a data set are there; their sums are not checked."""
    names = [(file.name, file.name.removesuffix(".gz")) for file in named.files]
    places = [folder, folder.parent] if named.name == "mnist" else [folder]
    return any(all(any(is_readable(f / n) for n in own) for own in names) for f in places)


def check_file_of(named: NamedData, file: RemoteFile, folder: Path) -> Path:
    """Return the path of a data set's file, once its sum is found to be the published one.

    Raises
    ------
    DataError
        If the file is missing or has another sum; the message says how to fetch it.
    """
    path = folder / file.name
    again = f"fetch it with: syncpretrain data fetch {named.name}"
    if not is_readable(path):
        raise DataError(f"data: got {named.name}, but {path} is not there; {again}")
    try:
        _check_sum(path, file)
    except DataError as error:
        raise DataError(f"{error}; {again}") from error
    return path


def check_mirror(mirror: str | None) -> None:
    """Refuse a mirror that is no address.

    Raises
    ------
    DataError
    """
    if mirror is None:
        return
    parts = urlsplit(mirror)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DataError(f"mirror: got {mirror!r}, expected an address, such as https://HOST/FOLDER")


def fetch(
    named: NamedData, *, mirror: str | None = None, report: Fetching = lambda file, done: None
) -> list[RemoteFile]:
    """Fetch the files of a data set that are not in its folder yet, or damaged.

    Parameters
    ----------
    named : NamedData
    mirror : str, optional
        The address of a folder with all files, asked instead of the published ones.
    report : callable
        Called with a file and its number of bytes so far.

    Returns
    -------
    list of RemoteFile
        Files that were fetched.

    Raises
    ------
    DataError
        If ``SYNCPRETRAIN_OFFLINE`` is set, the folder cannot be written, pooch is missing, or no
        address sent the right bytes. Files fetched before the failure stay.
    """
    check_mirror(mirror)
    folder = folder_of(named)
    missing = [x for x in named.files if not passes(_check_sum, folder / x.name, file=x)]
    if missing:
        try:
            check_online()
            check_writable(folder)
        except DataError as error:
            raise DataError(f"name: {named.name} cannot be fetched: {error}") from error
    for file in missing:
        most, told = 2 * file.bytes, partial(report, file)
        get = partial(fetched, most=most, seconds=SET_SECONDS, report=told)
        urls, check = named.urls(file, mirror), partial(_check_sum, file=file)
        try:
            reasons = _stored(urls, folder / file.name, get, check)
        except ImportError as error:
            raise DataError(
                f"name: {named.name} cannot be fetched without pooch ({error}); pip install"
                ' "syncpretrain[digits]"'
            ) from error
        if reasons is not None:
            raise DataError(
                f"name: {named.name} could not be fetched: {file.name}: {'; '.join(reasons)}; try"
                f" another address with --mirror URL, or put the file into {folder}"
            )
    return missing


def _stored(
    urls: Sequence[str], path: Path, get: Callable[[str], bytes], check: Callable[[Path], object]
) -> list[str] | None:
    """Write a file from the first address that sends the right bytes.

    Return None, or the reason of each address if none did.

    Raises
    ------
    ImportError
        Without pooch.
    """
    reasons = []
    for url in urls:
        try:
            data = get(url)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data, check=check)
        except ImportError:
            raise
        except Exception as error:  # whatever the network does, there may be another address
            reason = str(error) if isinstance(error, DataError) else brief(error)
            reasons.append(f"{urlsplit(url).hostname}: {reason}")
        else:
            return None
    return reasons


def passes(check: Callable[..., object], path: Path, **sums: Any) -> bool:
    """Return whether a check of a file raises no error."""
    try:
        check(path, **sums)
    except DataError:
        return False
    return True


def _check_sum(path: Path, file: RemoteFile) -> None:
    """Refuse a file that has another sum than the published one.

    Raises
    ------
    DataError
    """
    if file.unpacked:
        read_idx(path, sha256=file.sha256)
        return
    digest = hashlib.sha256()
    try:
        with path.open("rb") as opened:
            while chunk := opened.read(CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if digest.hexdigest() != file.sha256:
        raise DataError(
            f"{file.name}: got SHA-256 {digest.hexdigest()}, expected {file.sha256}, the published"
            " one"
        )


def download(urls: Sequence[str], path: Path, *, sha256: str) -> None:
    """Fetch an IDX file from the first mirror that has it, and rename it into place.

    After a failure it is not tried again for a day, unless ``SYNCPRETRAIN_OFFLINE=0`` asks for it.

    Parameters
    ----------
    urls : sequence of str
        Addresses, each tried once.
    path : Path
        Path of the file; its folder is made. The file appears there once it is whole and checked.
    sha256 : str
        Sum of the unpacked bytes.

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
    try:
        reasons = _stored(urls, path, fetched, lambda written: read_idx(written, sha256=sha256))
    except ImportError as error:
        raise DataError("it cannot be downloaded without pooch") from error
    if reasons is None:
        failed.unlink(missing_ok=True)
        return
    with suppress(OSError):  # a full disk: then it is tried again, and nothing is lost
        failed.parent.mkdir(parents=True, exist_ok=True)
        failed.touch()
    raise DataError("the download failed") from DataError(f"{path.name}: {'; '.join(reasons)}")


def _is_recent(failed: Path) -> bool:
    """Return whether the file of the last failure exists and is less than a day old."""
    try:
        age = time.time() - failed.stat().st_mtime
    except OSError:
        return False
    return 0 <= age < PAUSE_SECONDS  # below 0 the clock was set back


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


def fetched(
    url: str,
    *,
    most: int = MAX_BYTES,
    seconds: float = FILE_SECONDS,
    report: Callable[[int], object] = lambda done: None,
) -> bytes:
    """Return the bytes at an address; wait at most 5 s to connect, 30 s for the next bytes.

    Parameters
    ----------
    url : str
    most, seconds : int and float
        Bytes and time after which the download is given up; the defaults suit MNIST's files.
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


class _Bounded(io.BytesIO):
    """A buffer that ends a download which never would: too long, or too slow."""

    def __init__(self, most: int, seconds: float, report: Callable[[int], object]) -> None:
        super().__init__()
        self._most, self._seconds = most, seconds
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


def brief(error: Exception) -> str:
    """Return the message of an error, or the name of its class if the message is long."""
    text = str(error)
    return text if 0 < len(text) <= 100 else type(error).__name__
