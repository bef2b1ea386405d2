"""Sections in words and tables: the result of a run, its settings, and how two runs differ.

The result begins with a sentence: whether the run worked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, NamedTuple

import msgspec

from syncpretrain.data.dataset import PARTS
from syncpretrain.models.diagnosis import digits, share_text
from syncpretrain.report.section import (
    LEAST_SECONDS,
    Section,
    details,
    paragraph,
    seconds_text,
    table,
    unordered,
)
from syncpretrain.runs.record import RunRecord
from syncpretrain.settings import Settings

NOTHING, LITTLE = 1.0, 0.75  # shares of a constant's error, from which so little was learned
SIGNS = {"good": "✓", "poor": "!", "bad": "✕"}  # say what the colour says, which not everyone sees
RUN_ENDS = {
    "running": ("poor", "This run is still at work"),
    "stopped": ("poor", "This run was stopped before its end"),
    "failed": ("bad", "This run failed"),
    "damaged": ("poor", "A file of this run is damaged"),
}
SHOWN_FIRST = {
    "pretrain": (
        *("layers", "architecture", "model", "visible_units", "hidden_units", "schedule", "pace"),
        *("handoff", "delay", "runtime", "backend", "workers", "replicas", "split", "epochs"),
        *("refresh_epochs", "finish", "batch_size", "learning_rate", "momentum", "weight_decay"),
        *("cd_steps", "persistent", "seed"),
    ),
    "finetune": ("objective", "epochs", "optimizer", "learning_rate", "batch_size"),
    "data": ("name", "validation", "labels", "target"),
}
SECTION_NAMES = {
    "data": "Data",
    "pretrain": "Pretraining",
    "finetune": "Fine-tuning",
    "run": "Run folder",
}
NOT_THERE = "-"  # in a table that compares runs


class Headline(NamedTuple):
    """Verdict on a run; ``kind`` is good, poor or bad."""

    kind: str
    text: str
    reasons: tuple[str, ...] = ()


class Quality(NamedTuple):
    """Figure that judges a run, and the same of a constant prediction; smaller is better."""

    text: str
    error: float
    constant: float | None


def quality_of(metrics: dict[str, Any]) -> Quality | None:
    """Return the figure that judges a finished run, None without one.

    It is the share of wrong classes of a classifier, the error of a regression, or the stack's
    reconstruction error, on test examples if there are any.
    """
    right, majority = metrics.get("accuracy") or {}, metrics.get("majority") or {}
    if part := _part(right):
        share, usual = 1 - right[part], majority.get(part)
        text = f"{100 * share:.2f} % of the {part} examples get a wrong class"
        if usual is not None:
            text += f" ({100 * (1 - usual):.1f} % by always naming the most frequent one)"
        return Quality(text, share, None if usual is None else 1 - usual)
    apart = metrics.get("regression_error") or {}
    if part := _part(apart):
        found = apart[part]
        r2 = found.get("r2")
        text = f"the {part} error of the regression is {digits(found['rmse'])} (root mean square)"
        explained = "" if r2 is None else f", which explains {100 * r2:.0f} % of the variance"
        return Quality(text + explained, 1 - r2 if r2 is not None else 0.0, 1.0)
    errors = metrics.get("reconstruction_error") or {}
    if part := _part(errors):
        error, mean = errors[part], (metrics.get("mean_error") or {}).get(part)
        text = f"the reconstruction error on {part} examples is {digits(error)}"
        if mean:
            text += f", {share_text(error, mean)} of the error of predicting the mean"
        return Quality(text, error, mean)
    return None


def _part(figures: dict[str, Any]) -> str:
    """Return the part of the data that counts most, among the parts with a figure."""
    return next((part for part in reversed(PARTS) if figures.get(part) is not None), "")


def headline_of(run: RunRecord) -> Headline:
    """Return the verdict on a run."""
    if run.state.name in RUN_ENDS:
        kind, text = RUN_ENDS[run.state.name]
        return Headline(kind, text, (run.state.reason,))
    metrics = run.metrics
    if metrics is None:  # the file was removed just now
        return Headline("poor", "This run is finished, and has no figures")
    reasons = tuple(metrics.get("verdict") or ())
    quality = quality_of(metrics)
    if quality is None:
        return Headline("poor", "This run is finished; it has no figure to judge it by", reasons)
    share = quality.error / quality.constant if quality.constant else 0.0
    if share >= NOTHING:
        return Headline("bad", f"It learned nothing: {quality.text}", reasons)
    if share > LITTLE:
        return Headline("poor", f"It learned little: {quality.text}", reasons)
    if reasons:
        return Headline("poor", f"It learned, but not as it should: {quality.text}", reasons)
    return Headline("good", f"It worked: {quality.text}")


def outcome_section(runs: Sequence[RunRecord]) -> Section:
    """Return the section of the verdict on each run, with the errors if there is one run."""
    parts = []
    for run in runs:
        found = headline_of(run)
        name = f"{run.name}: " if len(runs) > 1 else ""
        sign = SIGNS[found.kind]
        parts.append(
            f'<div class="verdict {found.kind}"><span class="sign" aria-hidden="true">{sign}</span>'
            f"<div>{paragraph(name + found.text)}"
            f"{unordered(found.reasons) if found.reasons else ''}</div></div>"
        )
    if len(runs) == 1:
        parts += _figures(runs[0])
    return Section("outcome", "Result", "".join(parts))


def _figures(run: RunRecord) -> list[str]:
    """Return the tables of errors of a finished run, or a text about an unfinished one."""
    parts = [table(("", ""), _facts(run), caption="The run", left=2)]
    if run.metrics is not None:
        parts.append(_errors(run.metrics))
    elif run.state.name != "running":
        parts.append(paragraph(_unfinished_text(run)))
    if run.problems:
        parts.append(paragraph("Not everything could be read:"))
        parts.append(unordered(run.problems))
    return parts


def _facts(run: RunRecord) -> list[tuple[str, str]]:
    metrics, timeline = run.metrics or {}, run.timeline
    facts = []
    if data := metrics.get("data"):
        sizes = ", ".join(f"{data.get(part) or 0:,} {part}" for part in PARTS)
        facts.append(("data", f"{data['name']}: {sizes}"))
    elif run.identity is not None:
        facts.append(("data", str(run.identity.data)))
    if right := {k: x for k, x in (metrics.get("accuracy") or {}).items() if x is not None}:
        wrong = (f"{part} {100 * (1 - share):.2f} %" for part, share in right.items())
        facts.append(("wrong classes", ", ".join(wrong)))
    seconds = metrics.get("seconds") or {}
    if seconds:
        names = ("pretrain", "finetune", "total")
        parts = (
            f"{name} {seconds_text(seconds[name])}"
            for name in names
            if seconds.get(name, 0.0) > LEAST_SECONDS
        )
        facts.append(("time", ", ".join(parts)))
    elif timeline.seconds:
        facts.append(("time", f"pretraining {seconds_text(timeline.seconds)} so far"))
    work = sum(timeline.busy)
    if timeline.seconds and work:
        at_once = f"{work / timeline.seconds:.2f} layers at work at a time, of"
        facts.append(("overlap", f"{at_once} {len(timeline.busy)}"))
    if sha256 := metrics.get("parameters_sha256"):
        facts.append(("parameters", f"SHA-256 {sha256[:16]}"))
    return facts


def _errors(metrics: dict[str, Any]) -> str:
    layers, whole = metrics.get("layers") or [], metrics.get("reconstruction_error") or {}
    measured = [whole, *(row["reconstruction_error"] for row in layers)]
    parts = [part for part in PARTS if any(found.get(part) is not None for found in measured)]
    if not parts:  # random weights, fine-tuned to predict
        return ""
    rows = []
    for row in layers:
        own = row["reconstruction_error"], row.get("mean_error") or {}
        label = f"layer {row['layer']}, {row['shape']}"
        rows.append((label, *_cells(*own, parts)))
    if any(whole.get(part) is not None for part in parts):
        predicts = metrics.get("accuracy") or metrics.get("regression_error")
        label = "whole stack, pretrained" if predicts else "whole stack"
        own = whole, metrics.get("mean_error") or {}
        rows.append((label, *_cells(*own, parts)))
    caption = (
        "Squared errors of reconstruction, summed over the values of an example, and their share of"
        " the error of predicting the mean"
    )
    return table(("", *parts), rows, caption=caption)


def _cells(errors: dict[str, Any], means: dict[str, Any], parts: Sequence[str]) -> list[str]:
    """Return the error of each part, with its share of the mean's."""
    cells = []
    for part in parts:
        error, mean = errors.get(part), means.get(part)
        share = f", {share_text(error, mean)}" if error is not None and mean else ""
        cells.append(digits(error) + share)
    return cells


