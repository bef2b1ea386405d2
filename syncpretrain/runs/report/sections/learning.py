"""Learning curves of one run, or of two in the same panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from syncpretrain.runs.record import RunRecord
from syncpretrain.runs.report.plots.learning import Curve, curves_of, draw_curve
from syncpretrain.runs.report.sections.section import Section, figure, paragraph, row_of
from syncpretrain.runs.report.svg import drawn

__all__ = ["learning_section"]

MOST_PANELS = 24  # of a deep stack the lowest layers, and fine-tuning


def learning_section(runs: Sequence[RunRecord]) -> Section:
    """Return a panel a layer, and one for fine-tuning."""
    names = [run.name if len(runs) > 1 else "" for run in runs]
    by_run = [{curve.title: curve for curve in curves_of(run.timeline)} for run in runs]
    titles = list(dict.fromkeys(title for curves in by_run for title in curves))
    title = "Learning curves"
    if not titles:
        return Section("learning", title, paragraph("No epoch is finished."))
    titles = sorted(titles, key=_place)
    shown = titles if len(titles) <= MOST_PANELS else [*titles[: MOST_PANELS - 1], titles[-1]]
    panels = []
    for place, name in enumerate(shown):
        own = [(label, x[name]) for label, x in zip(names, by_run, strict=True) if name in x]
        panels.append(figure(_panel(own, f"curve{place}")))
    text = (
        "Squared errors after each epoch: solid of the training minibatches while they are trained"
        " on, dashed of held-out examples. A layer above the first reconstructs the activities of"
        " the layer below, which change as that layer learns, so its error may grow. Fine-tuning"
        " of a classifier has the share of wrong classes."
    )
    left_out = len(titles) - len(shown)
    note = paragraph(f"Without a panel: {left_out} of the layers.") if left_out else ""
    return Section("learning", title, paragraph(text) + row_of(panels) + note)


def _place(title: str) -> tuple[bool, int]:
    number = title.removeprefix("layer ")
    return (not number.isdigit(), int(number) if number.isdigit() else 0)


def _panel(curves: Sequence[tuple[str, Curve]], name: str) -> str:
    def draw(axes: Any) -> Mapping[str, str] | None:
        for series, (label, curve) in enumerate(curves):
            draw_curve(axes, curve, series=series, label=label)
        return None

    first = curves[0][1]
    last = first.train[-1]
    label = f"Errors of {first.title}: {len(first.epochs)} epochs, the last {last:.4g}"
    return drawn(draw, name=name, label=label)
