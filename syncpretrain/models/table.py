"""A stack as a table: a row a layer, and one for the head."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from syncpretrain.models.layer import Head, Layer
from syncpretrain.observers.errors import ErrorHistory

__all__ = ["html_table", "table_rows"]


def table_rows(
    layers: Sequence[Layer], head: Head | None, epochs: Sequence[int]
) -> list[tuple[str, ...]]:
    """Return the name, shape, kind of units, and model of each layer, and of the head."""
    rows: list[tuple[str, ...]] = []
    for number, layer in enumerate(layers, start=1):
        trained = f"{epochs[number - 1]} epochs" if number <= len(epochs) else ""
        units = f"{layer.visible_units} to {layer.hidden_units}"
        rows.append((f"layer {number}:", str(layer.shape), units, layer.model, trained))
    if head is not None:
        inputs, outputs = head.weight.shape
        rows.append(("head:", f"{inputs}-{outputs}", head.kind, "", ""))
    return rows


def html_table(
    caption: str, rows: Sequence[Sequence[str]], history: ErrorHistory | None = None
) -> str:
    """Return a table with a caption, for notebooks, and the last errors where they are known."""
    curves = [] if history is None else history.layers
    errors = [_error_text("error", curve.last) for curve in curves]
    if history is not None and history.finetune.last is not None:
        caption += _error_text("; error after fine-tuning", history.finetune.last)
    errors += [""] * (len(rows) - len(errors))
    cells = (
        "".join(f"<td>{escape(cell)}</td>" for cell in (*row, *([error] if any(errors) else [])))
        for row, error in zip(rows, errors, strict=True)
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><caption>{caption}</caption>{body}</table>"


def _error_text(name: str, error: float | None) -> str:
    return "" if error is None else f"{name} {error:.4g}"
