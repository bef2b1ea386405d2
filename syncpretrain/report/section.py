"""A section of a report, and the pieces of HTML that it is made of."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from syncpretrain.plot.images import ENLARGE, png_bytes

__all__ = [
    "LEAST_SECONDS",
    "Section",
    "details",
    "figure",
    "image",
    "not_drawn",
    "number",
    "paragraph",
    "row_of_figures",
    "seconds_text",
    "table",
    "unordered",
]

LEAST_SECONDS = 0.001  # of a stage that took place
SHARP = 12  # times that a pixel of a small image is enlarged, at most
IMAGE_WIDTH = 900  # at most, where pixels become squares
NO_BREAK = "&nbsp;"
LIST_COMMA = re.compile(r",(?!\d{3} )")  # not the comma in "10,000 test"
OPTION = re.compile(r"--[a-z][a-z-]*")
UNIT, ENDING = re.compile(r"(?<=\d) (?=\S)"), re.compile(r" (?=\d+(,|$))")  # such as in "layer 1"


@dataclass(frozen=True, slots=True)
class Section:
    """A section: ``name`` is its id, ``body`` is HTML."""

    name: str
    title: str
    body: str

    def html(self) -> str:
        """Return the section as an element."""
        heading = f"{self.name}-heading"
        return (
            f'<section id="{self.name}" aria-labelledby="{heading}">\n'
            f'<h2 id="{heading}">{escape(self.title)}</h2>\n{self.body}\n</section>\n'
        )


def paragraph(text: str, *, kind: str = "") -> str:
    """Return a text as a paragraph, with ``kind`` as its class."""
    return f"<p{_class_attribute(kind)}>{_sentence(text)}</p>"


def not_drawn(error: Exception) -> str:
    """Return a paragraph that says why something is missing on the page."""
    text = " ".join(str(error).split()) or type(error).__name__
    return paragraph(f"Not drawn: {text.rstrip('.')}.")


def unordered(items: Iterable[str]) -> str:
    """Return texts as a list."""
    return "<ul>" + "".join(f"<li>{_sentence(item)}</li>" for item in items) + "</ul>"


def _sentence(text: str) -> str:
    """Return a text as HTML, in which no option of a command breaks behind its hyphens."""
    return OPTION.sub(r'<span class="option">\g<0></span>', escape(text))


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str, left: int = 1
) -> str:
    """Return a table, which scrolls by itself where it is too wide.

    The first ``left`` columns are texts, the others numbers.
    """
    kinds = ["" if i < left else "number" for i in range(len(head))]
    cells = (
        f'<th scope="col"{_class_attribute(kind)}>{escape(name)}</th>'
        for kind, name in zip(kinds, head, strict=True)
    )
    body = "".join(_row(row, kinds) for row in rows)
    heading = f"<thead><tr>{''.join(cells)}</tr></thead>" if any(head) else ""
    name = escape(caption)
    return (
        f'<p class="caption" aria-hidden="true">{name}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">'
        f'<table aria-label="{name}">{heading}<tbody>{body}</tbody></table></div>'
    )


def _row(row: Sequence[object], kinds: Sequence[str]) -> str:
    first, *others = map(str, row)
    cells = (
        f"<td{_class_attribute(kind)}>{_number(cell) if kind else _text(cell)}</td>"
        for kind, cell in zip(kinds[1:], others, strict=True)
    )
    return f'<tr><th scope="row">{ENDING.sub(NO_BREAK, escape(first))}</th>{"".join(cells)}</tr>'


def _text(cell: str) -> str:
    """Return a text that may break after the commas of a list, and not inside 10,000."""
    return LIST_COMMA.sub(",<wbr>", escape(cell))


def _number(cell: str) -> str:
    """Return a number that does not part with its unit."""
    return UNIT.sub(NO_BREAK, escape(cell))


def _class_attribute(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def figure(content: str, caption: str = "") -> str:
    """Return a drawing with its caption."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{content}{below}</figure>"


def row_of_figures(figures: Iterable[str]) -> str:
    """Return figures in rows, as many in a row as there is room for."""
    return f'<div class="panels">{"".join(figures)}</div>'


def image(grid: NDArray[np.float32], text: str) -> str:
    """Return a grid of images, with values in [0, 1], as an image inside the page.

    Raises
    ------
    DataError
        If Pillow is not installed.
    """
    enlarge = max(1, min(SHARP, IMAGE_WIDTH // grid.shape[1]))
    png = b64encode(png_bytes(grid, enlarge=min(ENLARGE, enlarge))).decode()
    width = enlarge * grid.shape[1]
    return f'<img src="data:image/png;base64,{png}" alt="{escape(text)}" style="width: {width}px">'


def details(summary: str, body: str) -> str:
    """Return a body that is hidden until its summary is opened."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def number(value: float | None) -> str:
    """Return a figure as it is printed, a dash for none."""
    return "-" if value is None else f"{value:.4g}"


def seconds_text(seconds: float) -> str:
    """Return a time as it is printed."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
