"""Text of a dry run."""

from __future__ import annotations

from syncpretrain.data.dataset import PARTS, Dataset
from syncpretrain.planning.dry_run import DryRun

__all__ = ["dry_run_text"]

GIGABYTE = 1e9


def dry_run_text(found: DryRun, data: Dataset) -> str:
    """Return the memory and the time of a run in lines."""
    pretrain, tuned = found.settings.pretrain, found.settings.finetune
    shape = pretrain.architecture or "-".join(map(str, pretrain.layers))
    own = pretrain.epochs if len(set(pretrain.epochs)) > 1 else pretrain.epochs[:1]
    epochs = ",".join(map(str, own))
    sizes = ", ".join(f"{len(getattr(data, part)):,} {part}" for part in PARTS)
    lines = [
        f"data: {data.name}, {data.source} ({sizes})",
        f"stack: {shape}, {epochs} epochs, {pretrain.schedule}, runtime {pretrain.runtime}",
        f"memory: up to {_gigabytes(found.bytes)} beside {_gigabytes(found.data_bytes)} of data;"
        f" {_gigabytes(found.free_bytes)} are free",
        f"pretraining: {_seconds(found.pretrain_seconds)}",
    ]
    if tuned.objective != "none":
        lines.append(f"fine-tuning, {tuned.epochs} epochs: {_seconds(found.finetune_seconds)}")
    lines.append(f"the whole run: {_seconds(found.seconds)}")
    if found.reason:
        lines.append(f"not predicted: {found.reason}")
    lines.append("nothing was trained, and no folder was made")
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "not predicted" if value is None else f"about {value:.3g} s"


def _gigabytes(count: int) -> str:
    return f"{count / GIGABYTE:.2g} GB"
