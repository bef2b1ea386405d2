"""The figures of a finished run, read from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from syncpretrain.errors import DataError

__all__ = ["Figures", "read_figures"]

ByPart = dict[str, float | None]


class _Layer(msgspec.Struct):
    layer: int
    shape: str
    reconstruction_error: ByPart
    mean_error: ByPart | None = None


class _Regression(msgspec.Struct):
    rmse: float
    r2: float | None = None


class _Data(msgspec.Struct):
    name: str
    train: int | None = None
    validation: int | None = None
    test: int | None = None


class Figures(msgspec.Struct):
    """The fields of ``metrics.json`` that the shelf and the report show; others are ignored."""

    reconstruction_error: ByPart
    seconds: dict[str, float]
    mean_error: ByPart | None = None
    accuracy: ByPart | None = None
    majority: ByPart | None = None
    regression_error: dict[str, _Regression | None] | None = None
    layers: list[_Layer] = []
    verdict: list[str] | None = None
    data: _Data | None = None
    parameters_sha256: str | None = None


def read_figures(path: Path) -> tuple[Figures, dict[str, Any]]:
    """Return the figures in ``metrics.json``, and all that it holds.

    Raises
    ------
    DataError
        If the file cannot be read, or is not of this form.
    """
    try:
        content = path.read_bytes()
        everything: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
        return msgspec.convert(everything, Figures), everything
    except OSError as error:
        raise DataError(f"{path}: cannot read it: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {error}") from None
