"""Sections of a stack and its examples: reconstructions, filters, activities, codes, samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from syncpretrain.data.columns import columns_in
from syncpretrain.data.dataset import PARTS, Dataset, classes_only, is_labelled
from syncpretrain.data.examples import evenly_spaced
from syncpretrain.errors import DataError
from syncpretrain.models.couplings import couplings, has_couplings, outside_gauge
from syncpretrain.models.diagnosis import digits
from syncpretrain.models.mixing import Mixing
from syncpretrain.models.stack import Stack
from syncpretrain.plot import stacks as plots
from syncpretrain.report.section import (
    Section,
    draw_svg,
    drawn,
    figure,
    image,
    paragraph,
    row_of_figures,
    table,
)
from syncpretrain.runs.record import RunRecord
from syncpretrain.shapes import ConvolutionShape, ImageShape

MOST_EXAMPLES = 1000
DRAWN_EXAMPLES, DRAWN_FILTERS = 20, 100
SAMPLES, SAMPLE_STEPS, MIXING_STEPS = 20, 200, 400
SAMPLED_ROWS, SAMPLED_COLUMNS = 6, 12  # of samples of a table
MOST_HISTOGRAMS = 24
BAR_INCHES = 0.19
MOST_PAIRS = 20  # of positions, in the table of couplings
NO_EXAMPLES = "There are no examples to show: {}"  # format with a reason


class Shown(NamedTuple):
    """Examples to show: ``rows`` of shape (n, values), labels if there are any, their name.

    ``weights`` are the weights of the rows, and ``is_weighted`` says if training rows had some.
    """

    rows: NDArray[np.float32]
    labels: NDArray[Any] | None
    name: str
    weights: NDArray[np.float64] | None = None
    is_weighted: bool = False


def examples_to_show(data: Dataset, part: str | None = None, is_weighted: bool = False) -> Shown:
    """Return at most 1,000 examples of a part, by default test examples if there are any.

    ``is_weighted`` says if the model was trained with weights of rows.

    Raises
    ------
    DataError
        If the part is empty.
    """
    if part and not len(getattr(data, part)):
        raise DataError(f"part: got {part}, but {data.name} has no such part; leave --part out")
    by_worth = [part] if part else [name for name in reversed(PARTS) if len(getattr(data, name))]
    name = (by_worth or ["train"])[0]
    labels, weights = data.targets(name), data.train_weights if name == "train" else None
    return Shown(
        evenly_spaced(getattr(data, name), MOST_EXAMPLES),
        None if labels is None else evenly_spaced(labels, MOST_EXAMPLES),
        f"the {name} part of {Path(data.name).name}",
        None if weights is None else evenly_spaced(weights, MOST_EXAMPLES),
        is_weighted,
    )


def example_sections(stack: Stack, images: ImageShape | None, shown: Shown | str) -> list[Section]:
    """Return the sections that need a stack; some also need examples.

    Parameters
    ----------
    stack : Stack
    images : ImageShape or None
        The shape of an example, None where it is no image.
    shown : Shown or str
        Examples, prepared by the stack's meaning of numbers, or the reason why there are none.
    """
    parts: list[tuple[str, str, Callable[[], str]]] = []
    if isinstance(shown, str):
        above = partial(paragraph, NO_EXAMPLES.format(shown))
    else:
        reads = stack.for_prepared_rows()
        above = partial(_reconstructions, reads, images, shown)
        parts.append(("units", "Activities of the hidden units", partial(_units, reads, shown)))
        parts.append(("codes", "Map of the codes", partial(_codes, reads, shown)))
    if has_couplings(stack.layers[0]):
        parts.append(("couplings", "Couplings of positions", partial(_couplings, stack)))
    parts.append(("samples", "Samples", partial(_samples, stack, images, shown)))
    parts.insert(0, ("filters", "What the lowest layer reads", partial(_filters, stack, images)))
    parts.insert(0, ("reconstructions", "Reconstructions", above))
    return [Section(name, title, drawn(body)) for name, title, body in parts]


def _reconstructions(stack: Stack, images: ImageShape | None, shown: Shown) -> str:
    plots.check_decoder(stack)
    if images is not None:
        return _grid([stack], images, shown, "each above its reconstruction")
    text = f"{_on_shares(shown)}: 0 is perfect, and 100 says nothing. The worst are on top."
    return _bars(stack, plots.error_shares(stack, shown.rows), plots.SHARE_LABEL, "shares", text)


def _on_shares(shown: Shown) -> str:
    means = "in percent of its mean's error"
    return f"The error of each value's reconstructions on {shown.name}, {means}"


def _grid(stacks: Sequence[Stack], images: ImageShape, shown: Shown, order: str) -> str:
    """Return images, and below each its reconstruction by each stack."""
    rows = evenly_spaced(shown.rows, DRAWN_EXAMPLES)
    text = f"{len(rows)} examples of {shown.name}, {order}"
    made = [plots.shades(stack, stack.reconstruct(rows)) for stack in stacks]
    grid = plots.image_grid(plots.shades(stacks[0], rows), *made, shape=images)
    return figure(image(grid, text), text)


def _filters(stack: Stack, images: ImageShape | None) -> str:
    if images is None and not isinstance(stack.layers[0].shape, ConvolutionShape):
        text = "The norm of the weights of each value: how much the hidden units read of it."
        return _bars(stack, plots.weight_norms(stack), "norm of the weights", "norms", text)
    grid, count, units = plots.filter_grid(stack, 1, images, DRAWN_FILTERS)
    text = f"{count} of {units} filters of layer 1: grey is 0, and each has its own contrast"
    return figure(image(grid, text), text)


def _couplings(stack: Stack) -> str:
    """Return a picture of the couplings of positions, and the strongest of them as a table."""
    found, names = couplings(stack.layers[0]), plots.position_names(stack)

    def draw(axes: Any) -> None:
        ends = 0.5, len(found) + 0.5  # positions count from 1
        extent = (*ends, *ends[::-1])
        drawn = axes.imshow(found, cmap="viridis", vmin=0, interpolation="nearest", extent=extent)
        axes.figure.colorbar(drawn, ax=axes)
        axes.set(xlabel="position", ylabel="position")

    correction = ", with the average-product correction" if len(found) > 2 else ""
    what = "Frobenius norms of the couplings of layer 1 between each two positions"
    text = f"{what}, in the zero-sum gauge{correction}"
    svg = draw_svg(draw, name="couplings-map", label=text, size=(5.0, 4.3))
    first, second = np.triu_indices(len(found), 1)
    strongest = np.argsort(-found[first, second], kind="stable")[:MOST_PAIRS]
    rows = [
        (f"{names[i]} and {names[j]}", f"{found[i, j]:.4g}")
        for i, j in zip(first[strongest], second[strongest], strict=True)
    ]
    notes = "".join(map(paragraph, outside_gauge(stack.layers, stack.info)))
    return notes + figure(svg, text) + table(("", "coupling"), rows, caption="Strongest couplings")


def _bars(stack: Stack, values: NDArray[Any], label: str, name: str, text: str) -> str:
    draw = partial(plots.draw_bars, names=plots.value_names(stack), values=values, label=label)
    rows = min(len(values), plots.MOST_BARS_SHOWN)
    size = (5.0, 0.8 + BAR_INCHES * rows)
    return figure(draw_svg(draw, name=name, label=text, size=size), text)


def _units(stack: Stack, shown: Shown) -> str:
    found = plots.activities_of(stack, shown.rows)
    panels, rows = [], []
    for activity in found:
        counts = ["-" if x is None else str(x) for x in (activity.dead, activity.saturated)]
        units, mean = activity.values.shape[1], float(activity.values.mean())
        rows.append((f"layer {activity.layer}", activity.units, units, f"{mean:.3g}", *counts))
    depth = len(found)
    kept = found if depth <= MOST_HISTOGRAMS else [*found[: MOST_HISTOGRAMS - 1], found[-1]]
    for activity in kept:
        draw = partial(plots.draw_activity, activity=activity, is_code=activity.layer == depth)
        label = f"Histogram of the activities of layer {activity.layer}"
        panels.append(figure(draw_svg(draw, name=f"units{activity.layer}", label=label)))
    text = (
        f"Mean activities of the hidden units on {len(shown.rows):,} examples of {shown.name}. Dead"
        " units are off, and saturated ones on, for every example: they say nothing about any."
    )
    head = ("", "units", "number", "mean activity", "dead", "saturated")
    caption = "Idle units of each layer"
    return paragraph(text) + row_of_figures(panels) + table(head, rows, caption=caption, left=2)


def _codes(stack: Stack, shown: Shown) -> str:
    found = stack.encode(shown.rows)
    draw = partial(plots.draw_codes, found=found, labels=shown.labels)
    text = f"The codes of {len(found):,} examples of {shown.name}, by principal components"
    text += "" if shown.labels is None else ", coloured by label"
    return figure(draw_svg(draw, name="codes-map", label=text, size=(5.0, 4.3)), text)


def _samples(stack: Stack, images: ImageShape | None, shown: Shown | str) -> str:
    return _sampled(stack, images) + ("" if isinstance(shown, str) else _mixing(stack, shown))


def _sampled(stack: Stack, images: ImageShape | None) -> str:
    if images is not None:
        made = plots.shades(stack, stack.sample(SAMPLES, steps=SAMPLE_STEPS))
        text = f"{SAMPLES} samples of the top RBM, after {SAMPLE_STEPS} steps from noise"
        return figure(image(plots.image_grid(made, shape=images), text), text)
    columns = columns_in(stack.info)
    if columns is None or not columns.features:
        return paragraph("Not drawn: the examples are no images, and their values have no names.")
    rows = stack.sample(SAMPLED_ROWS, steps=SAMPLE_STEPS)
    decoded = dict(list(columns.decode(rows).items())[:SAMPLED_COLUMNS])
    texts = ([_value(x) for x in values] for values in decoded.values())
    cells = [(f"sample {n}", *row) for n, row in enumerate(zip(*texts, strict=True), start=1)]
    caption = f"Samples of the top RBM, after {SAMPLE_STEPS} steps from noise"
    return table(("", *decoded), cells, caption=caption)


def mixing_shown(stack: Stack, shown: Shown, **options: Any) -> Mixing:
    """Return the mixing of chains by examples, with their weights, and classes if there are two."""
    own, labels = shown.weights, classes_only(shown.labels)
    if labels is not None and len(np.unique(labels[is_labelled(labels)])) < 2:
        labels = None
    found = stack.for_prepared_rows().mixing(shown.rows, labels, weights=own, **options)
    return replace(found, is_weighted_alike=own is not None or not shown.is_weighted)


def _mixing(stack: Stack, shown: Shown) -> str:
    """Return the shares of the regions from both starts, and whether the chains mix."""
    found = mixing_shown(stack, shown, chains=SAMPLES, steps=MIXING_STEPS)
    head, rows = found.rows()
    caption = "Shares of the regions in the data, in the chains from each start, and by annealing"
    text = f"{'; '.join(found.figures())}."
    sentences = "".join(paragraph(f"{x[0].upper()}{x[1:]}.") for x in found.sentences())
    return sentences + table(head, rows, caption=caption) + paragraph(text)


def _value(value: Any) -> str:
    return f"{value:.4g}" if np.issubdtype(type(value), np.number) else str(value)


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
    body = drawn(partial(_compared, runs, images, shown))
    return Section("reconstructions", "Reconstructions", body)


def _compared(runs: Sequence[RunRecord], images: ImageShape | None, shown: Shown | str) -> str:
    without = [run.name for run in runs if run.stack is None]
    if without:
        return paragraph(f"Not drawn: {' and '.join(without)} left no model.")
    if isinstance(shown, str):
        return paragraph(NO_EXAMPLES.format(shown))
    stacks = [run.stack.for_prepared_rows() for run in runs if run.stack is not None]
    read = [plots.value_names(stack) for stack in stacks]
    if any(names != read[0] for names in read):
        return paragraph("Not drawn: the two do not read the same values.")
    for stack in stacks:
        plots.check_decoder(stack)
    names = [run.name for run in runs]
    if images is None:
        return _error_table(stacks, names, shown)
    order = f"and below each its reconstruction by {', then by '.join(names)}"
    return _grid(stacks, images, shown, order)


def _error_table(stacks: Sequence[Stack], names: Sequence[str], shown: Shown) -> str:
    shares = np.array([plots.error_shares(stack, shown.rows) for stack in stacks])
    worst = np.argsort(-shares.max(axis=0), kind="stable")[: plots.MOST_BARS_SHOWN]
    values = plots.value_names(stacks[0])
    rows = [(values[i], *(digits(share) for share in shares[:, i])) for i in worst]
    left_out = len(values) - len(rows)
    note = paragraph(f"Left out: {left_out} values with smaller errors.") if left_out else ""
    return table(("", *names), rows, caption=f"{_on_shares(shown)}, the worst first") + note
