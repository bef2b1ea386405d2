"""Catalogue of the published data sets: files, checksums, sources and licences.

The sets themselves are in ``catalogue.toml``.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class RemoteFile(msgspec.Struct, frozen=True):
    """One file of a data set.

    Attributes
    ----------
    name : str
        Name in the folder of the data set, and on a mirror.
    sha256 : str
        Sum of the file, or with ``unpacked`` of its unpacked bytes, since mirrors pack them
        differently.
    bytes : int
        Approximate size, for the progress and as a limit.
    url : str
        Address, if it does not end in the name.
    """

    name: str
    sha256: str
    bytes: int
    url: str = ""
    unpacked: bool = False


class NamedData(msgspec.Struct, frozen=True):
    """One published data set.

    Attributes
    ----------
    name : str
        Name that ``--data`` takes.
    kind : str
        Form of the files: ``idx``, ``cifar`` or ``newsgroups``.
    title : str
        A few words on the contents.
    files : tuple of RemoteFile
        For ``idx`` images and labels to train on, then images and labels to test with.
    addresses : tuple of str
        Folders on the network that have these files, each tried once.
    source, licence : str
        Address of the description, and terms of publication.
    held_out : int
        One of this number of training examples is held out for validation.
    axes : tuple of int
        Axes of an example that is an image.
    """

    name: str
    kind: str
    title: str
    files: tuple[RemoteFile, ...]
    addresses: tuple[str, ...]
    source: str
    licence: str
    held_out: int = 6
    axes: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    def urls(self, file: RemoteFile, mirror: str | None = None) -> list[str]:
        """Return the addresses of a file; if a ``mirror`` is given, its address there alone."""
        if mirror is not None:
            return [f"{mirror.rstrip('/')}/{file.name}"]
        return [file.url] if file.url else [f"{folder}{file.name}" for folder in self.addresses]


_WRITTEN = Path(__file__).with_suffix(".toml").read_bytes()
_SETS = msgspec.toml.decode(_WRITTEN, type=dict[str, tuple[NamedData, ...]])["data"]
CATALOGUE = {named.name: named for named in _SETS}
