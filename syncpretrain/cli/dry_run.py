"""Text of a dry run."""

from __future__ import annotations

from syncpretrain.cli.counts import counted
from syncpretrain.data.dataset import PARTS, Dataset
from syncpretrain.planning.dry_run import DeviceMemory, DryRun

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
        f"stack: {shape}, {counted(epochs, 'epoch')}, {pretrain.schedule},"
        f" runtime {pretrain.runtime}",
        f"memory: up to {_gigabytes(found.bytes)} beside {_gigabytes(found.data_bytes)} of data;"
        f" {_gigabytes(found.free_bytes)} are free",
        f"pretraining: {_seconds(found.pretrain_seconds)}",
    ]
    if found.device is not None:
        lines.insert(-1, _of_gpu(found.device))
    if found.placement is not None:
        lines.insert(-1, found.placement)
    if tuned.objective != "none":
        lines.append(
            f"fine-tuning, {counted(tuned.epochs, 'epoch')}: {_seconds(found.finetune_seconds)}"
        )
    lines.append(f"the whole run: {_seconds(found.seconds)}")
    if found.reason:
        lines.append(f"not predicted: {found.reason}")
    lines.append("nothing was trained, and no folder was made")
    return "\n".join(lines)


def _of_gpu(memory: DeviceMemory) -> str:
    run, data, free = map(_gigabytes, memory[:3])
    if memory.data_on_host:
        own = f"the data stay on the host and come through {data}"
    else:
        own = f"{data} of data"
    return f"memory of the GPU: up to {run} for pretraining, {own}; {free} are free beside"


def _seconds(value: float | None) -> str:
    return "not predicted" if value is None else f"about {value:.3g} s"


def _gigabytes(count: int) -> str:
    return f"{count / GIGABYTE:.2g} GB"
