"""Section of the learning curves of one run, or of two runs in the same panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from syncpretrain.plot.canvas import colour_of
from syncpretrain.plot.learning import Curve, curves_of, draw_curve
from syncpretrain.report.section import Section, draw_svg, figure, paragraph, row_of_figures
from syncpretrain.runs.record import RunRecord

MARKS_OF_RUNS = ("● ■", "◆ ▲")  # marks of two runs in the panels
MOST_PANELS = 24  # the lowest layers of a deep stack, and fine-tuning


def learning_section(runs: Sequence[RunRecord]) -> Section:
    """Return a panel a layer, and one for fine-tuning."""
    by_run = [{curve.title: curve for curve in curves_of(run.timeline)} for run in runs]
    titles = list(dict.fromkeys(title for curves in by_run for title in curves))
    title = "Learning curves"
    if not titles:
        return Section("learning", title, paragraph("No epoch is finished."))
    titles = sorted(titles, key=_order)
    shown = titles if len(titles) <= MOST_PANELS else [*titles[: MOST_PANELS - 1], titles[-1]]
    panels = []
    for place, name in enumerate(shown):
        panels.append(figure(_panel([curves.get(name) for curves in by_run], f"curve{place}")))
    text = (
        "Squared errors after each epoch: solid of the training minibatches while they are trained"
        " on, dashed of held-out examples. A layer above the first reconstructs the activities of"
        " the layer below, which change as that layer learns, so its error may grow. Fine-tuning"
        " of a classifier has the share of wrong classes."
    )
    left_out = len(titles) - len(shown)
    note = paragraph(f"Without a panel: {left_out} of the layers.") if left_out else ""
    key = _list_of_marks([run.name for run in runs]) if len(runs) > 1 else ""
    return Section("learning", title, paragraph(text) + key + row_of_figures(panels) + note)


def _order(title: str) -> tuple[bool, int]:
    number = title.removeprefix("layer ")
    return (not number.isdigit(), int(number) if number.isdigit() else 0)


def _list_of_marks(names: Sequence[str]) -> str:
    """Return a list of the marks of each run, since names may be too long for a panel's legend."""
    items = (
        f'<li><span style="color: {colour_of(series)}" aria-hidden="true">{marks}</span>'
        f" {escape(name)}: training, validation</li>"
        for series, (name, marks) in enumerate(zip(names, MARKS_OF_RUNS, strict=True))
    )
    return f'<ul class="key">{"".join(items)}</ul>'


def _panel(curves: Sequence[Curve | None], name: str) -> str:
    """Return a panel with the curve of each run; a run without a curve keeps its colour."""

    def draw(axes: Any) -> Mapping[str, str] | None:
        for series, curve in enumerate(curves):
            if curve is not None:
                draw_curve(axes, curve, series=series, legend=len(curves) == 1)
        return None

    own = [curve for curve in curves if curve is not None]
    ends = (f"{len(curve.epochs)} epochs, the last {curve.train[-1]:.4g}" for curve in own)
    return draw_svg(draw, name=name, label=f"Errors of {own[0].title}: {'; '.join(ends)}")
