"""Two runs beside each other: the settings that differ, and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from syncpretrain.models.diagnosis import share_text
from syncpretrain.runs.record import RunRecord
from syncpretrain.runs.report.sections.section import (
    LEAST_SECONDS,
    Section,
    number,
    paragraph,
    seconds_text,
    table,
)
from syncpretrain.runs.report.sections.setting_texts import is_tuned, settings_of

__all__ = ["comparison_sections", "differing_settings"]

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
        for found in (settings_of(run.settings) for run in runs)
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
