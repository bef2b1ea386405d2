"""Load a published data set from its folder, divided as its authors divided it."""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import Dataset, from_rows, hold_out
from syncpretrain.data.examples import check_values
from syncpretrain.data.idx import read_idx
from syncpretrain.data.meaning import Meaning
from syncpretrain.data.named.catalogue import NamedData
from syncpretrain.data.named.fetch import check_file_of, folder_of, named_data
from syncpretrain.data.sparse_rows import SparseRows
from syncpretrain.errors import DataError

__all__ = ["load_named"]


COUNTED_WORDS = 2_000
MOST_DOCUMENTS = 0.3  # a word in more of them than this says little
WORD = re.compile(r"[a-z]{3,}")
PLACE = re.compile(r".*-(train|test)/([^/]+)/([^/]+)")
CIFAR_WIDTH = 3 * 32 * 32
CIFAR_PARTS = (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin")


class Divided(NamedTuple):
    """Examples with those to train on first, their labels, and how many those are."""

    X: Any
    labels: NDArray[np.int64]
    train: int


def load_named(
    name: str,
    *,
    validation: float | None = None,
    seed: int = 0,
    bounded: bool = True,
    meaning: Meaning | None = None,
) -> Dataset:
    """Load a data set of the catalogue; nothing is fetched.

    Parameters
    ----------
    name : str
    validation : float, optional
        The fraction of the training examples to validate with; None takes a sixth (as of MNIST), of
        CIFAR-10 a fifth, of 20 Newsgroups a tenth.
    seed : int
        Which examples are held out.
    bounded : bool
        False permits values outside [0, 1], such as counts.
    meaning : Meaning, optional
        That of the numbers of an earlier data set.

    Raises
    ------
    DataError
        If a file is missing, or not the published one; it says how to fetch it.
    """
    named = named_data(name)
    folder = folder_of(named)
    found = _READERS[named.kind](named, folder)
    check_values(found.X, name, bounded=bounded)
    rows = np.arange(len(found.X))
    train, held = hold_out(
        rows[: found.train],
        found.labels[: found.train],
        validation=validation,
        default=found.train // named.held_out,
        seed=seed,
    )
    source = f"{named.title}, in {folder}"
    parts = (train, held, rows[found.train :])
    return from_rows(name, found.X, found.labels, source=source, parts=parts, earlier=meaning)


def _idx_set(named: NamedData, folder: Path) -> Divided:
    arrays = [read_idx(check_file_of(named, file, folder)) for file in named.files]
    images, labels = arrays[::2], arrays[1::2]
    X = np.concatenate([image.reshape(len(image), -1) for image in images])
    return Divided(X, np.concatenate(labels).astype(np.int64), len(labels[0]))


def _cifar(named: NamedData, folder: Path) -> Divided:
    """Read records of a label and 3072 pixels: red, green, then blue ones, as convolutions do."""
    path = check_file_of(named, named.files[0], folder)
    found: dict[str, NDArray[np.uint8]] = {}
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
    return Divided(records[:, 1:], records[:, 0].astype(np.int64), count)


def _newsgroups(named: NamedData, folder: Path) -> Divided:
    return Divided(*read_newsgroups(check_file_of(named, named.files[0], folder)))


_READERS = {"idx": _idx_set, "cifar": _cifar, "newsgroups": _newsgroups}


def read_newsgroups(path: Path) -> tuple[SparseRows, NDArray[np.int64], int]:
    """Return the counts of words of all messages, their groups, and how many are to train on.

    The words are the 2,000 most frequent ones of the messages to train on that have three letters
    or more and are in at most 30 % of them. Headers are left out, since one of them names the
    group, and so are messages without any of these words.
    """
    messages: list[tuple[bool, str, str, Counter[str]]] = []
    with tarfile.open(path, "r:gz") as archive:
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
    rows = _rows((counts for *_, counts in kept), words)
    return rows, labels, sum(not is_test for is_test, *_ in kept)


def vocabulary(documents: Sequence[Counter[str]]) -> dict[str, int]:
    """Return the words to count, each with its column; the most frequent one first."""
    total: Counter[str] = Counter()
    present: Counter[str] = Counter()
    for counts in documents:
        total.update(counts)
        present.update(counts.keys())
    most = MOST_DOCUMENTS * len(documents)
    usual = [word for word in total if present[word] <= most]
    usual.sort(key=lambda word: (-total[word], word))
    return {word: column for column, word in enumerate(usual[:COUNTED_WORDS])}


def _rows(documents: Iterable[Counter[str]], words: dict[str, int]) -> SparseRows:
    data: list[int] = []
    indices: list[int] = []
    ends = [0]
    for counts in documents:
        own = sorted((words[word], n) for word, n in counts.items() if word in words)
        indices += [column for column, _ in own]
        data += [n for _, n in own]
        ends.append(len(data))
    return SparseRows(
        np.array(data, dtype=np.float32),
        np.array(indices, dtype=np.int32),
        np.array(ends, dtype=np.int64),
        len(words),
    )