def _unfinished_text(run: RunRecord) -> str:
    """Return a text about the files of an unfinished run, and how to go on."""
    done = [len(run.timeline.of_layer(n)) for n in range(1, len(run.timeline.layers))]
    text = f"Epochs finished, by layer: {', '.join(map(str, done))}. " if any(done) else ""
    if run.stack is not None:
        text += "The model is what was learned by then, and is shown below. "
    count = len(run.checkpoints)
    if count:
        plural = "" if count == 1 else "s"
        text += f"checkpoints/ has {count} file{plural}, from which"
        text += f" 'syncpretrain train --resume {quote(str(run.folder))}' goes on."
    elif run.stack is None:
        text += "It left neither a model nor a checkpoint."
    return text


def configuration_section(run: RunRecord) -> Section:
    """Return the section: the settings that say most, all settings, and the environment."""
    found = texts_of_settings(run.settings)
    parts = []
    if not found:
        parts.append(paragraph("The run has no config.toml that can be read."))
    for section, names in SHOWN_FIRST.items():
        fields = found.get(section, {})
        if section == "finetune" and not is_tuned(fields):
            parts.append(paragraph("There was no fine-tuning."))
            continue
        rows = [(name, fields[name]) for name in names if name in fields]
        if rows:
            parts.append(_settings_table(section, rows))
    if found:
        everything = (_settings_table(name, sorted(x.items())) for name, x in found.items())
        inside = f'<div class="beside">{"".join(everything)}</div>'
        parts = [f'<div class="beside">{"".join(parts)}</div>', details("All settings", inside)]
    environment = _environment(run)
    if environment:
        caption = "What computed it; with the same, the same seed gives the same bits"
        parts.append(table(("", ""), environment, caption=caption, left=2))
    return Section("settings", "Settings and environment", "".join(parts))


