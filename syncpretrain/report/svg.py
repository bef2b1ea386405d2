"""Figures of Matplotlib as SVG inside a page, in the page's font and colours."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

from syncpretrain.report.section import not_drawn

__all__ = ["draw_svg"]

INK, GRID = "#1b1f24", "#c9ced6"
THEME = {INK: "var(--ink)", GRID: "var(--line)", "#dddddd": "var(--asleep)"}
STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": GRID,
    "legend.facecolor": "none",
    "legend.edgecolor": GRID,
    "text.color": INK,
    "text.usetex": False,
    "xtick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": INK,
    "ytick.labelsize": 8.5,
    "svg.fonttype": "none",
}
COORDINATES = ("d", "x", "y", "transform", "points", "width", "height")
POINTS = 72  # of an inch
PIXELS_A_POINT = 1.6  # at most: text of 14 pixels
LINK = "{http://www.w3.org/1999/xlink}href"
LONG_NUMBER = re.compile(r"(-?\d+\.\d{2})\d+")
REFERENCE = re.compile(r"url\(#([^)]+)\)")
COLOUR = re.compile("|".join(THEME))

Draw = Callable[[Any], "Mapping[str, str] | None"]


@contextmanager
def themed(name: str) -> Iterator[None]:
    """Let Matplotlib draw in the style of the page, with ids made from ``name``."""
    from matplotlib import rc_context

    style: Any = {**STYLE, "svg.hashsalt": name}  # rc_context's keys are literal types
    with rc_context(style):
        yield


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
    try:
        return _svg(draw, name, label, size)
    except Exception as error:  # a page that lacks a drawing is better than none
        return not_drawn(error)


def _svg(draw: Draw, name: str, label: str, size: tuple[float, float]) -> str:
    from matplotlib.figure import Figure

    with themed(name), warnings.catch_warnings():
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
