"""20 Newsgroups as counts of words: the messages of its archive, without their headers."""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.sparse_rows import SparseRows

__all__ = ["read_newsgroups", "vocabulary"]

COUNTED_WORDS = 2_000
MOST_DOCUMENTS = 0.3  # a word in more of them than this says little
WORD = re.compile(r"[a-z]{3,}")
PLACE = re.compile(r".*-(train|test)/([^/]+)/([^/]+)")


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
