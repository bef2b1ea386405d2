"""Data sets, file readers, the split and the minibatch order.

:func:`load_dataset` loads a data set by its name, or a file by its path. NumPy and the packages
that carry data sets are imported on first use.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from syncpretrain.errors import DataError

if TYPE_CHECKING:
    from syncpretrain.data.dataset import Dataset
    from syncpretrain.data.mapped_file import KnownFile

__all__ = ["DATASETS", "load_dataset", "located"]

DATASETS = ("mnist", "digits")


def load_dataset(
    name: str | os.PathLike[str],
    *,
    validation: float | None = None,
    seed: int = 0,
    bounded: bool = True,
    mapped: bool = False,
    known: KnownFile | None = None,
) -> Dataset:
    """Load a data set by name, or a file, and divide it into train, validation and test.

    Parameters
    ----------
    name : str or path
        ``mnist`` (784 pixels), ``digits`` (64 pixels), or a ``.npy``, ``.npz``, IDX (gzipped or
        not) or ``.csv`` file of examples in rows, with values in [0, 1] or bytes. A name goes
        before a file that is called the same.
    validation : float, optional
        The fraction of the training examples to validate with, at least 0 and below 1, stratified
        where there are labels. None takes the data set's own split, or a tenth.
    seed : int
        Which examples are held out. It is not the training seed: runs of different training seeds
        share their split.
    bounded : bool
        False permits a file's values outside [0, 1], which Gaussian units take.
    mapped : bool
        Leave the examples of a ``.npy`` file in the file, for what asks for some at a time.
    known : KnownFile, optional
        Such a file that was checked before: if it has not been written to since, it is not read
        again for that.

    Raises
    ------
    DataError
        If there is neither such a data set nor such a file, or it cannot be trained on.
    """
    if name == "mnist":
        from syncpretrain.data.mnist import load_mnist

        return load_mnist(validation=validation, seed=seed)
    if name == "digits":
        from syncpretrain.data.mnist import load_digits

        return load_digits(validation=validation, seed=seed)
    from syncpretrain.data.mapped_file import is_mapped_file, load_mapped
    from syncpretrain.data.readers import FORMATS, load_file

    if not _exists(name):
        raise DataError(
            f"data: got {os.fspath(name)!r}, which is neither a data set nor a file that exists;"
            f" expected {', '.join(DATASETS)}, or the path of a file: {FORMATS}"
        )
    if mapped and is_mapped_file(name):
        return load_mapped(name, validation=validation, seed=seed, bounded=bounded, known=known)
    return load_file(name, validation=validation, seed=seed, bounded=bounded)


def located(name: str) -> str:
    """Return a data set's name as it is, and a file's path in full, true from every folder."""
    return name if name in DATASETS else str(Path(name).expanduser().resolve())


def _exists(name: str | os.PathLike[str]) -> bool:
    """Return whether there may be such a file; an unreadable one is for the reader to report."""
    try:
        Path(name).expanduser().stat()
    except (FileNotFoundError, NotADirectoryError, ValueError, RuntimeError):
        return False
    except OSError:
        return True
    return True
