"""Files that appear whole or not at all: what a file system refuses, and what a kill leaves."""

import errno
import os
import stat
from itertools import product

import pytest
from folders import names_in

from syncpretrain.storage import remove_temporaries, write_atomically

NO_NAMELESS = "O_TMPFILE"


@pytest.fixture(params=["nameless", "named"])
def kind(request, monkeypatch):
    if request.param == "named":
        monkeypatch.delattr(os, NO_NAMELESS, raising=False)
    elif not hasattr(os, NO_NAMELESS):
        pytest.skip("no O_TMPFILE on this system")
    return request.param


@pytest.fixture(params=["new", "replaced"])
def path(request, tmp_path):
    target = tmp_path / "file"
    if request.param == "replaced":
        target.write_bytes(b"older")
    return target


def refuse_fsync(monkeypatch, number, *, of_folders):
    """Let fsync fail, of folders or of files; return the files that were flushed."""
    flushed, fsync = [], os.fsync

    def failing(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if is_folder == of_folders:
            raise OSError(number, os.strerror(number))
        fsync(descriptor)
        flushed.append(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    return flushed


@pytest.mark.parametrize("name", ["EINVAL", "ENOTSUP", "EOPNOTSUPP", "EBADF", "ENOSYS"])
def test_a_folder_that_cannot_be_flushed_is_no_failure(name, kind, path, monkeypatch):
    flushed = refuse_fsync(monkeypatch, getattr(errno, name), of_folders=True)
    write_atomically(path, b"content")
    assert path.read_bytes() == b"content"
    assert len(flushed) == 1, "the file itself"
    assert names_in(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("name", "of_folders"),
    [*product(["EIO", "ENOSPC"], [True, False]), ("EINVAL", False), ("ENOTSUP", False)],
)
def test_a_full_or_broken_disk_and_a_file_that_cannot_be_flushed_are(
    name, of_folders, kind, path, monkeypatch
):
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    refuse_fsync(monkeypatch, getattr(errno, name), of_folders=of_folders)
    with pytest.raises(OSError, match=os.strerror(getattr(errno, name))):
        write_atomically(path, b"content")
    assert of_folders or {p.name: p.read_bytes() for p in path.parent.iterdir()} == before


def test_a_folder_that_cannot_be_opened_is_no_failure(path, monkeypatch):
    opened = os.open

    def refusing(name, flags, *rest, **options):
        if flags == os.O_RDONLY:
            raise PermissionError(errno.EACCES, "Permission denied", str(name))
        return opened(name, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)
    write_atomically(path, b"content")
    assert path.read_bytes() == b"content"


class Killed(BaseException):
    """Stands for the end of the process: nothing is cleaned up."""


def test_a_file_that_is_replaced_has_no_second_name_while_it_is_written(tmp_path, monkeypatch):
    if not hasattr(os, NO_NAMELESS):
        pytest.skip("no O_TMPFILE on this system")
    seen, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(names_in(tmp_path)), fsync(fd)))
    for content in (b"first", b"second"):
        write_atomically(tmp_path / "file", content)
    assert seen == [[], ["file"], ["file"], ["file"]]
    assert (tmp_path / "file").read_bytes() == b"second"


def test_what_a_kill_leaves_is_removed_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.delattr(os, NO_NAMELESS, raising=False)
    kept = ["file", ".hidden", ".file.0123456789abcdef0", ".file.0123456789ABCDEF"]
    kept.append("a.0123456789abcdef")
    for name in kept:
        (tmp_path / name).write_bytes(b"kept")
    (tmp_path / ".folder.0123456789abcdef").mkdir()
    (tmp_path / ".link.0123456789abcdef").symlink_to(tmp_path / "file")
    kept += [".folder.0123456789abcdef", ".link.0123456789abcdef"]

    def die(descriptor):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", die)
        patched.setattr("pathlib.Path.unlink", lambda *a, **k: None)
        for name in ("file", "checkpoint-00000003.safetensors"):
            with pytest.raises(Killed):
                write_atomically(tmp_path / name, b"half")
    assert len(names_in(tmp_path)) == len(kept) + 2
    remove_temporaries(tmp_path)
    assert names_in(tmp_path) == sorted(kept)


def test_without_a_folder_there_is_nothing_to_remove(tmp_path):
    remove_temporaries(tmp_path / "none")
