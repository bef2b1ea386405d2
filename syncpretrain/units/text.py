"""The text of visible units in blocks of columns, and the columns of each block.

``bernoulli:20,gaussian:5,softmax:3x7,counts:2000``: see :mod:`syncpretrain.units.blocks`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from syncpretrain.units.kinds import INPUT_UNITS

__all__ = [
    "COUNTS",
    "SOFTMAX",
    "Block",
    "blocks_text",
    "fitted_units",
    "read_blocks",
]

SOFTMAX, COUNTS = "softmax", "counts"
FORMS = (*INPUT_UNITS, SOFTMAX, COUNTS)
ITEM = re.compile(r"(\w+)(?::(?:([1-9]\d{0,8})x)?([1-9]\d{0,8}))?")


@dataclass(frozen=True, slots=True)
class Block:
    """Columns ``start`` to ``stop`` of one kind; ``groups`` of them are choices of their own."""

    kind: str
    start: int
    stop: int
    groups: int = 0

    @property
    def columns(self) -> slice:
        """The columns of a row."""
        return slice(self.start, self.stop)

    @property
    def choices(self) -> int:
        """Units of a group."""
        return (self.stop - self.start) // max(self.groups, 1)

    def __str__(self) -> str:
        size = f"{self.groups}x{self.choices}" if self.kind == SOFTMAX else self.stop - self.start
        return f"{self.kind}:{size}"

    def grouped(self, x: Any) -> Any:
        """Return the columns of this block, of shape (..., groups, choices)."""
        return x[..., self.columns].reshape(*x.shape[:-1], self.groups, self.choices)


def blocks_text(text: str, width: int | None = None) -> str:
    """Return the text of blocks in the one form that is kept: neighbours of a kind are one block.

    Parameters
    ----------
    text : str
    width : int, optional
        The columns there are. One block may leave its number out, for what the others leave.

    Raises
    ------
    ValueError
        If the text has another form, or its widths do not add up to ``width``.
    """
    found = [_item(item, text) for item in text.replace(" ", "").split(",")]
    taken = sum(max(groups, 1) * size for _, groups, size in found)
    free = sum(not size for _, _, size in found)
    if width is None or free > 1 or (free and taken >= width) or (not free and taken != width):
        if width is None and not free:
            width = taken
        else:
            raise ValueError(
                f"got {text}, whose blocks have {taken} columns, expected {width or 'a number'},"
                " the values of an example that layers begins with"
            )
    merged: list[list[Any]] = []
    free = width - taken
    for kind, groups, size in found:
        size = size or free
        last: list[Any] = merged[-1] if merged else ["", 0, 0]
        if last[0] == kind and not groups and kind != COUNTS:
            last[2] += size
        elif last[0] == kind == SOFTMAX and last[2] == size:
            last[1] += groups
        else:
            merged.append([kind, groups, size])
    if len(merged) == 1 and merged[0][0] in INPUT_UNITS:
        return str(merged[0][0])
    return ",".join(f"{k}:{g}x{n}" if k == SOFTMAX else f"{k}:{n}" for k, g, n in merged)


def fitted_units(text: Any, width: Any) -> Any:
    """Return visible units in the form that is kept, once the width of an example is known.

    ``counts`` and ``softmax`` alone stand for all columns; what is no text of blocks is returned
    as it is, for others to refuse.

    Raises
    ------
    ValueError
        As :func:`blocks_text`.
    """
    is_text = isinstance(text, str) and isinstance(width, int)
    if not is_text or not (set(":,") & set(text) or text in (SOFTMAX, COUNTS)):
        return text
    return blocks_text(text, width)


def _item(item: str, text: str) -> tuple[str, int, int]:
    """Return the kind, the groups and the units of each, 0 for as many as there are columns."""
    found = ITEM.fullmatch(item)
    kind = found[1] if found else ""
    if found is None or kind not in FORMS or (found[2] and kind != SOFTMAX):
        raise ValueError(
            f"got {item or 'nothing'!r} in {text!r}, expected blocks such as bernoulli:20,"
            " gaussian:5, softmax:3x7 (3 groups of 7) or counts:2000"
        )
    groups = int(found[2] or 1) if kind == SOFTMAX else 0
    return kind, groups, int(found[3] or 0)


def read_blocks(text: str) -> list[Block]:
    """Return the blocks of a text, all of which have a number of units.

    Raises
    ------
    ValueError
        If the text has another form.
    """
    parts, start = list[Block](), 0
    for item in text.split(","):
        kind, groups, size = _item(item, text)
        if not size:
            raise ValueError(f"got {item!r} in {text!r}, expected the number of its units too")
        stop = start + max(groups, 1) * size
        parts.append(Block(kind, start, stop, 1 if kind == COUNTS else groups))
        start = stop
    return parts
