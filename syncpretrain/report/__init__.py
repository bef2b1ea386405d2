"""The report of a run, or of two runs, as one page of HTML without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from string import Template

from syncpretrain.errors import DataError, needed
from syncpretrain.plot.canvas import check_drawing
from syncpretrain.report.course import course_section, learning_section, schedules_section
from syncpretrain.report.examples import Shown, compared_reconstructions, example_sections
from syncpretrain.report.outcome import comparison_sections, configuration_section, outcome_section
from syncpretrain.report.section import Section
from syncpretrain.runs.record import RunRecord
from syncpretrain.shapes import ImageShape

__all__ = ["check_report", "report_page", "sections_of", "sections_of_comparison"]


PACKAGE = "syncpretrain.report"


def check_report() -> None:
    """Refuse a report that could not be drawn.

    Raises
    ------
    DataError
        If Matplotlib or Pillow is not installed.
    """
    check_drawing("a report")
    needed("PIL.Image", DataError('a report needs Pillow: pip install "syncpretrain[plot]"'))


def sections_of(
    run: RunRecord, images: ImageShape | None = None, shown: Shown | str = ""
) -> list[Section]:
    """Return the sections of the report of one run.

    Parameters
    ----------
    run : RunRecord
    images : ImageShape or None
        The shape of an example, None where it is no image.
    shown : Shown or str
        Examples to show with their reconstructions, or the reason why there are none.
    """
    found = [outcome_section([run]), learning_section([run]), course_section([run])]
    if run.stack is not None:
        found += example_sections(run.stack, images, shown)
    schedules = schedules_section(run)
    return [*found, *([schedules] if schedules else []), configuration_section(run)]


def sections_of_comparison(
    runs: Sequence[RunRecord], images: ImageShape | None = None, shown: Shown | str = ""
) -> list[Section]:
    """Return the sections of a report that compares several runs.

    The examples belong to the first run; see :func:`sections_of`.
    """
    before = [outcome_section(runs), *comparison_sections(runs)]
    examples = compared_reconstructions(runs, images, shown)
    return [*before, learning_section(runs), course_section(runs), examples]


def report_page(runs: Sequence[RunRecord], sections: Sequence[Section]) -> bytes:
    """Return the whole page, in UTF-8.

    It loads nothing: its style, drawings and images are in it, and it has no script.
    """
    folder = files(PACKAGE)
    template = Template(folder.joinpath("page.html").read_text(encoding="utf-8"))
    names = " and ".join(run.name for run in runs)
    links = (f'<a href="#{x.name}">{escape(x.title)}</a>' for x in sections)
    text = template.substitute(
        title=escape(f"{names}: syncpretrain report"),
        heading=escape(names),
        when=escape(", ".join(filter(None, map(_when, runs)))),
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        links=" ".join(links),
        sections="".join(section.html() for section in sections),
        footer=escape(f"Made of the files in {', '.join(str(run.folder) for run in runs)}"),
    )
    return text.encode(errors="replace")  # the name of a folder may be no text


def _when(run: RunRecord) -> str:
    """Return when the last file of a run was written."""
    files = (path for path in run.folder.iterdir() if path.suffix != ".html")
    times = [path.lstat().st_mtime for path in files]  # a link itself: it may lead nowhere
    return f"last written {datetime.fromtimestamp(max(times)):%Y-%m-%d %H:%M}" if times else ""
