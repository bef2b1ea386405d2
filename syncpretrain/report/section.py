"""A section of a report, the pieces of HTML that it is made of, and figures of Matplotlib as SVG.

Figures are in the font and the colours of the page.
"""

from __future__ import annotations

import io
import re
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from syncpretrain.plot.stacks import ENLARGE, png_bytes

LEAST_SECONDS = 0.001  # of a stage that took place
SHARP = 12  # times that a pixel of a small image is enlarged, at most
IMAGE_WIDTH = 900  # at most, where pixels become squares
NO_BREAK = "&nbsp;"
LIST_COMMA = re.compile(r",(?!\d{3} )")  # not the comma in "10,000 test"
OPTION = re.compile(r"--[a-z][a-z-]*")
UNIT, ENDING = re.compile(r"(?<=\d) (?=\S)"), re.compile(r" (?=\d+(,|$))")  # such as in "layer 1"


class Section(NamedTuple):
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


def paragraph(text: str) -> str:
    """Return a text as a paragraph."""
    return f"<p>{_sentence(text)}</p>"


def drawn(body: Callable[[], str]) -> str:
    """Return the result of ``body``, or the reason why there is none."""
    try:
        return body()
    except Exception as error:  # a page that lacks a part is better than none
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


def seconds_text(seconds: float) -> str:
    """Return a time as it is printed."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


THEME = {"#1b1f24": "var(--ink)", "#c9ced6": "var(--line)", "#dddddd": "var(--asleep)"}
STYLE = Path(__file__).with_name("page.mplstyle")
COORDINATES = ("d", "x", "y", "transform", "points", "width", "height")
POINTS = 72  # of an inch
PIXELS_A_POINT = 1.6  # at most: text of 14 pixels
LINK = "{http://www.w3.org/1999/xlink}href"
LONG_NUMBER = re.compile(r"(-?\d+\.\d{2})\d+")
REFERENCE = re.compile(r"url\(#([^)]+)\)")
COLOUR = re.compile("|".join(THEME))

Draw = Callable[[Any], "Mapping[str, str] | None"]


def draw_svg(draw: Draw, *, name: str, label: str, size: tuple[float, float] = (3.7, 2.75)) -> str:
    """Return the drawing of ``draw(axes)`` as an SVG element, or the reason why there is none.

    Parameters
    ----------
    draw : callable
        Called with the axes of a new figure; it may return titles, texts that are shown when the
        pointer is on an element, by the element's id.
    name : str
        Prefix of all ids in the drawing, different for each figure of a page.
    label : str
        Description of the figure, for readers who do not see it.
    size : tuple of float
        Width and height in inches.
    """
    return drawn(lambda: _svg(draw, name, label, size))


def _svg(draw: Draw, name: str, label: str, size: tuple[float, float]) -> str:
    from matplotlib import style
    from matplotlib.figure import Figure

    # Ids are made from the name.
    with style.context([STYLE, {"svg.hashsalt": name}]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # drawn as an empty box
        figure = Figure(figsize=size, layout="constrained")
        titles = draw(figure.add_subplot()) or {}
        buffer = io.BytesIO()
        unsaid = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=unsaid)
    root = ElementTree.fromstring(buffer.getvalue())
    _add_titles(root, titles)
    _strip(root, name)
    box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "class": "plot", "role": "img", "aria-label": label})
    root.set("style", f"max-width: {PIXELS_A_POINT * POINTS * size[0]:.0f}px")
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _add_titles(root: Any, titles: Mapping[str, str]) -> None:
    """Add titles to the elements with these ids; browsers show them as tooltips."""
    for element in root.iter():
        text = titles.get(element.get("id", ""))
        if text is not None:
            title = ElementTree.Element("title")
            title.text = text
            element.insert(0, title)


def _strip(root: Any, name: str) -> None:
    """Remove elements that a page does not need; adapt ids and colours to the page."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)  # its style would hold for the whole page
    used = {found for element in root.iter() for found in _references(element)}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK))
        own = element.attrib.pop("id", None)
        if own in used:
            element.set("id", f"{name}-{own}")
        for key, value in element.attrib.items():
            element.set(key, _rewritten(key, value, name))


def _references(element: Any) -> list[str]:
    found = [target for value in element.attrib.values() for target in REFERENCE.findall(value)]
    link = element.get(LINK, "")
    return [*found, link[1:]] if link.startswith("#") else found


def _rewritten(key: str, value: str, name: str) -> str:
    if key in COORDINATES:
        return LONG_NUMBER.sub(r"\1", value)
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    value = REFERENCE.sub(rf"url(#{name}-\1)", value)
    return COLOUR.sub(lambda found: THEME[found[0]], value)
