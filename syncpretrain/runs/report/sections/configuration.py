"""Settings and environment of a run."""

from __future__ import annotations

from syncpretrain.runs.record import RunRecord
from syncpretrain.runs.report.sections.section import Section, details, paragraph, table
from syncpretrain.runs.report.sections.setting_texts import is_tuned, settings_of

__all__ = ["configuration_section"]

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
    """Return the settings that say most, then all of them, then the environment."""
    found = settings_of(run.settings)
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
