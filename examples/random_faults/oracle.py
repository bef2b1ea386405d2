"""What an undisturbed run comes to, computed in this process."""

from __future__ import annotations

from pathlib import Path

import msgspec

from random_faults.folder import RunFolder
from random_faults.surprise import Surprise, check
from syncpretrain.errors import SyncpretrainError
from syncpretrain.observers.event_log import read_reads
from syncpretrain.runs.run import train_run
from syncpretrain.settings import Settings, read_settings

__all__ = ["check_replay", "record", "undisturbed"]


def undisturbed(settings: Settings, out: Path) -> str:
    """Return the digest of an undisturbed run, in threads instead of processes."""
    return str(train_run(_here(settings), out=out)["parameters_sha256"])


def record(settings: Settings, out: Path) -> str:
    """Run freely, so that it can be replayed; return the digest."""
    return str(train_run(settings, out=out)["parameters_sha256"])


def check_replay(run: RunFolder, out: Path, expected: str) -> None:
    """Check that a run's own events repeat it."""
    settings = _here(read_settings(run.path / "config.toml"))
    try:
        found = train_run(settings, out=out, replay=read_reads(run.events))["parameters_sha256"]
    except SyncpretrainError as error:
        raise Surprise(f"its replay failed: {error}") from None
    check(found == expected, f"its replay came to other parameters: {found} and {expected}")


def _here(settings: Settings) -> Settings:
    """Take threads, which start at once; a run keeps its bits in every runtime."""
    if settings.pretrain.runtime != "processes":
        return settings
    pretrain = msgspec.structs.replace(settings.pretrain, runtime="threads")
    quick = msgspec.structs.replace(settings.run, checkpoint_every="1000s")
    return msgspec.structs.replace(settings, pretrain=pretrain, run=quick)
