"""Classifiers of scikit-learn that ``compare`` measures too: what users would try first.

Each has scikit-learn's own defaults, on the columns as they are where all values are in [0, 1],
else standardized; a missing value is replaced by the mean of its column. Label spreading learns
from the rows without labels too (Zhou et al. 2004), by the 7 nearest neighbours of each row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.blocks import StoredRows
from syncpretrain.data.dataset import Dataset, is_labelled
from syncpretrain.errors import SettingsError

__all__ = ["BASELINES", "Measured", "check_baselines", "measured"]

Measured = tuple[dict[str, float | None], float]  # shares of wrong classes by part, and seconds


def _svc(seed: int) -> Any:
    from sklearn.svm import SVC

    return SVC()


def _extra_trees(seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(random_state=seed, n_jobs=-1)


def _label_spreading(seed: int) -> Any:
    from sklearn.semi_supervised import LabelSpreading

    return LabelSpreading(kernel="knn")


BASELINES: dict[str, Callable[[int], Any]] = {
    "svc": _svc,
    "extra-trees": _extra_trees,
    "spreading": _label_spreading,
}
UNLABELLED_TOO = ("spreading",)


def check_baselines(names: tuple[str, ...], data: Dataset, objective: str) -> None:
    """Refuse baselines that cannot be measured.

    Raises
    ------
    SettingsError
        If a name is unknown, scikit-learn is missing, the comparison is not by classification, or
        the rows are not all in memory.
    """
    if not names:
        return
    for name in names:
        if name not in BASELINES:
            raise SettingsError(f"baselines: got {name!r}, expected some of {', '.join(BASELINES)}")
    if objective != "classification":
        raise SettingsError(
            f"baselines: got {', '.join(names)} with {objective}, expected classification"
        )
    if isinstance(data.train, StoredRows):
        raise SettingsError(
            "baselines: got rows that are sparse or in a file, expected rows in memory, as"
            " scikit-learn's classifiers read them; leave the baselines out"
        )
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise SettingsError(
            "baselines: scikit-learn is missing; pip install 'syncpretrain[sklearn]'"
        ) from None


def measured(name: str, data: Dataset, *, seed: int) -> Measured:
    """Return a baseline's shares of wrong classes on each part, and the seconds of its fit.

    ``data`` has -1, None or NaN for a training row without a label.
    """
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    y = data.targets("train")
    assert y is not None
    X, labelled = np.asarray(data.train), is_labelled(y)
    is_scaled = bool(np.nanmin(X) >= 0 and np.nanmax(X) <= 1)
    scaler = "passthrough" if is_scaled else StandardScaler()
    model = make_pipeline(SimpleImputer(), scaler, BASELINES[name](seed))
    classes, codes = np.unique(y[labelled], return_inverse=True)
    targets = np.full(len(y), -1)
    targets[labelled] = codes
    began = time.monotonic()
    # Label spreading divides by 0 at rows whose neighbours reach no label; it guesses there.
    with np.errstate(invalid="ignore"):
        if name in UNLABELLED_TOO:
            model.fit(X, targets)
        else:
            model.fit(X[labelled], codes)
        seconds = time.monotonic() - began
        errors = {part: _error(model, classes, data, part) for part in ("validation", "test")}
    return errors, seconds


def _error(model: Any, classes: NDArray[Any], data: Dataset, part: str) -> float | None:
    """Return the share of wrong classes on a part's labelled rows; None if it has none."""
    labels = data.targets(part)
    if labels is None or not is_labelled(labels).any():
        return None
    rows = is_labelled(labels)
    found = classes[model.predict(np.asarray(getattr(data, part))[rows])]
    return float((found != labels[rows]).mean())
