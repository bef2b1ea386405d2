"""A run folder as an observer sees it: how far the run is, and what can befall its files."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from random_faults.surprise import Surprise, check
from syncpretrain import load
from syncpretrain.array_files import read_arrays
from syncpretrain.errors import SyncpretrainError
from syncpretrain.workers.state import EPOCHS_STATE, STREAM_STATE

__all__ = ["Progress", "RunFolder"]

PRETRAINED = "pretrained.safetensors"


@dataclass
class Progress:
    """What an event log tells: epochs done of each layer and of fine-tuning."""

    done: list[int] = field(default_factory=list)
    tuned: int = 0
    is_pretrained: bool = False
    starts: list[int] = field(default_factory=list)  # epochs that each RunStarted has behind it
    tunings: list[int] = field(default_factory=list)  # first epoch after each FinetuneStarted


class RunFolder:
    """The files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.events = path / "events.jsonl"
        self.model = path / "model.safetensors"

    @property
    def is_begun(self) -> bool:
        """Whether it can be resumed."""
        return (self.path / "config.toml").is_file()

    @property
    def is_complete(self) -> bool:
        """Whether the run is over."""
        return (self.path / "metrics.json").is_file()

    def report(self) -> dict[str, Any]:
        """Return the metrics."""
        found: dict[str, Any] = json.loads((self.path / "metrics.json").read_text())
        return found

    def lines(self) -> list[bytes]:
        """Return the whole lines of the event log."""
        try:
            return self.events.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []

    def saved(self) -> list[Path]:
        """Return the checkpoints that have a name, without the refused ones."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(self.checkpoints.glob("[pf]*-????????.safetensors"))

    def newest(self) -> Path | None:
        """Return the checkpoint that counts: of fine-tuning, the pretrained stack, of a layer."""
        for stem in ("finetune-", PRETRAINED, "pretrain-"):
            if not (self.checkpoints / PRETRAINED).is_file() and stem != "pretrain-":
                continue
            found = sorted(self.checkpoints.glob(f"{stem}*"))
            found = [path for path in found if path.suffix == ".safetensors"]
            if found:
                return found[-1]
        return None

    def numbers(self, stem: str) -> list[int]:
        """Return the numbers of the checkpoints, from the oldest."""
        return [int(x.stem.partition("-")[2]) for x in self.saved() if x.name.startswith(stem)]

    def unsaved(self, skip: int) -> int:
        """Return how many epochs that were told, from a line on, the newest checkpoint lacks.

        It is the most of any layer, or of fine-tuning.
        """
        told, newest = self.progress(skip), self.newest()
        if not told.starts and not told.tunings:
            return 0
        if newest is None or newest.name.startswith("pretrain-"):
            saved = (0,) * len(told.done) if newest is None else _done(newest)
            return max((now - then for now, then in zip(told.done, saved, strict=False)), default=0)
        return told.tuned - max([0, *(n - 1 for n in self.numbers("finetune"))])

    def progress(self, skip: int = 0) -> Progress:
        """Return what the event log tells, from a line on."""
        found = Progress()
        for line in self.lines()[skip:]:
            try:
                event = json.loads(line)
            except ValueError:
                raise Surprise(f"{self.events} holds {line!r}") from None
            match event["event"]:
                case "RunStarted":
                    found.done = [len(reads) for reads in event["past_reads"]]
                    found.starts.append(sum(found.done))
                case "EpochFinished":
                    found.done[event["layer"] - 1] = event["epoch"]
                case "RunFinished":
                    found.is_pretrained = True
                case "FinetuneStarted":
                    found.tunings.append(0)
                case "FinetuneEpochFinished":
                    found.tuned = event["epoch"]
                    found.tunings[-1] = found.tunings[-1] or event["epoch"]
        return found

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """Return size and time of each file but the lock, which a killed owner leaves."""
        return {
            str(path.relative_to(self.path)): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in self.path.rglob("*")
            if path.is_file() and path.name != "run.lock"
        }

    def check_model(self) -> None:
        """Check that the model can be loaded, if there is one."""
        if self.model.exists():
            sha_of(self.model)

    def temporaries(self) -> list[Path]:
        """Return files whose names begin with a dot, at any depth."""
        return list(self.path.rglob(".*"))


def sha_of(model: Path) -> str:
    """Return the digest of a model that must load."""
    try:
        return load(model).parameters_sha256
    except (SyncpretrainError, OSError) as error:
        raise Surprise(f"{model} does not load: {error}") from None


def flip_bit(path: Path, chance: random.Random) -> None:
    """Flip one bit anywhere in a file."""
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, chance: random.Random) -> None:
    """Cut a file off anywhere."""
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])


def cut_line(path: Path, chance: random.Random) -> None:
    """Cut into the last line of a log; nothing of it may be left."""
    content = path.read_bytes()
    start = content[:-1].rfind(b"\n") + 1
    check(content, f"{path} is empty")
    path.write_bytes(content[: chance.randrange(start, len(content))])


def _done(checkpoint: Path) -> tuple[int, ...]:
    """Return the epochs that each layer has finished in a checkpoint of pretraining."""
    header, _ = read_arrays(checkpoint)
    if "stream" in header:
        return STREAM_STATE.read(checkpoint).done
    return EPOCHS_STATE.read(checkpoint).past.done
