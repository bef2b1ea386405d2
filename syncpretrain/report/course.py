"""Sections of the course of a run: its learning curves, who trained when, and other schedules.

Two runs have their curves in the same panels. The times of other schedules are predicted from the
times of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from typing import Any

import msgspec

from syncpretrain.models.diagnosis import digits
from syncpretrain.planning.candidates import Candidate, Task, candidates
from syncpretrain.planning.timings import LayerTimings, Timings
from syncpretrain.plot import course
from syncpretrain.plot.canvas import colour_of
from syncpretrain.pretraining.build import threads_of_layers
from syncpretrain.report.section import (
    Section,
    details,
    draw_svg,
    figure,
    paragraph,
    row_of_figures,
    seconds_text,
    table,
)
from syncpretrain.runs.record import RunRecord, Timeline, critical_path, path_seconds
from syncpretrain.schedule.kinds import SCHEDULES
from syncpretrain.settings import PretrainSettings

MARKS_OF_RUNS = ("● ■", "◆ ▲")  # marks of two runs in the panels
MOST_PANELS = 24  # the lowest layers of a deep stack, and fine-tuning
ZOOMS = {"whole": 10.0, "3 times": 30.0, "9 times": 90.0}  # inches
ROW_INCHES = 0.4
MOST_ROWS_SHOWN = 300
LEGEND = (
    "A row is a layer, and a bar an epoch: its number, and in brackets the version of the layer"
    " below that it trained on. Grey is sleep; the paler beginning of a bar computed its input."
    " Point at a bar for its figures."
)
STREAMED_LEGEND = (
    "A row is a layer, and a bar an epoch with its number. Layers trained on each other's"
    " minibatches, so that a bar is the time from the first of an epoch to the last. Point at a bar"
    " for its figures."
)


def learning_section(runs: Sequence[RunRecord]) -> Section:
    """Return a panel a layer, and one for fine-tuning."""
    by_run = [{curve.title: curve for curve in course.curves_of(run.timeline)} for run in runs]
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


def _panel(curves: Sequence[course.Curve | None], name: str) -> str:
    """Return a panel with the curve of each run; a run without a curve keeps its colour."""

    def draw(axes: Any) -> None:
        for series, curve in enumerate(curves):
            if curve is not None:
                course.draw_curve(axes, curve, series=series, legend=len(curves) == 1)

    own = [curve for curve in curves if curve is not None]
    ends = (f"{len(curve.epochs)} epochs, the last {curve.train[-1]:.4g}" for curve in own)
    return draw_svg(draw, name=name, label=f"Errors of {own[0].title}: {'; '.join(ends)}")


def course_section(runs: Sequence[RunRecord]) -> Section:
    """Return the diagram of each run, with its figures."""
    has_epochs = any(run.timeline.spans or run.timeline.tuning for run in runs)
    streamed = all(run.timeline.is_streamed for run in runs)
    parts = [paragraph(STREAMED_LEGEND if streamed else LEGEND)] if has_epochs else []
    longest = max(map(_length, (run.timeline for run in runs)))
    for place, run in enumerate(runs):
        name = f"{run.name}: " if len(runs) > 1 else ""
        parts.append(f"<h3>{escape(run.name)}</h3>" if name else "")
        timeline = run.timeline
        if not (timeline.spans or timeline.tuning):
            parts.append(paragraph("No epoch is finished."))
            continue
        parts.append(_diagram(timeline, f"course{place}", name, longest))
        parts += [paragraph(sentence) for sentence in _sentences(timeline)]
        if timeline.spans:
            parts.append(_work_table(timeline, name))
        parts.append(details("The epochs as a table", _epoch_table(timeline, name)))
    return Section("course", "Who trained when", "".join(parts))


def _length(timeline: Timeline) -> float:
    """Return the seconds that a diagram has, from its first epoch to its last."""
    spans = (*timeline.spans, *timeline.tuning)
    return max(span.end for span in spans) - course.first_second(timeline) if spans else 0.0


def _diagram(timeline: Timeline, name: str, run: str, seconds: float) -> str:
    """Return the diagram in several widths; the page shows one of them, without a script."""
    rows = len(timeline.layers) - 1 + bool(timeline.tuning)
    buttons, drawings = [], []
    for place, (label, width) in enumerate(ZOOMS.items()):
        own = f"{name}-{place}"
        draw = partial(course.draw_space_time, timeline=timeline, prefix=f"{own}-", seconds=seconds)
        what = f"{run}space-time diagram, {label}"
        svg = draw_svg(draw, name=own, label=what, size=(width, 0.75 + ROW_INCHES * rows))
        checked = "" if place else " checked"
        buttons.append(
            f'<input type="radio" name="{name}-zoom" id="{own}-zoom"{checked}>'
            f'<label for="{own}-zoom">{label}</label>'
        )
        drawings.append(
            f'<div class="scroll zoom{place}" tabindex="0" role="region"'
            f' aria-label="{escape(what)}">'
            f'<div style="min-width: {course.PIXELS_PER_INCH * width:.0f}px">{svg}</div></div>'
        )
    return f'<div class="zoomed"><span>Zoom</span>{"".join(buttons)}{"".join(drawings)}</div>'


def _sentences(timeline: Timeline) -> list[str]:
    """Return sentences that say what the diagram shows."""
    if not timeline.spans or not timeline.seconds:
        return []
    work, depth = sum(timeline.busy), len(timeline.busy)
    layers = f"{depth} layers" if depth > 1 else "the layer"
    found = [
        f"Pretraining took {seconds_text(timeline.seconds)}, and the epochs of {layers}"
        f" {seconds_text(work)}: {work / timeline.seconds:.2f} were at work at a time."
    ]
    path = critical_path(timeline)
    if path:
        own = path_seconds(path, depth)
        by_layer = ", ".join(
            f"layer {n} for {100 * x / timeline.seconds:.0f} %"
            for n, x in enumerate(own, start=1)
            if x > 0
        )
        waits = 100 * max(0.0, 1 - sum(own) / timeline.seconds)
        found.append(
            f"The critical path, with a line above its bars, is what the time depended on:"
            f" {by_layer} of it, and {waits:.0f} % between its epochs. Only what makes these epochs"
            " faster makes the run faster."
        )
    elif timeline.is_streamed:
        busiest = max(range(depth), key=lambda i: timeline.busy[i])
        found.append(f"Layer {busiest + 1} had the most work.")
    return found


def _work_table(timeline: Timeline, name: str) -> str:
    path = path_seconds(critical_path(timeline), len(timeline.busy))
    rows = []
    for layer, (busy, on_path) in enumerate(zip(timeline.busy, path, strict=True), start=1):
        spans = timeline.of_layer(layer)
        asleep = max(0.0, timeline.seconds - busy)
        share = asleep / timeline.seconds if timeline.seconds else 0.0
        first = seconds_text(spans[0].start - timeline.began) if spans else "-"
        cells = (len(spans), seconds_text(busy), seconds_text(asleep), f"{100 * share:.0f} %")
        last = seconds_text(on_path) if on_path else "-"
        rows.append((f"layer {layer}", *cells, first, *([last] if any(path) else [])))
    head = ["", "epochs", "at work", "asleep", "idle share", "began after"]
    head += ["on the critical path"] if any(path) else []
    return table(head, rows, caption=f"{name}Work and sleep of each layer")


def _epoch_table(timeline: Timeline, name: str) -> str:
    """Return a table of the epochs, for readers who cannot point at a bar."""
    rows = []
    for span in (*timeline.spans, *timeline.tuning)[:MOST_ROWS_SHOWN]:
        layer = f"layer {span.layer}" if span.layer else course.TUNING_NAME
        read = span.reads if span.layer > 1 and not timeline.is_streamed else "-"
        errors = (digits(span.train_error), digits(span.validation_error))
        rows.append((layer, span.epoch, read, f"{span.start:.3f}", f"{span.end:.3f}", *errors))
    left_out = len(timeline.spans) + len(timeline.tuning) - len(rows)
    more = f"; {left_out} more are in events.jsonl" if left_out else ""
    head = ("", "epoch", "on version", "from, s", "to, s", "error", "validation")
    return table(head, rows, caption=f"{name}Epochs by start{more}")


FORWARD_SHARE = 0.2  # of a step of CD-1: one of its five products goes upward
MOST_SIMULATED = 600  # epochs of all layers; more take long to simulate


def schedules_section(run: RunRecord) -> Section | None:
    """Return the predicted times of all schedules, None for a run without pretraining."""
    if run.settings is None or not run.timeline.spans:
        return None
    title = "What other schedules would have taken"
    reason = _refusal(run, run.settings.pretrain)
    if reason:
        return Section("schedules", title, paragraph(reason))
    timeline, timings = run.timeline, timings_of(run)
    # The pace free belongs to this run; other schedules may not have it.
    plain = {"runtime": "threads", "pace": "lockstep"}
    settings = msgspec.structs.replace(run.settings.pretrain, **plain)
    held_out = 0 if run.identity is None else run.identity.data.validation
    found = candidates(Task(settings, timeline.examples, held_out), timings)
    text = (
        "Each schedule is simulated with this run's own times of each layer's epochs, as one worker"
        f" had them, on {timings.workers} worker{'' if timings.workers == 1 else 's'}. They are of"
        " epochs during which other layers were at work, so that a schedule on one core may be"
        " faster than it looks here; 'syncpretrain plan' measures each case."
    )
    if timeline.is_streamed:
        text += " What a layer takes to read a whole version was not measured, but estimated."
    taken = timeline.seconds if timeline.is_pretrained and not timeline.resumed else None
    rows = [_row(candidate, taken) for candidate in found]
    if taken is not None:
        rows.insert(0, ("this run", seconds_text(taken), "1.00"))
    head = ("schedule", "pretraining", "times this run's speed")
    return Section("schedules", title, paragraph(text) + table(head, rows, caption="Predicted"))


def _row(candidate: Candidate, taken: float | None) -> tuple[str, str, str]:
    times = "-" if taken is None or not candidate.seconds else f"{taken / candidate.seconds:.2f}"
    return candidate.name, seconds_text(candidate.seconds), times


def _refusal(run: RunRecord, settings: PretrainSettings) -> str:
    """Return why the times of a run say nothing about other schedules, empty if they do."""
    timeline = run.timeline
    measured = {span.layer for span in timeline.spans}
    depth = len(settings.layers) - 1
    if len(timeline.layers) - 1 != depth or len(measured) < depth:
        return "Not every layer finished an epoch, so that there are no times to predict from."
    if sum(settings.epochs) > MOST_SIMULATED:
        how = "not predicted here, but by 'syncpretrain plan'"
        return f"More than {MOST_SIMULATED} epochs are {how}."
    if settings.schedule not in SCHEDULES:
        how = "differ from the steps of the others; 'syncpretrain plan' measures them"
        return f"The steps of schedule {settings.schedule} {how}."
    one_at_a_time = SCHEDULES[settings.schedule].one_at_a_time
    taken = {} if run.stack is None else run.stack.info.get("pretrain", {})
    settings = msgspec.structs.replace(settings, products=taken.get("products", settings.products))
    if max(threads_of_layers(settings)) > 1 or (one_at_a_time and (settings.blas_threads or 1) > 1):
        return (
            "The steps of this run were shared by several cores, so that the time of one core is"
            " not known; 'syncpretrain plan' measures it."
        )
    return ""


def timings_of(run: RunRecord) -> Timings:
    """Return the times of a run's layers in the form of a plan.

    The time of a step includes its part of the epoch's validation, which the run does not measure
    apart.
    """
    timeline = run.timeline
    assert run.settings is not None
    batch = run.settings.pretrain.batch_size
    steps = max(1, -(-timeline.examples // batch))
    layers: list[LayerTimings] = []
    for layer in range(1, len(timeline.layers)):
        spans = timeline.of_layer(layer)
        if timeline.is_streamed:
            seconds = timeline.busy[layer - 1] / len(spans)
        else:
            seconds = sum(x.seconds - x.transform for x in spans) / len(spans)
        step = max(seconds, 0.0) / steps
        computed = [x.transform for x in spans if x.transform > 0]
        row = sum(computed) / len(computed) / max(1, timeline.examples) if computed else 0.0
        if not row and layers:
            row = FORWARD_SHARE * layers[-1].step / batch
        transform = {1: row} if layer > 1 else {}
        layers.append(LayerTimings(step, step, sharded={}, transform=transform, validation=0.0))
    workers = run.settings.pretrain.workers or max(1, timeline.workers)
    return Timings(tuple(layers), workers, blas_threads=1)
