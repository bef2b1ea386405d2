"""A stack as a table: a row a layer, and one for the head."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from syncpretrain.models.layer import Head, Layer

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


def html_table(caption: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a caption, for notebooks."""
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><caption>{caption}</caption>{body}</table>"
