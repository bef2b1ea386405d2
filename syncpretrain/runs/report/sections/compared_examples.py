"""Reconstructions of the same examples by several stacks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from syncpretrain.data.examples import evenly_spaced
from syncpretrain.models.stack import Stack
from syncpretrain.runs.record import RunRecord
from syncpretrain.runs.report.images import image_grid, shades
from syncpretrain.runs.report.plots.examples import check_decoder, error_shares
from syncpretrain.runs.report.plots.features import MOST_BARS_SHOWN, names_of
from syncpretrain.runs.report.sections.examples import DRAWN_EXAMPLES, Shown
from syncpretrain.runs.report.sections.section import (
    Section,
    figure,
    image,
    not_drawn,
    number,
    paragraph,
    table,
)
from syncpretrain.shapes import ImageShape

__all__ = ["compared_reconstructions"]


def compared_reconstructions(
    runs: Sequence[RunRecord], images: ImageShape | None, shown: Shown | None, reason: str = ""
) -> Section:
    """Return examples above what each run's stack makes of them, or the errors of each value.

    Parameters
    ----------
    runs : sequence of RunRecord
    images : ImageShape or None
        The shape of an example, None where it is no image.
    shown : Shown or None
        Examples of the first run.
    reason : str
        Why there are none.
    """
    return Section("reconstructions", "Reconstructions", _body(runs, images, shown, reason))


def _body(
    runs: Sequence[RunRecord], images: ImageShape | None, shown: Shown | None, reason: str
) -> str:
    without = [run.name for run in runs if run.stack is None]
    if without:
        return paragraph(f"Not drawn: {' and '.join(without)} left no model.")
    if shown is None:
        return paragraph(f"There are no examples to show: {reason}")
    stacks = [run.stack.for_prepared_rows() for run in runs if run.stack is not None]
    read = [names_of(stack) for stack in stacks]
    if any(names != read[0] for names in read):
        return paragraph("Not drawn: the two do not read the same values.")
    try:
        for stack in stacks:
            check_decoder(stack)
        names = [run.name for run in runs]
        draw = _shares if images is None else partial(_grid, images=images)
        return draw(stacks, names, shown)
    except Exception as error:  # a page that lacks a section is better than none
        return not_drawn(error)


def _grid(
    stacks: Sequence[Stack], names: Sequence[str], shown: Shown, *, images: ImageShape
) -> str:
    rows = evenly_spaced(shown.rows, DRAWN_EXAMPLES)
    by = ", then by ".join(names)
    text = f"{len(rows)} examples of {shown.name}, and below each its reconstruction by {by}"
    made = [shades(stack, stack.reconstruct(rows)) for stack in stacks]
    return figure(image(image_grid(shades(stacks[0], rows), *made, shape=images), text), text)


def _shares(stacks: Sequence[Stack], names: Sequence[str], shown: Shown) -> str:
    shares = np.array([error_shares(stack, shown.rows) for stack in stacks])
    worst = np.argsort(-shares.max(axis=0), kind="stable")[:MOST_BARS_SHOWN]
    values = names_of(stacks[0])
    rows = [(values[i], *(number(share) for share in shares[:, i])) for i in worst]
    caption = (
        f"The error of each value's reconstructions on {shown.name}, in percent of that of its"
        " mean, the worst first"
    )
    left_out = len(values) - len(rows)
    note = paragraph(f"Left out: {left_out} values with smaller errors.") if left_out else ""
    return table(("", *names), rows, caption=caption) + note
