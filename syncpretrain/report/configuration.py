"""Section of the settings and the environment of a run, and settings as texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from syncpretrain.report.section import Section, details, paragraph, table
from syncpretrain.runs.record import RunRecord
from syncpretrain.settings import Settings

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
    sections: dict[str, dict[str, Any]] = msgspec.to_builtins(settings)
    return {
        section: {
            name: setting_text(value) for name, value in fields.items() if value not in (None, "")
        }
        for section, fields in sections.items()
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
