"""Data sets, file readers, the split and the minibatch order.

:func:`load_dataset` loads a data set by its name, or a file by its path. NumPy and the packages
that carry data sets are imported on first use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from syncpretrain.data.catalogue import CATALOGUE
from syncpretrain.errors import DataError
from syncpretrain.storage import expanded

if TYPE_CHECKING:
    from syncpretrain.data.columns import Columns
    from syncpretrain.data.dataset import Dataset
    from syncpretrain.data.meaning import Meaning
    from syncpretrain.data.readers import KnownFile
    from syncpretrain.shapes import ImageShape

__all__ = ["DATASETS", "check_whole", "load_dataset", "located"]

DATASETS = ("mnist", "digits", *(name for name in CATALOGUE if name != "mnist"))
DIGIT_AXES = (8, 8)  # height and width of an example


def load_dataset(
    name: str | os.PathLike[str],
    *,
    validation: float | None = None,
    seed: int = 0,
    bounded: bool = True,
    mapped: bool = False,
    known: KnownFile | None = None,
    target: str | int | None = None,
    drop: str | Sequence[str] | None = (),
    task: str | None = None,
    test: str | float | os.PathLike[str] | None = None,
    unlabelled: str | os.PathLike[str] | None = None,
    weights: str | None = None,
    examples: int | None = None,
    encode: bool = False,
    columns: Columns | None = None,
    images: ImageShape | None = None,
    meaning: Meaning | None = None,
) -> Dataset:
    """Load a data set by name, or a file, and divide it into train, validation and test.

    Parameters
    ----------
    name : str or path
        ``mnist`` (784 pixels), ``digits`` (64 pixels), or ``fashion-mnist``, ``kmnist``,
        ``cifar10`` and ``20newsgroups``, which ``syncpretrain data fetch`` fetches; or a ``.npy``,
        ``.npz``, IDX, ``.csv``, ``.csv.gz``, ``.parquet`` or ``.fasta`` file of examples in rows,
        with values in [0, 1] or bytes, or a folder of images. A name goes before a file that is
        called the same.
    validation : float, optional
        The fraction of the training examples to validate with, at least 0 and below 1, stratified
        where there are labels. None takes the data set's own split, or a tenth.
    seed : int
        Seed of the split, not of the training: runs with different training seeds share their
        split.
    bounded : bool
        False permits a file's values outside [0, 1], which Gaussian units take.
    mapped : bool
        Leave the examples of a ``.npy`` file in the file, to be read a few rows at a time.
    known : KnownFile, optional
        Stamp and hash of a mapped file that was checked before; while the stamp is the same, the
        values are not checked again.
    target : str or int, optional
        The column of a table that holds the labels, by its name or its number, counted from 1, -1
        for the last one.
    drop : str or sequence of str, optional
        Columns to leave out; a text holds names between commas. With None errors do not advise to
        leave columns out so.
    task : str, optional
        ``classification`` or ``regression``; None takes texts, truth values and whole numbers for
        classes.
    test : float, str or path, optional
        A part to test with: a fraction of the examples, or another file.
    unlabelled : str or path, optional
        A file of more examples to train on, without labels.
    weights : str, optional
        The column of a table that holds the weights of its rows, by its name or its number.
    examples : int, optional
        Keep this number of the training examples, of each class its share.
    encode : bool
        Make categories of columns of text, with a value of 0 or 1 for each text.
    columns : Columns, optional
        Columns of an earlier data set; tables are read by their names.
    images : ImageShape, optional
        Shape of the images that the layers read. Examples with other axes are refused.
    meaning : Meaning, optional
        Meaning of the numbers of an earlier data set, such as ``stack.meaning``: files are read so
        that the same numbers mean the same thing.

    Raises
    ------
    DataError
        If there is neither such a data set nor such a file, or it cannot be trained on.
    """
    given = {"target": target, "drop": drop, "test": test, "unlabelled": unlabelled}
    given["weights"] = weights
    given = {option: value for option, value in given.items() if value not in (None, "", ())}
    from syncpretrain.data import readers

    named = None if target is None else str(target)
    options = bounded, named, _names(drop), task, encode, columns, images, meaning, weights
    wanted = readers.Wanted(*options, validation, seed)
    if name in DATASETS:
        from syncpretrain.data.named import load_published

        _check_axes(str(name), images)
        _refuse(given, f"{name}, which has labels and a test part of its own")
        data = load_published(str(name), wanted)
    else:
        share = readers.share_of(test)
        _check_there("data", name)
        _check_there("unlabelled", unlabelled)
        _check_there("test", None if share else test)
        if mapped and readers.is_mapped_file(name):
            _refuse(given, f"{name} with handoff minibatch, which leaves it on the disk")
            data = readers.load_mapped(name, wanted, known=known)
        else:
            data = readers.load_own(name, wanted, test=test, unlabelled=unlabelled)
    return data if examples is None else data.with_examples(examples, seed=seed)


def check_whole(name: str | None) -> None:
    """Refuse a data set that was asked for by its name if only a part of it is on this machine.

    Raises
    ------
    DataError
        Saying how to get all of it. :func:`load_dataset` checks other names.
    """
    if name == "mnist":
        from syncpretrain.data.named import check_mnist

        check_mnist()


def _check_axes(name: str, images: ImageShape | None) -> None:
    """Refuse a published data set if its examples have other axes than the layers' images."""
    from syncpretrain.data.images import check_image_shape

    axes = CATALOGUE[name].axes if name in CATALOGUE else DIGIT_AXES
    check_image_shape(axes, images, name)


def _refuse(given: dict[str, Any], what: str) -> None:
    """Refuse options of data that has no use for them."""
    for option, value in given.items():
        raise DataError(f"{option}: got {value!r} for {what}; leave it out")


def _names(drop: str | Sequence[str] | None) -> tuple[str, ...] | None:
    names = filter(None, drop.split(",")) if isinstance(drop, str) else drop
    return None if names is None else tuple(names)


def _check_there(option: str, name: str | float | os.PathLike[str] | None) -> None:
    """Refuse the path of a file that does not exist."""
    from syncpretrain.data.readers import FORMATS

    if name is not None and not (name and _exists(str(name))):  # "" is no folder
        expected = f"{', '.join(DATASETS)}, or " if option == "data" else ""
        raise DataError(
            f"{option}: got {str(name)!r}, which is neither a data set nor a file that exists;"
            f" expected {expected}the path of a file: {FORMATS}, or of a folder of images"
        )


def located(name: str) -> str:
    """Return a data set's name as it is, and a file's path in full, true from every folder."""
    return name if name in DATASETS or not name else str(expanded(name).resolve())


def _exists(name: str | os.PathLike[str]) -> bool:
    """Return whether there may be such a file; an unreadable one is for the reader to report."""
    try:
        expanded(name).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True
