"""Sections that compare two runs: settings that differ, errors, and reconstructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from syncpretrain.data.examples import evenly_spaced
from syncpretrain.models.diagnosis import share_text
from syncpretrain.models.stack import Stack
from syncpretrain.plot.examples import MOST_BARS_SHOWN, check_decoder, error_shares, value_names
from syncpretrain.plot.images import image_grid, shades
from syncpretrain.report.configuration import is_tuned, texts_of_settings
from syncpretrain.report.examples import DRAWN_EXAMPLES, Shown
from syncpretrain.report.section import (
    LEAST_SECONDS,
    Section,
    drawn,
    figure,
    image,
    number,
    paragraph,
    seconds_text,
    table,
)
from syncpretrain.runs.record import RunRecord
from syncpretrain.shapes import ImageShape

NOT_THERE = "-"


def comparison_sections(runs: Sequence[RunRecord]) -> list[Section]:
    """Return the settings in which runs differ, and their errors and times side by side."""
    names = [run.name for run in runs]
    differing = differing_settings(runs)
    if differing:
        head, caption = ("setting", *names), "Settings that differ"
        settings = table(head, differing, caption=caption, left=len(head))
    else:
        settings = paragraph("The settings of the two are the same.")
    errors = table(("", *names), _figures(runs), caption="Errors and times")
    return [
        Section("errors", "Errors side by side", errors),
        Section("settings", "Settings that differ", settings),
    ]


def differing_settings(runs: Sequence[RunRecord]) -> list[tuple[str, ...]]:
    """Return the name of each setting that differs, and its value in each run."""
    flat = [
        {
            f"{section}.{name}": value
            for section, fields in found.items()
            for name, value in fields.items()
            if section != "finetune" or name == "objective" or is_tuned(fields)
        }
        for found in (texts_of_settings(run.settings) for run in runs)
    ]
    known = dict.fromkeys(name for fields in flat for name in fields)
    rows = [(name, *(fields.get(name, NOT_THERE) for fields in flat)) for name in known]
    return [row for row in rows if len(set(row[1:])) > 1]


def _figures(runs: Sequence[RunRecord]) -> list[tuple[str, ...]]:
    rows = []
    metrics = [run.metrics or {} for run in runs]
    for part in ("train", "validation", "test"):
        for title, name in (("whole stack", "reconstruction_error"), ("wrong classes", "accuracy")):
            cells = [_cell(found, name, part) for found in metrics]
            if set(cells) != {NOT_THERE}:
                rows.append((f"{title}, {part}", *cells))
    depth = max((len(found.get("layers", ())) for found in metrics), default=0)
    for i in range(depth):
        rows.append((f"layer {i + 1}", *(_layer_cell(found, i) for found in metrics)))
    for name in ("pretrain", "finetune", "total"):
        seconds = [(found.get("seconds") or {}).get(name) for found in metrics]
        texts = [seconds_text(x) if x and x > LEAST_SECONDS else NOT_THERE for x in seconds]
        if set(texts) != {NOT_THERE}:
            rows.append((f"time, {name}", *texts))
    rows.append(("state", *(run.state.name for run in runs)))
    return rows


def _cell(metrics: Mapping[str, Any], name: str, part: str) -> str:
    value = (metrics.get(name) or {}).get(part)
    if value is None:
        return NOT_THERE
    if name == "accuracy":
        return f"{100 * (1 - value):.2f} %"
    mean = (metrics.get("mean_error") or {}).get(part)
    return f"{number(value)} ({share_text(value, mean)} of the mean's)" if mean else number(value)


def _layer_cell(metrics: Mapping[str, Any], i: int) -> str:
    layers = metrics.get("layers") or []
    if i >= len(layers):
        return NOT_THERE
    errors = layers[i]["reconstruction_error"]
    found = [(part, error) for part, error in errors.items() if error is not None]
    return f"{number(found[-1][1])} ({found[-1][0]})" if found else NOT_THERE


def compared_reconstructions(
    runs: Sequence[RunRecord], images: ImageShape | None, shown: Shown | str
) -> Section:
    """Return the section of examples and each run's reconstructions, or of each value's errors.

    Parameters
    ----------
    runs : sequence of RunRecord
    images : ImageShape or None
        The shape of an example, None where it is no image.
    shown : Shown or str
        Examples of the first run, or the reason why there are none.
    """
    body = drawn(lambda: _reconstructions(runs, images, shown))
    return Section("reconstructions", "Reconstructions", body)


def _reconstructions(
    runs: Sequence[RunRecord], images: ImageShape | None, shown: Shown | str
) -> str:
    without = [run.name for run in runs if run.stack is None]
    if without:
        return paragraph(f"Not drawn: {' and '.join(without)} left no model.")
    if isinstance(shown, str):
        return paragraph(f"There are no examples to show: {shown}")
    stacks = [run.stack.for_prepared_rows() for run in runs if run.stack is not None]
    read = [value_names(stack) for stack in stacks]
    if any(names != read[0] for names in read):
        return paragraph("Not drawn: the two do not read the same values.")
    for stack in stacks:
        check_decoder(stack)
    names = [run.name for run in runs]
    draw = _error_table if images is None else partial(_reconstruction_grid, images=images)
    return draw(stacks, names, shown)


def _reconstruction_grid(
    stacks: Sequence[Stack], names: Sequence[str], shown: Shown, *, images: ImageShape
) -> str:
    rows = evenly_spaced(shown.rows, DRAWN_EXAMPLES)
    by = ", then by ".join(names)
    text = f"{len(rows)} examples of {shown.name}, and below each its reconstruction by {by}"
    made = [shades(stack, stack.reconstruct(rows)) for stack in stacks]
    return figure(image(image_grid(shades(stacks[0], rows), *made, shape=images), text), text)


def _error_table(stacks: Sequence[Stack], names: Sequence[str], shown: Shown) -> str:
    shares = np.array([error_shares(stack, shown.rows) for stack in stacks])
    worst = np.argsort(-shares.max(axis=0), kind="stable")[:MOST_BARS_SHOWN]
    values = value_names(stacks[0])
    rows = [(values[i], *(number(share) for share in shares[:, i])) for i in worst]
    caption = (
        f"The error of each value's reconstructions on {shown.name}, in percent of its mean's"
        " error, the worst first"
    )
    left_out = len(values) - len(rows)
    note = paragraph(f"Left out: {left_out} values with smaller errors.") if left_out else ""
    return table(("", *names), rows, caption=caption) + note
