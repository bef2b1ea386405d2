"""Section of other schedules: their times, predicted from the times of the run."""

from __future__ import annotations

import msgspec

from syncpretrain.planning.candidates import Candidate, Task, candidates
from syncpretrain.planning.timings import LayerTimings, Timings
from syncpretrain.report.section import Section, paragraph, seconds_text, table
from syncpretrain.runs.record import RunRecord
from syncpretrain.schedule.kinds import SCHEDULES
from syncpretrain.settings import PretrainSettings

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
        return (
            f"More than {MOST_SIMULATED} epochs are not predicted here, but by 'syncpretrain plan'."
        )
    if settings.schedule not in SCHEDULES:
        return (
            f"The steps of schedule {settings.schedule} differ from the steps of the others;"
            " 'syncpretrain plan' measures them."
        )
    one_at_a_time = SCHEDULES[settings.schedule].one_at_a_time
    if max(settings.replicas) > 1 or (one_at_a_time and (settings.blas_threads or 1) > 1):
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
    for number in range(1, len(timeline.layers)):
        spans = timeline.of_layer(number)
        if timeline.is_streamed:
            seconds = timeline.busy[number - 1] / len(spans)
        else:
            seconds = sum(x.seconds - x.transform for x in spans) / len(spans)
        step = max(seconds, 0.0) / steps
        computed = [x.transform for x in spans if x.transform > 0]
        row = sum(computed) / len(computed) / max(1, timeline.examples) if computed else 0.0
        if not row and layers:
            row = FORWARD_SHARE * layers[-1].step / batch
        transform = {1: row} if number > 1 else {}
        own = LayerTimings(step, step, sharded={}, transform=transform, validation=0.0)
        layers.append(own)
    workers = run.settings.pretrain.workers or max(1, timeline.workers)
    return Timings(tuple(layers), workers, blas_threads=1)
