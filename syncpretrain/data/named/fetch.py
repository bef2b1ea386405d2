"""Fetch a published data set, each file whole and checked or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from syncpretrain.data.download import brief, cache_folder, check_online, check_writable, fetched
from syncpretrain.data.idx import read_idx
from syncpretrain.data.named.catalogue import CATALOGUE, NamedData, RemoteFile
from syncpretrain.errors import DataError
from syncpretrain.storage import expanded, is_readable, write_atomically

__all__ = ["check_file_of", "check_mirror", "fetch", "folder_of", "is_here", "named_data"]

SET_SECONDS = 3600.0  # of one file: the largest takes that long at 50 kB/s
CHUNK = 1 << 20

Fetching = Callable[[RemoteFile, int], object]


def named_data(name: str) -> NamedData:
    """Return the entry of a data set in the catalogue.

    Raises
    ------
    DataError
        If there is none of that name; it lists those there are.
    """
    if name not in CATALOGUE:
        raise DataError(f"name: got {name!r}, expected one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def folder_of(named: NamedData) -> Path:
    """Return the folder of a data set: in that of ``SYNCPRETRAIN_DATA``, or in the user's cache.

    Raises
    ------
    DataError
        If the user has no home that is known.
    """
    root = os.environ.get("SYNCPRETRAIN_DATA")
    folder = expanded(root) if root else cache_folder()
    if str(folder).startswith("~"):
        raise DataError(f"SYNCPRETRAIN_DATA is set to {root}, but no such home folder is known")
    return folder / named.name


def check_file_of(named: NamedData, file: RemoteFile, folder: Path) -> Path:
    """Return the path of a file of a data set, which is there and has the published sum.

    Raises
    ------
    DataError
        Saying how to fetch it.
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


def is_here(named: NamedData, folder: Path) -> bool:
    """Return whether all files of a data set are there; their sums are not looked at."""
    names = [(file.name, file.name.removesuffix(".gz")) for file in named.files]
    places = [folder, folder.parent] if named.name == "mnist" else [folder]
    return any(all(any(is_readable(f / n) for n in own) for own in names) for f in places)


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
        Those that were fetched.

    Raises
    ------
    DataError
        If ``SYNCPRETRAIN_OFFLINE`` is set, the folder cannot be written, pooch is missing, or no
        address sent the right bytes. Files that were fetched before that stay.
    """
    check_mirror(mirror)
    folder = folder_of(named)
    missing = [file for file in named.files if not _is_right(folder / file.name, file)]
    if missing:
        try:
            check_online()
            check_writable(folder)
        except DataError as error:
            raise DataError(f"name: {named.name} cannot be fetched: {error}") from error
    for file in missing:
        _fetch_file(named, file, folder / file.name, mirror, report)
    return missing


def _fetch_file(
    named: NamedData, file: RemoteFile, path: Path, mirror: str | None, report: Fetching
) -> None:
    reasons = []
    for url in named.urls(file, mirror):
        try:
            data = fetched(
                url,
                most=2 * file.bytes,
                seconds=SET_SECONDS,
                report=lambda done: report(file, done),
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data, check=lambda written: _check_sum(written, file))
        except ImportError as error:
            raise DataError(
                f"name: {named.name} cannot be fetched without pooch ({error}); pip install"
                ' "syncpretrain[digits]"'
            ) from error
        except Exception as error:  # whatever the network does, there may be another address
            reason = str(error) if isinstance(error, DataError) else brief(error)
            reasons.append(f"{urlsplit(url).hostname}: {reason}")
        else:
            return
    raise DataError(
        f"name: {named.name} could not be fetched: {file.name}: {'; '.join(reasons)}; try another"
        f" address with --mirror URL, or put the file into {path.parent}"
    )


def _is_right(path: Path, file: RemoteFile) -> bool:
    try:
        _check_sum(path, file)
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
