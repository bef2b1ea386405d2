"""A stack as a table: a row a layer, and one for the head."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from syncpretrain.models.layer import Head, Layer
from syncpretrain.observers.errors import ErrorHistory

__all__ = ["Described"]


class Described:
    """What a stack looks like at a prompt, and in a notebook."""

    layers: tuple[Layer, ...]
    info: dict[str, Any]
    head: Head | None
    history: ErrorHistory | None

    def __repr__(self) -> str:
        """Return one line a layer, without the weights."""
        rows = (" ".join(row).rstrip() for row in self._rows())
        return "\n".join([f"Stack of {len(self.layers)} layers", *(f"  {row}" for row in rows)])

    def _repr_html_(self) -> str:
        """Return the same as a table, for notebooks."""
        return html_table(f"Stack of {len(self.layers)} layers", self._rows(), self.history)

    def _rows(self) -> list[tuple[str, ...]]:
        return table_rows(self.layers, self.head, self.info.get("epochs", []))


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