def _settings_table(section: str, rows: list[tuple[str, str]]) -> str:
    caption = SECTION_NAMES.get(section, section)
    return f"<div>{table(('setting', 'value'), rows, caption=caption, left=2)}</div>"


def _environment(run: RunRecord) -> list[tuple[str, str]]:
    rows = []
    if run.identity is not None:
        rows.append(("kernels", run.identity.kernels))
        rows += sorted(run.identity.arithmetic.items())
    timeline = run.timeline
    if timeline.runtime:
        plural = "" if timeline.workers == 1 else "s"
        rows.append(("runtime", f"{timeline.runtime}, {timeline.workers} worker{plural}"))
    version = None if run.stack is None else run.stack.info.get("version")
    if version:
        rows.append(("syncpretrain", str(version)))
    return rows


def texts_of_settings(settings: Settings | None) -> dict[str, dict[str, str]]:
    """Return settings as texts by section and name; settings without a value are left out."""
    if settings is None:
        return {}
    return {
        section: {
            name: setting_text(value) for name, value in fields.items() if value not in (None, "")
        }
        for section, fields in msgspec.to_builtins(settings).items()
    }


def is_tuned(fields: Mapping[str, str]) -> bool:
    """Return whether settings of fine-tuning were used."""
    return fields.get("objective", "none") != "none"


def setting_text(value: Any) -> str:
    """Return a setting as the command line has it; equal values of all layers as one."""
    if isinstance(value, (list, tuple)):
        texts = [setting_text(part) for part in value]
        return texts[0] if len(texts) > 1 and len(set(texts)) == 1 else ",".join(texts)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def comparison_sections(runs: Sequence[RunRecord]) -> list[Section]:
    """Return the settings in which runs differ, and their errors and times side by side."""
    names = [run.name for run in runs]
    differing = differing_settings(runs)
    if differing:
        head, caption = ("setting", *names), "Settings that differ"
        settings = table(head, differing, caption=caption, left=len(head))
    else:
        settings = paragraph("The settings of the two are the same.")
    errors = table(("", *names), _compared_figures(runs), caption="Errors and times")
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


def _compared_figures(runs: Sequence[RunRecord]) -> list[tuple[str, ...]]:
    rows = []
    metrics = [run.metrics or {} for run in runs]
    for part in ("train", "validation", "test"):
        for title, name in (("whole stack", "reconstruction_error"), ("wrong classes", "accuracy")):
            cells = [_compared_error(found, name, part) for found in metrics]
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


def _compared_error(metrics: Mapping[str, Any], name: str, part: str) -> str:
    value = (metrics.get(name) or {}).get(part)
    if value is None:
        return NOT_THERE
    if name == "accuracy":
        return f"{100 * (1 - value):.2f} %"
    mean = (metrics.get("mean_error") or {}).get(part)
    return f"{digits(value)} ({share_text(value, mean)} of the mean's)" if mean else digits(value)


def _layer_cell(metrics: Mapping[str, Any], i: int) -> str:
    layers = metrics.get("layers") or []
    if i >= len(layers):
        return NOT_THERE
    errors = layers[i]["reconstruction_error"]
    found = [(part, error) for part, error in errors.items() if error is not None]
    return f"{digits(found[-1][1])} ({found[-1][0]})" if found else NOT_THERE
